"""Variants of an inference on one machine: other models, settings or Pythons, in turns or one after the other."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.errors import CommandError
from embedl_hub.machine import program
from embedl_hub.machine.machine import packed_program, unlogged
from embedl_hub.models.calibration import read_outputs
from embedl_hub.models.onnx_file import model_file
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.answer import Form
    from embedl_hub.core.device import AnyPath, MeasuringConfig
    from embedl_hub.machine.driver import Driver
    from embedl_hub.machine.machine import Machine

_FORM: Form = {
    "variants": [{"name": str, "runtime?": {"version?": str}}],
    "sittings": [
        {
            "times_us": [[float]],
            "waited_us?": [[float]],
            "load_us": [float],
            "first_us": [float],
            "peak_memory_mb": [object],
        }
    ],
}
_WORDS = 300


@dataclass(frozen=True)
class Variant:
    """One way to run an inference."""

    name: str
    model: Path  # a file or folder of this machine
    config: MeasuringConfig  # how the runtime is to run it
    python: str | None = None  # a Python of the machine with another runtime; None for the one that is used there
    data: Path | None = None  # an .npz of this machine to run it on; made up there when not given


def measure_variants(
    machine: Machine[Any],
    driver: Driver,
    variants: Sequence[Variant],
    *,
    sittings: int,
    first_sitting: int = 0,
    restart_every: int = 1,
    one_processor: bool = False,
    seconds: float = 0.2,
) -> dict[str, Any]:
    """Let a machine run variants in turns, and return its document.

    Args:
        machine: Where.
        driver: Its device program.
        variants: What is run.
        sittings: So often all models are loaded anew.
        first_sitting: So many were measured before; the order goes on from there.
        restart_every: After so many sittings the processes are started anew; after every one where they cannot be
            kept on one processor although that was asked for.
        one_processor: Whether all variants run on the same processor, each start on the next one; only for those that
            have one thread each.
        seconds: Turns of one sitting last at least so long.
    """
    rows = [
        {"name": each.name, "words": [str(word) for word in words_of(machine, driver, each)], "python": each.python}
        for each in variants
    ]
    path = machine.scratch / "variants.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    args: list[AnyPath] = ["--variants", machine.put(path, "variants.json"), "--sittings", str(sittings)]
    args += ["--first-sitting", str(first_sitting), "--sitting-seconds", str(seconds)]
    args += ["--restart-every", str(restart_every), *(["--one-processor"] if one_processor else [])]
    if any(each.python is not None for each in variants):
        args += ["--program-file", program_file(machine, driver)]
    document = program.measure_there(machine, driver.runtime, "variants", args, _FORM)
    counts = {len(sitting[key]) for sitting in document["sittings"] for key in ("times_us", "load_us", "first_us")}
    if counts != {len(variants)} or len(document["sittings"]) != sittings:
        raise RefusedError(f"The device program on {machine.title} measured other variants than it was given.")
    document["place"] = machine.title
    return document


def words_of(machine: Machine[Any], driver: Driver, variant: Variant) -> list[AnyPath]:
    """Return the words that make the device program run a variant, its files brought there."""
    there = machine.send(unlogged(variant.model, "model")) if variant.model.is_file() else machine.put(
        model_file(variant.model), model_file(variant.model).name
    )  # fmt: skip
    words: list[AnyPath] = ["--model", there, *_settings(machine, driver, variant.config)]
    if variant.data is not None:
        name = f"data-{variant.data.parent.name}-{variant.data.stem}/data.npz"
        words += ["--input-dir", machine.put(variant.data, name).parent]
    return [*words, *getattr(machine.config, "cli_args", ())]


def _settings(machine: Machine[Any], driver: Driver, config: MeasuringConfig) -> list[str]:
    """Return the arguments that a runtime's settings make, as if the machine had these."""
    view = copy.copy(machine)
    view.config = config
    return driver.settings(view)


def program_file(machine: Machine[Any], driver: Driver) -> AnyPath:
    """Return the device program on a machine in a form that every Python there runs."""
    packed = machine.scratch / f"{driver.runtime.command}.pyz"
    if not packed.exists():
        packed.write_bytes(packed_program(driver.runtime))
    if not machine.is_local:
        return machine.send(unlogged(packed, "program"))
    # Unpacked, so that a Python keeps what it has compiled: it is started hundreds of times.
    folder = machine.scratch / f"{driver.runtime.command}-program"
    if not folder.exists():
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
    return str(folder)


def answers_of(machine: Machine[Any], driver: Driver, variant: Variant, number: int) -> dict[str, np.ndarray]:
    """Run a variant once on its data and return its outputs; ``number`` tells it from others of the same run."""
    if variant.data is None:
        raise RefusedError("There is no data to run the model on.")
    target = machine.folder / f"answers-{number}"
    words = ["run-inference", *words_of(machine, driver, variant), "--output-dir", target, "--use-npz"]
    if variant.python is None:
        program.call_program(machine, driver.runtime, str(words[0]), words[1:], may_be_silent=True)
    else:
        argv = [*python_argv(variant.python, file=str(program_file(machine, driver))), *words]
        try:
            machine.runner.run(argv, hide=True, timeout_s=machine.config.timeout_s)
        except CommandError as error:
            last = error.stderr.strip().splitlines()[-1:] or [str(error)]
            raise RefusedError(f"{variant.name} cannot be run on {machine.title}: {last[0][:_WORDS]}") from error
    fetched = machine.scratch / f"answers-{number}"
    machine.get(target, fetched)
    return read_outputs(fetched)


def runtime_version(machine: Machine[Any], driver: Driver, python: str | None) -> str | None:
    """Ask which version of the runtime a Python of a machine has; None where it does not tell."""
    start = machine.program(driver.runtime) if python is None else python_argv(
        python, file=str(program_file(machine, driver))
    )  # fmt: skip
    try:
        told = machine.runner.run([*start, "doctor"], hide=True, timeout_s=60.0).stdout
        answer = parse_answer(told.strip().splitlines()[-1])
    except (CommandError, ValueError, IndexError):
        return None
    version = answer.get(driver.runtime.module.removeprefix("embedl_")) if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None
