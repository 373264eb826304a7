"""A model on a board, all the way: what `board` does between the connection and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core import HubContext
from embedl_hub.core.document import ProfileDocument, read_document
from embedl_hub.core.toolchain import board_toolchain
from embedl_hub.errors import CompileError, ConfigError
from embedl_hub.refusal import RefusedError, needed_packages

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.device import Device
    from embedl_hub.core.invoke import Parity
    from embedl_hub.core.profile import ProfilingResult
    from embedl_hub.machine.install import BoardPython
    from embedl_hub.models.onnx_file import Tensor

_SAMPLES = 16
_BATCHES_TAKEN = 16


@dataclass(frozen=True)
class Subject:
    """A model and what it is to be run on."""

    path: Path  # the ONNX file or its folder
    input_shape: tuple[int, ...] | None  # the shape that compiling fixes; None where the model has one
    precision: str  # what it computes in as it is: ``float32``, ``int8``
    data: Mapping[str, np.ndarray]  # arrays by input name
    data_words: str  # where the data came from
    calibration: Path | Mapping[str, np.ndarray] | None  # what INT8 is calibrated on; None for no INT8
    is_made_up: bool  # whether the calibration is on made-up numbers


@dataclass(frozen=True)
class Figures:
    """One precision on the board."""

    precision: str  # what the compiled model computes in
    size_bytes: int  # of the compiled model
    profile: ProfilingResult  # its latency, verdict and memory
    document: ProfileDocument  # its document, with every number and the interval of the median
    output: Mapping[str, np.ndarray]  # what it answers, by output name
    parity: Parity  # how far that is: the first from this machine's answers, INT8 from the board's own float
    runs: Mapping[str, str]  # the runs behind it, by step


@dataclass(frozen=True)
class Found:
    """What came of it: the model as given and, where it could be made, INT8."""

    figures: tuple[Figures, ...]
    notes: tuple[str, ...]


def read_subject(
    path: Path,
    input_shape: tuple[int, ...] | None,
    data: Mapping[str, np.ndarray],
    calibration: Path | None,
    *,
    with_int8: bool,
) -> Subject:
    """Read a model and find data for it; everything that can be wrong here is said before a board is asked."""
    with needed_packages("ONNX Runtime models", "onnxruntime"):
        from embedl_hub.models import onnx_file as models  # noqa: PLC0415 - vendor packages on use
    try:
        graph = models.read_model(path)
        shape = input_shape if input_shape is not None else _batch_of_one(models.inputs_of(graph))
        if shape is not None:
            models.fix_input_shape(graph, shape)
        inputs = models.inputs_of(graph)
        _check_fixed(inputs)
        found, words = _data(inputs, data, calibration)
        models.check_data(inputs, found, "the data")
    except RefusedError as error:
        raise ConfigError(str(error)) from error
    precision = models.precision_of(graph)
    is_float = precision.startswith("float")
    wanted: Path | Mapping[str, np.ndarray] | None = calibration or (found if with_int8 and is_float else None)
    return Subject(path, shape, precision, found, words, wanted, is_made_up=calibration is None and not data)


def _check_fixed(inputs: Sequence[Tensor]) -> None:
    for tensor in inputs:
        if not tensor.is_fixed:
            sizes = ",".join(str(size) if isinstance(size, int) else "1" for size in tensor.shape)
            raise RefusedError(f"Input {tensor} has no fixed shape; give one, such as --input-shape {sizes}")


def _batch_of_one(inputs: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Return a shape for the first input whose batch alone is open."""
    for tensor in inputs:
        rest = tensor.shape[1:]
        if not tensor.is_fixed and all(isinstance(size, int) for size in rest):
            return (1, *(size for size in rest if isinstance(size, int)))
    return None


def _data(
    inputs: Sequence[Tensor], given: Mapping[str, np.ndarray], calibration: Path | None
) -> tuple[Mapping[str, np.ndarray], str]:
    """Return what the model is run on: the user's data, else some of the calibration data, else made-up numbers."""
    if given:
        return given, "your data"
    if calibration is not None:
        import numpy as np  # noqa: PLC0415 - importing a command must not cost numpy

        from embedl_hub.models.calibration import open_calibration  # noqa: PLC0415 - numpy on use

        first, *rest = islice(open_calibration(calibration, inputs).batches(), _BATCHES_TAKEN)
        arrays = {
            name: np.concatenate([array, *(batch[name] for batch in rest)]) if np.ndim(array) else array
            for name, array in first.items()
        }
        return arrays, "calibration data"
    return {tensor.name: _made_up(tensor) for tensor in inputs}, "made-up numbers"


def _made_up(tensor: Tensor) -> np.ndarray:
    import numpy as np  # noqa: PLC0415 - importing a command must not cost numpy

    sizes = tuple(size for size in tensor.shape if isinstance(size, int))
    if sizes:
        sizes = (sizes[0] * _SAMPLES, *sizes[1:])
    if tensor.dtype == "string":
        raise RefusedError(f"Input {tensor} is text, which is not made up; give data: --input-data FILE.npz")
    if tensor.dtype.startswith("float"):
        return np.random.default_rng(0).standard_normal(sizes).astype(tensor.dtype)
    return np.ones(sizes, tensor.dtype)


def prepare(device: Device, home: Path, project: str, python: str | None) -> tuple[Device, BoardPython]:
    """Return the device with a Python that has what ONNX Runtime needs, put there if it had none."""
    from embedl_hub.machine.install import need_packages  # noqa: PLC0415 - only here

    toolchain = board_toolchain()
    kind = toolchain.device_kinds[0]
    given = device.provider_config or kind.config_class()
    if device.provider_type != kind.type or not isinstance(given, kind.config_class):
        raise ConfigError(
            f"Device {device.name!r} is of type {device.provider_type!r}; this needs one of type {kind.type!r}."
        )
    config: Any = given
    with HubContext(project, [device], home=home) as ctx:
        found = need_packages(ctx, device.name, toolchain.board_packages, python=python or config.python_path)
    return replace(device, provider_config=replace(config, python_path=found.path)), found


def measure(ctx: HubContext, subject: Subject, say: Callable[[str], None]) -> Found:
    """Compile, profile and invoke a model on the context's one device, as it is and as INT8."""
    say(f"compiling, profiling and running {subject.path.name} ({subject.precision})")
    compiler: Any = board_toolchain().compiler
    plain = compiler(input_shape=subject.input_shape).run(ctx, subject.path)
    first = _figures(ctx, plain, subject, subject.precision, subject.path)
    notes = [f"Outputs are compared on {subject.data_words}."]
    if subject.calibration is None:
        return Found((first,), tuple(notes))
    say("the same as INT8")
    try:
        # Whoever finds the run later must see it without this table.
        name = "INT8, calibrated on made-up numbers" if subject.is_made_up else None
        step = compiler(name=name, input_shape=subject.input_shape, per_channel=True)
        small = step.run(ctx, subject.path, calibration_data=subject.calibration)
    except CompileError as error:
        if not subject.is_made_up:
            raise
        return Found((first,), (*notes, f"There is no INT8: {error}"))
    if subject.is_made_up:
        notes.append(
            "INT8 was calibrated on made-up numbers: its speed, size and memory are real, what it answers means "
            "nothing. Give --calibration-data for an INT8 model to use."
        )
    elif subject.calibration is subject.data:
        notes.append("INT8 was calibrated on the same data, which flatters it; give --calibration-data of its own.")
    return Found((first, _figures(ctx, small, subject, "int8", first.output)), tuple(notes))


def _figures(
    ctx: HubContext,
    compiled: CompiledModel,
    subject: Subject,
    precision: str,
    reference: Path | Mapping[str, np.ndarray],
) -> Figures:
    toolchain: Any = board_toolchain()
    profile = toolchain.profiler().run(ctx, compiled)
    answer = toolchain.invoker().run(ctx, compiled, subject.data)
    artifacts = {"compile": compiled.path, "profile": profile.output_file, "invoke": answer.output_file}
    return Figures(
        precision,
        compiled.path.size_bytes,
        profile,
        read_document(profile.output_file.local()),
        answer.output,
        answer.compare(reference),
        {step: artifact.run_id or "" for step, artifact in artifacts.items()},
    )
