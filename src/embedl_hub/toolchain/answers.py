"""Invoking as every toolchain does it: data under the right names, kept with the run, outputs kept as one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.errors import known
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.arrays import read_outputs, write_npz
from embedl_hub.toolchain.program import call
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, MeasuringConfig
    from embedl_hub.toolchain.place import Place


def infer(
    place: Place[MeasuringConfig], entry: AnyPath, data: Mapping[str, np.ndarray], settings: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Run a model that is there on data that is here; return its outputs and what the device program told."""
    path = place.scratch / "data.npz"
    write_npz(path, data)
    source = RemotePath(place.put(path, "input/data.npz")).parent
    target = RemotePath(place.folder) / "output"
    words = ["--model", entry, "--input-dir", source, "--output-dir", target, "--use-npz", *settings]
    answer = call(place, "run-inference", words)
    fetched = place.scratch / "fetched"
    place.get(target, fetched)
    return read_outputs(fetched), answer


def log_input_data(ctx: HubContext, data: Mapping[str, np.ndarray]) -> None:
    """Keep the data with the run, so that another model can be held against its answers later."""
    path = ctx.artifact_dir / "input_data.npz"
    write_npz(path, data)
    ctx.client.log_artifact(path, name="input_data")


def log_output(ctx: HubContext, output: Mapping[str, np.ndarray]) -> None:
    """Keep the outputs as one file."""
    path = ctx.artifact_dir / "output.npz"
    write_npz(path, output)
    ctx.client.log_artifact(path, name="output_file")


def compiled_names(data: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the data under the compiled names; original and compiled ones are taken."""
    now = set(mapping.values())
    named: dict[str, np.ndarray] = {}
    for name, array in data.items():
        if mapping and name not in mapping and name not in now:
            raise RefusedError(
                f"{name!r} is no input of the model. Its inputs were called {known(mapping)}, the compiler made "
                f"{known(now)} of them."
            )
        target = mapping.get(name, name)
        if target in named:
            raise RefusedError(f"Input {target!r} is given twice, under its original and its compiled name.")
        named[target] = np.asarray(array)
    return named


def original_names(output: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the outputs under their original names."""
    back = {now: before for before, now in mapping.items()}
    return {back.get(name, name): array for name, array in output.items()}
