"""Measure an engine, or run it, by trtexec where it runs, with every version's defaults pinned to one meaning.

Raw files (--dumpRawBindingsToFile) hold outputs exactly; the JSON beside them (--exportOutput) has six digits, and is
what counts where an older trtexec writes no raw files or a type that NumPy does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_device.statistics import BOUND_RULE, PERCENTILE_RULE, judge, summarize, tail_facts
from embedl_hub.core.document import LayerTable, ProfileDocument, Runtime
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.errors import CommandError, TransferError, quoted_list
from embedl_hub.machine.program import log_input_data, log_output
from embedl_hub.models.module_names import source_of, with_modules
from embedl_hub.models.onnx_file import Tensor, check_data
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tensorrt import log, options
from embedl_hub.toolchains.tensorrt.components import TensorRTInvocationResult, TensorRTProfilingResult
from embedl_hub.toolchains.tensorrt.layers import (
    join_layers,
    parse_layer_info,
    parse_outputs,
    parse_profile,
    parse_times,
    read_file,
    uncovered,
)
from embedl_hub.toolchains.tensorrt.program import ask_gpu, call, find_trtexec, log_model

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.document import LayerRow
    from embedl_hub.machine.machine import Machine
    from embedl_hub.paths import RemotePath
    from embedl_hub.toolchains.tensorrt.components import TensorRTCompiledModel
    from embedl_hub.toolchains.tensorrt.config import TrtexecConfig
    from embedl_hub.toolchains.tensorrt.layers import Query
    from embedl_hub.toolchains.tensorrt.program import Trtexec

_TIMES, _LAYER_TIMES, _LAYERS = "times.json", "layer_times.json", "layers.json"
_MIB_IN_MB = 1.048576
# The same numbers, printed with other digits.
_SUMMARY_AGREES_WITHIN = 0.02
# Layers run one by one are slower than together, streams in parallel faster; a wrong unit is a thousand times off.
_LAYERS_AGREE_WITHIN = 50.0

# $1 the GPU's number. Prints what its sensors say; every line is optional.
_SENSE = """\
command -v nvidia-smi >/dev/null 2>&1 || exit 0
for field in temperature.gpu clocks.sm clocks.mem power.draw pstate utilization.gpu; do
  echo "$field=$(nvidia-smi --id="$1" --query-gpu="$field" --format=csv,noheader,nounits 2>/dev/null | head -n 1)"
done
reasons=$(nvidia-smi --id="$1" --query-gpu=clocks_event_reasons.active --format=csv,noheader 2>/dev/null)
[ -n "$reasons" ] || reasons=$(nvidia-smi --id="$1" --query-gpu=clocks_throttle_reasons.active --format=csv,noheader)
echo "clocks_event_reasons=$reasons"
exit 0
"""
# NVML's bits for what holds the clocks down against the user's wish (nvml.h: nvmlClocksEventReason…).
_REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal slowdown by the driver", 0x40: "thermal slowdown",
    0x80: "power brake",
}  # fmt: skip
_OUTPUT = "output.json"


def profile_model(
    ctx: HubContext, machine: Machine[TrtexecConfig], model: TensorRTCompiledModel
) -> TensorRTProfilingResult:
    """Measure an engine at a machine."""
    with refusals_as(ProfileError):
        log_model(ctx, model)
        program = find_trtexec(machine)
        engine = machine.send(model.path)
        before = _sense(machine)
        answer = call(ctx, machine, program, "profile", [f"--loadEngine={engine}", *_args(machine, program, model)])
        after = _sense(machine)
        document = _document(ctx, machine, program, answer, {"before": before, "after": after})
        source = source_of(ctx, model)
        table = _layers(ctx, machine, document, source)
        facts = _source_facts(table.rows, source)
        document = with_modules(replace(document, layers=table).with_facts(source=facts), source)
    log_document(ctx, document)
    return TensorRTProfilingResult.from_document(ctx, document)


def _args(machine: Machine[TrtexecConfig], program: Trtexec, model: TensorRTCompiledModel) -> list[str]:
    args = [f"--exportTimes={_TIMES}", *options.measure_options(program.capabilities, machine.config)]
    if machine.config.layers:
        args += [f"--exportProfile={_LAYER_TIMES}", f"--exportLayerInfo={_LAYERS}"]
    shapes = options.ShapeProfile.from_value(model.engine.get("shapes", {})).best
    if shapes:
        args.append(f"--shapes={options.shape_words(shapes)}")
    return [*args, *options.place_options(machine.config), *machine.config.cli_args]


def _fetched(ctx: HubContext, machine: Machine[TrtexecConfig], name: str) -> str:
    """Bring a file of trtexec's here and keep it as it is, before anybody reads it."""
    path = ctx.artifact_dir / name
    try:
        machine.get(machine.folder / name, path)
    except TransferError as error:
        raise RefusedError(
            f"trtexec on {machine.title} ended well but wrote no {name}; what it printed is kept as "
            "'trtexec-profile.log'."
        ) from error
    ctx.client.log_artifact(path, name=name)
    return read_file(path, machine.title)


def _document(
    ctx: HubContext,
    machine: Machine[TrtexecConfig],
    program: Trtexec,
    answer: str,
    sensors: Mapping[str, Mapping[str, str]],
) -> ProfileDocument:
    queries = parse_times(_fetched(ctx, machine, _TIMES))
    check_summary(queries, answer)
    times = [query.latency_ms for query in queries]
    samples_us = tuple(time * 1e3 for time in times)
    load_s, memory_mib = log.parse_seconds(answer, "Engine deserialized"), log.parse_memory_mib(answer)
    config, after = machine.config, sensors["after"]
    return ProfileDocument(
        summarize(times),
        {
            "load_time_ms": None if load_s is None else load_s * 1e3,
            "first_latency_ms": None,
            "iterations": len(times),
            "warmup": log.parse_warmups(answer),
            "peak_memory_mb": None if memory_mib is None else memory_mib * _MIB_IN_MB,
        },
        samples_us,
        judgement=judge(samples_us, throttling(after), [] if after else ["the GPU's clocks"]),
        memory_method="GPU memory that TensorRT says it manages, from trtexec's log",
        runtime=Runtime("tensorrt", program.capabilities.version_text),
        place=machine.title,
        facts={
            "tool": {"name": "trtexec", "path": program.path, "version": program.capabilities.version_text},
            "settings": {
                "cuda_graph": config.cuda_graph, "spin_wait": config.spin_wait, "data_transfers": config.data_transfers,
                "cli_args": ctx.client.redactor.value("cli_args", list(config.cli_args)),
            },
            "tails": tail_facts(samples_us),
            "compute_ms": summarize([query.compute_ms for query in queries])._asdict(),
            "placement": None,
            "warnings": log.warnings(answer)[:50],
            "method": {
                "clock": "CUDA events around each query, by trtexec; "
                + ("copies included" if config.data_transfers else "copies to and from the GPU not included"),
                "warmup_rule": f"{config.warmup_seconds:g} s",
                "stop_rule": f"at least {config.iterations} samples and {config.min_seconds:g} s",
                "percentile_rule": PERCENTILE_RULE,
                "bound_rule": BOUND_RULE,
                "layers": "a run of their own, with the profiler attached",
            },
            "environment": {"device": log.parse_facts(answer), "gpu": dict(program.gpu), **sensors},
        },
    )  # fmt: skip


def check_summary(queries: Sequence[Query], text: str) -> None:
    """Hold the times of the file against those that were printed: a unit that changed would show."""
    # Not the mean: trtexec adds up in 32 bits, which goes wrong over many samples.
    printed = log.parse_statistics(text, "Latency")
    if "median" not in printed:
        return
    value, unit = printed["median"]
    own = median(query.latency_ms for query in queries)
    if unit != "ms" or abs(value - own) > _SUMMARY_AGREES_WITHIN * own + 1e-3:
        raise RefusedError(
            f"trtexec printed a median latency of {value:g} {unit} but wrote times with a median of {own:g} ms; one of "
            "the two is in a form this hub does not know. Both are kept with the run."
        )


def throttling(sensors: Mapping[str, str]) -> list[str]:
    """Return what the GPU says holds its clocks down."""
    try:
        bits = int(sensors.get("clocks_event_reasons", "0"), 16)
    except ValueError:
        return []
    return [f"the GPU reports {words}" for bit, words in _REASONS.items() if bits & bit]


def _sense(machine: Machine[TrtexecConfig]) -> dict[str, str]:
    with contextlib.suppress(CommandError):
        return ask_gpu(machine, _SENSE)
    return {}


def _layers(
    ctx: HubContext, machine: Machine[TrtexecConfig], document: ProfileDocument, source: onnx.ModelProto | None
) -> LayerTable:
    if not machine.config.layers:
        return LayerTable((), {"runs": 0, "mean_run_ms": None})
    profile = parse_profile(_fetched(ctx, machine, _LAYER_TIMES))
    infos = parse_layer_info(_fetched(ctx, machine, _LAYERS))
    whole = sum(layer.average_ms or 0 for layer in profile.layers)
    ratio = whole / compute if isinstance(compute := document.fact("compute_ms", "mean"), float) and compute else 0.0
    if ratio and not 1 / _LAYERS_AGREE_WITHIN < ratio < _LAYERS_AGREE_WITHIN:
        raise RefusedError(
            f"trtexec's layers take {whole:g} ms together but the whole engine {compute:g} ms; one of the two files "
            "is in a form this hub does not know. Both are kept with the run."
        )
    return LayerTable(join_layers(profile, infos, source), {"runs": profile.count, "mean_run_ms": whole or None})


def _source_facts(rows: Sequence[LayerRow], source: onnx.ModelProto | None) -> dict[str, object]:
    if source is None:
        return {"nodes": [], "is_compiled_model": True, "nodes_without_layer": []}
    return {
        "nodes": [{"name": node.name, "op_type": node.op_type} for node in source.graph.node],
        "is_compiled_model": False,
        "nodes_without_layer": uncovered(rows, source) if rows else [],
    }


def invoke_model(
    ctx: HubContext,
    machine: Machine[TrtexecConfig],
    model: TensorRTCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    use_compiled_names: bool,  # noqa: ARG001 - TensorRT keeps the names; there are no others
) -> TensorRTInvocationResult:
    """Run an engine at a machine."""
    with refusals_as(InvokeError):
        log_model(ctx, model)
        data = {name: np.asarray(array) for name, array in input_data.items()}
        inputs, outputs = _tensors(model, "inputs"), _tensors(model, "outputs")
        if inputs:
            check_data(inputs, data, "input_data")
        profile = options.ShapeProfile.from_value(model.engine.get("shapes", {}))
        options.shapes_of(data, profile)
        log_input_data(ctx, input_data)
        program = find_trtexec(machine)
        declared = {tensor.name: tensor for tensor in outputs}
        invoker = _Invoker(ctx, machine, program, machine.send(model.path), declared)
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
        raise RefusedError(f"Output {quoted_list(scalars)} has no axis to join several batches on; give one batch.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class _Invoker:
    """Runs one batch after another."""

    ctx: HubContext
    machine: Machine[TrtexecConfig]
    program: Trtexec
    engine: RemotePath
    outputs: Mapping[str, Tensor]

    def run(self, number: int, data: Mapping[str, np.ndarray], profile: options.ShapeProfile) -> dict[str, np.ndarray]:
        """Return the outputs for one batch."""
        capabilities, config = self.program.capabilities, self.machine.config
        words = [f"--loadEngine={self.engine}", f"--loadInputs={self._sent(data)}", f"--exportOutput={_OUTPUT}"]
        if shapes := options.shapes_of(data, profile):
            words.append(f"--shapes={options.shape_words(shapes)}")
        words += [*options.invoke_options(capabilities), *options.place_options(config), *config.cli_args]
        what = "invoke" if number == 0 else f"invoke-{number}"
        answer = call(self.ctx, self.machine, self.program, what, words)
        raw = {file.name: file for file in log.parse_raw_files(answer)}
        return self._checked(self._read(number, raw))

    def _sent(self, data: Mapping[str, np.ndarray]) -> str:
        """Bring the inputs there and return them as trtexec reads them; names of files are ours and plain."""
        pairs = []
        for index, (name, array) in enumerate(data.items()):
            path = self.machine.scratch / f"input_{index}.bin"
            try:
                dtype = options.engine_dtype(array.dtype.name, self.program.capabilities.version)
                path.write_bytes(options.as_engine_array(array, dtype).tobytes())
            except (OverflowError, TypeError) as error:
                raise RefusedError(f"Input {name!r} cannot be given to TensorRT: {error}.") from error
            self.machine.put(path, path.name)
            pairs.append(f"{options.quoted(name)}:{path.name}")
        return ",".join(pairs)

    def _read(self, number: int, raw: Mapping[str, log.RawFile]) -> dict[str, np.ndarray]:
        path = self.machine.scratch / f"output_{number}.json"
        try:
            self.machine.get(self.machine.folder / _OUTPUT, path)
        except TransferError as error:
            raise RefusedError(
                f"trtexec on {self.machine.title} ended well but wrote no outputs; what it printed is kept as "
                "'trtexec-invoke.log'."
            ) from error
        self.ctx.client.log_artifact(path, name=path.name)
        found = parse_outputs(read_file(path, self.machine.title))
        output = {}
        for each in found:
            exact = self._exact(raw[each.name], each.shape) if each.name in raw else None
            dtype = self.outputs[each.name].dtype if each.name in self.outputs else "float32"
            output[each.name] = each.array(dtype) if exact is None else exact
        return output

    def _exact(self, raw: log.RawFile, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return an output from its raw file; None where it is not a plain array of a type NumPy has."""
        dtype = options.numpy_name(raw.dtype)
        if dtype is None or raw.shape != shape:
            return None
        path = self.machine.scratch / "output.raw"
        try:
            self.machine.get(self.machine.folder / raw.file, path)
        except TransferError:
            return None
        content = path.read_bytes()
        kind = np.dtype(dtype)
        if len(content) != kind.itemsize * int(np.prod(shape, dtype=np.int64)):
            return None
        return np.frombuffer(content, kind).reshape(shape).copy()

    def _checked(self, output: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs in the types the model declares, or refuse what is not as it declares."""
        if not self.outputs:
            return output
        if set(output) != set(self.outputs):
            raise RefusedError(
                f"The engine gave {quoted_list(output)}; the model's outputs are {quoted_list(self.outputs)}."
            )
        checked = {}
        for name, tensor in self.outputs.items():
            array = output[name]
            if not tensor.takes(array.shape):
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
