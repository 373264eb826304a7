"""Invoke: inputs go there as raw numbers, trtexec runs the engine once, outputs come back to the last bit.

Raw files (--dumpRawBindingsToFile) hold the outputs exactly; the JSON beside them (--exportOutput) has six digits, and
is what counts where an older trtexec writes no raw files or a type that NumPy does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core.invoke import InvokeError, TensorRTInvocationResult
from embedl_hub.errors import TransferError, known
from embedl_hub.tensorrt.formats import parse_outputs
from embedl_hub.tensorrt.log import parse_raw_files
from embedl_hub.tensorrt.options import check_name, invoke_options, place_options, quoted, shape_words
from embedl_hub.tensorrt.program import call, check_maker, find_trtexec
from embedl_hub.tensorrt.shapes import ShapeProfile, shapes_of
from embedl_hub.tensorrt.types import as_engine_array, engine_dtype, log_precision, numpy_name
from embedl_hub.toolchain.answers import log_input_data, log_output
from embedl_hub.toolchain.model import Tensor, check_data
from embedl_hub.toolchain.refusal import RefusedError, refusals_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.tensorrt.log import RawFile
    from embedl_hub.tensorrt.place import Place
    from embedl_hub.tensorrt.program import Trtexec

_OUTPUT = "output.json"


def invoke_model(
    ctx: HubContext, place: Place, model: TensorRTCompiledModel, input_data: Mapping[str, np.ndarray]
) -> TensorRTInvocationResult:
    """Run an engine at a place."""
    with refusals_as(InvokeError):
        ctx.client.log_artifact(model.path, name="input", ctx=ctx)
        ctx.client.log_param("$runtime", "tensorrt")
        log_precision(ctx, model.engine)
        check_maker(model)
        data = {name: np.asarray(array) for name, array in input_data.items()}
        inputs, outputs = _tensors(model, "inputs"), _tensors(model, "outputs")
        if inputs:
            check_data(inputs, data, "input_data")
        profile = ShapeProfile.from_value(model.engine.get("shapes", {}))
        shapes_of(data, profile)
        log_input_data(ctx, input_data)
        program = find_trtexec(place)
        invoker = _Invoker(ctx, place, program, model, {tensor.name: tensor for tensor in outputs})
        parts = [invoker.run(number, batch, profile) for number, batch in enumerate(_batches(inputs, data))]
        output = _joined(parts)
    ctx.client.log_param("runtime_version", program.capabilities.version_text)
    log_output(ctx, output)
    return TensorRTInvocationResult.from_current_run(ctx, output=output)


def _tensors(model: TensorRTCompiledModel, key: str) -> list[Tensor]:
    return [Tensor(row["name"], row["dtype"], tuple(row["shape"])) for row in model.engine.get(key, ())]


def _batches(inputs: list[Tensor], data: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yield what the engine takes at once; inputs of a fixed batch may hold several."""
    fixed = {tensor.name: tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], int)}
    counts = {data[name].shape[0] // size for name, size in fixed.items()}
    if len(fixed) < len(inputs) or counts <= {1}:
        yield dict(data)
        return
    for number in range(counts.pop()):
        yield {name: data[name][number * size : (number + 1) * size] for name, size in fixed.items()}


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    if scalars := [name for name, array in parts[0].items() if array.ndim == 0]:
        raise RefusedError(f"Output {known(scalars)} has no axis to join several batches on; give one batch.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class _Invoker:
    """Runs one batch after another."""

    def __init__(
        self, ctx: HubContext, place: Place, program: Trtexec, model: TensorRTCompiledModel, outputs: dict[str, Tensor]
    ) -> None:
        self._ctx = ctx
        self._place = place
        self._program = program
        self._model = model
        self._outputs = outputs
        self._engine = place.send(model.path)

    def run(self, number: int, data: Mapping[str, np.ndarray], profile: ShapeProfile) -> dict[str, np.ndarray]:
        """Return the outputs for one batch."""
        capabilities, config = self._program.capabilities, self._place.config
        words = [f"--loadEngine={self._engine}", f"--loadInputs={self._sent(data)}", f"--exportOutput={_OUTPUT}"]
        if shapes := shapes_of(data, profile):
            words.append(f"--shapes={shape_words(shapes)}")
        words += [*invoke_options(capabilities), *place_options(config), *config.cli_args]
        what = "invoke" if number == 0 else f"invoke-{number}"
        answer = call(self._ctx, self._place, self._program, what, words)
        raw = {file.name: file for file in parse_raw_files(answer.text)}
        return self._checked(self._read(number, raw))

    def _sent(self, data: Mapping[str, np.ndarray]) -> str:
        """Bring the inputs there and return them as trtexec reads them; names of files are ours and plain."""
        pairs = []
        for index, (name, array) in enumerate(data.items()):
            check_name(name)
            path = self._place.scratch / f"input_{index}.bin"
            try:
                dtype = engine_dtype(array.dtype.name, self._program.capabilities.version)
                path.write_bytes(as_engine_array(array, dtype).tobytes())
            except (OverflowError, TypeError) as error:
                raise RefusedError(f"Input {name!r} cannot be given to TensorRT: {error}.") from error
            self._place.put(path, path.name)
            pairs.append(f"{quoted(name)}:{path.name}")
        return ",".join(pairs)

    def _read(self, number: int, raw: Mapping[str, RawFile]) -> dict[str, np.ndarray]:
        path = self._place.scratch / f"output_{number}.json"
        try:
            self._place.get(self._place.folder / _OUTPUT, path)
        except TransferError as error:
            raise RefusedError(
                f"trtexec on {self._place.title} ended well but wrote no outputs; what it printed is kept as "
                "'trtexec-invoke.log'."
            ) from error
        self._ctx.client.log_artifact(path, name=path.name)
        found = parse_outputs(path.read_text(encoding="utf-8", errors="replace"))
        output = {}
        for each in found:
            exact = self._exact(raw[each.name], each.shape) if each.name in raw else None
            output[each.name] = each.array(self._dtype(each.name)) if exact is None else exact
        return output

    def _exact(self, raw: RawFile, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return an output from its raw file; None where it is not a plain array of a type NumPy has."""
        dtype = numpy_name(raw.dtype)
        if dtype is None or raw.shape != shape:
            return None
        path = self._place.scratch / "output.raw"
        try:
            self._place.get(self._place.folder / raw.file, path)
        except TransferError:
            return None
        content = path.read_bytes()
        kind = np.dtype(dtype)
        if len(content) != kind.itemsize * int(np.prod(shape, dtype=np.int64)):
            return None
        return np.frombuffer(content, kind).reshape(shape).copy()

    def _dtype(self, name: str) -> str:
        return self._outputs[name].dtype if name in self._outputs else "float32"

    def _checked(self, output: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs in the types the model declares, or refuse what is not as it declares."""
        if not self._outputs:
            return output
        if set(output) != set(self._outputs):
            raise RefusedError(f"The engine gave {known(output)}; the model's outputs are {known(self._outputs)}.")
        checked = {}
        for name, tensor in self._outputs.items():
            array = output[name]
            fits = array.ndim == len(tensor.shape) and all(
                not isinstance(own, int) or own == size for own, size in zip(tensor.shape, array.shape, strict=True)
            )
            if not fits:
                raise RefusedError(f"Output {name!r} came with shape {list(array.shape)}; the model says {tensor}.")
            checked[name] = _declared(array, tensor)
        return checked


def _declared(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    if array.dtype.name == tensor.dtype:
        return array
    same: Any = np.dtype(tensor.dtype).kind if tensor.dtype not in {"string", "unknown", "bfloat16"} else None
    if same is None or same != array.dtype.kind:
        raise RefusedError(f"Output {tensor.name!r} came as {array.dtype.name}; the model says {tensor.dtype}.")
    return array.astype(tensor.dtype)
