"""Write a model as ONNX: torch's exporter, then the names, ranges and types that it cannot know, then the dialect.

What torch's exporter is given are the operators of `_operators`: QuantizeLinear, DequantizeLinear, and a marker that is
taken out again once it has told which tensor of the file a stub stood on.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn

from embedl_deploy import dialect as dialects
from embedl_deploy.dialect._model import LABELS, RANGES, SENSITIVITY, note_remainders, set_metadata
from embedl_deploy.dialect._names import note_modules
from embedl_deploy.errors import ExportError
from embedl_deploy.export._frozen import exact_weights, freeze, is_int4
from embedl_deploy.export._names import Costs, Scopes, costs_by_module
from embedl_deploy.export._operators import DOMAIN
from embedl_deploy.nn import QuantStub
from embedl_deploy.nn.samples import kept_samples

OPSET = 21
_REGISTRATION = "torch.onnx._internal.exporter._registration"


def export_onnx(  # noqa: PLR0913 - the contract's, and what a user may add
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | Path,
    *,
    dialect: str | None = None,
    device: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: bool = False,
    fallback: bool = False,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    sensitivity: Costs | None = None,
    samples: Iterable[Any] | None = None,
) -> Path:
    """Write a transformed model, quantised or not, as an ONNX file.

    Scales and zero points are initialisers, batch norm is folded, nodes carry the names of the user's modules.

    Args:
        model: What `quantize` or `transform` made.
        args: Example inputs.
        path: Where the file goes.
        dialect: The runtime it is for, one of ``embedl_deploy.dialect.DIALECTS``; `None` writes the canonical form,
            from which `relower` makes any of them.
        device: What the file is for, instead of a dialect: ``here``, the name of a kernel family, or a description with
            ``architecture`` and ``features``, as the hub's ``DeviceSpec``; the dialect follows from it.
        kwargs: Example keyword inputs.
        dynamic_batch: Leave the first dimension of every input open.
        fallback: Leave in float what the dialect cannot express, instead of refusing.
        input_names: Names of the inputs in the file.
        output_names: Names of the outputs in the file.
        sensitivity: What `embedl_deploy.quantize.sensitivity` returned for this model, to be read beside the times of
            a profile; left out, what `quantize` found out on the way to a goal.
        samples: Inputs on which a portable dialect chooses each layer's weights, each as for `verify`; left out, those
            that `quantize` kept of the calibration data.

    Raises:
        ExportError: The model is not calibrated, the folder is missing, or torch cannot export it.
        DialectError: The dialect is unknown or cannot express the model.
    """
    if device is not None:
        if dialect is not None:
            raise ExportError("give dialect or device, not both: the dialect follows from the device.")
        dialect = dialects.dialect_for(device).name
    if dialect is not None:
        dialects.get_dialect(dialect)
    target = Path(path)
    if not target.parent.is_dir():
        raise ExportError(f"there is no folder '{target.parent}' to write '{target.name}' to; make it first.")
    _check(model)
    costs = costs_by_module(model, sensitivity)
    frozen = freeze(model)
    proto = _export(frozen, args, dict(kwargs or {}), dynamic_batch, input_names, output_names)
    _finish(proto, model, frozen)
    set_metadata(proto, {SENSITIVITY: costs})
    note_remainders(proto, exact_weights(frozen))
    if dialect is not None:
        data = kept_samples(model, _batch_of(args)) if samples is None else samples
        proto = dialects.lower(proto, dialect, fallback=fallback, samples=data)
    onnx.save(proto, target)
    return target


def _batch_of(args: tuple[Any, ...]) -> int:
    """Return how many samples the example inputs hold: a file without an open batch takes so many at once."""
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.ndim]
    return len(tensors[0]) if tensors else 1


def _check(model: nn.Module) -> None:
    """Refuse a model whose pairs have no scales."""
    for part in model.modules():
        if isinstance(part, QuantStub) and part.quantizes and not part.calibrated:
            raise ExportError(
                f"the pair at '{part.label}' has no scale; call calibrate(model, batches) before export_onnx."
            )


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_batch: bool,
    input_names: list[str] | None,
    output_names: list[str] | None,
) -> onnx.ModelProto:
    """Run torch's exporter."""
    shapes = _open_batch(model, args, kwargs) if dynamic_batch else None
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                args,
                kwargs=kwargs,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=input_names,
                output_names=output_names,
                verbose=False,
            )
    except Exception as exc:
        raise ExportError(
            f"torch cannot export this model: {_first_line(exc)}. "
            "If it fails with dynamic_batch=True only, the model fixes its batch somewhere; leave it out."
        ) from exc
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own remarks and warnings away: they are about its code, not about the model."""
    # It logs once per export and operator that torchvision is not installed, which nobody asked for.
    remarks = logging.getLogger(_REGISTRATION)
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.setLevel(level)


def _open_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave the first dimension of every tensor open."""
    batch = torch.export.Dim("batch", min=1)

    def of(value: Any) -> Any:
        return {0: batch} if isinstance(value, torch.Tensor) and value.ndim else None

    names = (
        [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]
        if isinstance(model, fx.GraphModule)
        else []
    )
    if kwargs:
        return {**dict(zip(names, map(of, args), strict=False)), **{name: of(one) for name, one in kwargs.items()}}
    return tuple(of(one) for one in args)


def _first_line(exc: Exception) -> str:
    """Return the first line of an exception's text, of its innermost cause."""
    while exc.__cause__ is not None and isinstance(exc.__cause__, Exception):
        exc = exc.__cause__
    return next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)


def _finish(proto: onnx.ModelProto, model: nn.Module, frozen: nn.Module) -> None:
    """Add what the exporter does not know."""
    graph = proto.graph
    labels = _take_marks_out(graph)
    _pool_globally(graph)
    _narrow(graph, frozen)
    modules = _name_nodes(graph, frozen)
    ranges = {
        labels[stub.label]: list(stub.current_bounds())
        for stub in model.modules()
        if isinstance(stub, QuantStub) and stub.calibrated and stub.label in labels
    }
    set_metadata(proto, {RANGES: json.dumps(ranges), LABELS: json.dumps(labels)})
    note_modules(proto, modules)
    keep = [one for one in proto.opset_import if one.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(keep)
    del proto.functions[:]


def _take_marks_out(graph: onnx.GraphProto) -> dict[str, str]:
    """Remove the markers; return the tensor each label stands for."""
    source: dict[str, str] = {}
    labels: dict[str, str] = {}
    kept = []
    for node in graph.node:
        if node.domain == DOMAIN:
            origin = source.get(node.input[0], node.input[0])
            source[node.output[0]] = origin
            labels[node.attribute[0].s.decode()] = origin
        else:
            kept.append(node)
    for node in kept:
        for at, name in enumerate(node.input):
            node.input[at] = source.get(name, name)
    ends = {output.name: source[output.name] for output in graph.output if output.name in source}
    for wanted, origin in ends.items():
        _rename(kept, origin, wanted)
        labels = {label: wanted if name == origin else name for label, name in labels.items()}
    del graph.node[:]
    graph.node.extend(kept)
    return labels


def _rename(nodes: list[onnx.NodeProto], old: str, new: str) -> None:
    """Give a tensor another name."""
    for node in nodes:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == old:
                    names[at] = new


def _pool_globally(graph: onnx.GraphProto) -> None:
    """Write a mean over all of a picture as the pooling it was: runtimes have kernels for that name only."""
    constants = {one.name: one for one in graph.initializer}
    ranks = {one.name: len(one.type.tensor_type.shape.dim) for one in (*graph.value_info, *graph.input, *graph.output)}
    for node in graph.node:
        if node.op_type != "ReduceMean" or len(node.input) < 2 or node.input[1] not in constants:
            continue
        axes = sorted(int(one) for one in numpy_helper.to_array(constants[node.input[1]]).ravel())
        keep = next((one.i for one in node.attribute if one.name == "keepdims"), 1)
        rank = ranks.get(node.output[0], 0)
        if rank >= 3 and keep == 1 and sorted(at % rank for at in axes) == list(range(2, rank)):
            node.op_type = "GlobalAveragePool"
            del node.input[1:]
            del node.attribute[:]
    read = {name for node in graph.node for name in node.input}
    used = [one for one in graph.initializer if one.name in read]
    if len(used) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(used)


def _narrow(graph: onnx.GraphProto, frozen: nn.Module) -> None:
    """Write codes of four bits as such."""
    names = {f"{name}.codes" for name, part in frozen.named_modules() if is_int4(part)}
    for at, tensor in enumerate(graph.initializer):
        if tensor.name in names:
            values = numpy_helper.to_array(tensor)
            graph.initializer[at].CopyFrom(
                helper.make_tensor(tensor.name, onnx.TensorProto.INT4, values.shape, values.ravel().tolist())
            )
    for value in graph.value_info:
        if value.name in names:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT4


def _name_nodes(graph: onnx.GraphProto, frozen: nn.Module) -> dict[str, tuple[str, ...]]:
    """Name nodes after the places they come from; return the user's modules of every node."""
    scopes = Scopes(frozen)
    used: dict[str, int] = {}
    modules: dict[str, tuple[str, ...]] = {}
    for node in graph.node:
        origin = scopes.of(node)
        base = f"{origin.place}/{node.op_type}" if origin is not None and origin.place else node.op_type
        number = used.get(base, 0)
        used[base] = number + 1
        node.name = base if not number else f"{base}_{number}"
        if origin is not None:
            modules[node.name] = origin.modules
            _set_metadata(node, "edgeproof.module", origin.modules[0])
    return modules


def _set_metadata(node: onnx.NodeProto, key: str, value: str) -> None:
    """Keep one remark on a node, and drop those about the exporter's own work: they are most of a file's text."""
    del node.metadata_props[:]
    entry = node.metadata_props.add()
    entry.key, entry.value = key, value
