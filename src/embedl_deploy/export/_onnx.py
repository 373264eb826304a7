"""Write a model as ONNX: torch's exporter, then the names, ranges and types that it cannot know, then the dialect.

What torch's exporter is given are the operators of `_frozen`, one per quantizer; in the file it makes they become
QuantizeLinear and DequantizeLinear.
"""

import ast
import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy import dialect as dialects
from embedl_deploy._graph.network import modules_of
from embedl_deploy._graph.shapes import Dims, DynamicShapes, read_dynamic_shapes, resized, shapes_of_call
from embedl_deploy.dialect._files import save
from embedl_deploy.dialect._model import (
    LABELS,
    PLACED,
    RANGES,
    REMEDIES,
    SENSITIVITY,
    attribute,
    note_remainders,
    replace_all,
    set_metadata,
)
from embedl_deploy.dialect._names import note_modules
from embedl_deploy.dialect._portable import remedies_text
from embedl_deploy.errors import ExportError, first_line, quoted_list
from embedl_deploy.export._check import check_file
from embedl_deploy.export._fixed_sizes import settled_at
from embedl_deploy.export._frozen import exact_weights, freeze, is_int4
from embedl_deploy.export._operators import DOMAIN, translations, write_quantizers
from embedl_deploy.nn import QuantStub
from embedl_deploy.quantize import Sensitivity, retarget
from embedl_deploy.quantize._quantization import find_quantization
from embedl_deploy.target import TargetLike, choose_dialect, get_target

_SCOPES = "pkg.torch.onnx.name_scopes"
_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Where nodes come from."""

    place: str  # Names the nodes.
    modules: tuple[str, ...]  # The user's modules, the main one first; empty is the model itself.
    whole: bool = False  # The user's own module is called as it is, so that names inside it are the user's too.


class Scopes:
    """Finds the origin of a node by the scope that torch's exporter noted at it.

    A model that is no graph of ours is called as it is: every scope in it is a name of the user's.
    """

    def __init__(self, frozen: nn.Module) -> None:
        first = {id(part): name for name, part in frozen.named_modules()}
        self._first = {name: first[id(part)] for name, part in frozen.named_modules(remove_duplicate=False)}
        self._called = _called(frozen) if isinstance(frozen, fx.GraphModule) else {"": Origin("", ("",), whole=True)}

    def of(self, node: onnx.NodeProto) -> Origin | None:
        """Return where a node comes from; None when the exporter added it."""
        text = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
        # The last scope is the exporter's own name for the node.
        for scope in reversed(ast.literal_eval(text)[:-1]):
            for name in _prefixes(str(scope)):
                if (origin := self._called.get(name)) is not None:
                    return self._inside(node, str(scope), origin) if origin.whole else origin
        return None

    def _inside(self, node: onnx.NodeProto, scope: str, origin: Origin) -> Origin:
        """Return the innermost module of the user's on the way into one that is called as it is.

        torch's exporter folds a batch norm into the convolution and keeps the scope of the norm; the weight tells.
        """
        inner = next((self._first[name] for name in _prefixes(scope) if name in self._first), "")
        holders = (self._first.get(name.rpartition(".")[0], "") for name in node.input)
        modules = tuple(dict.fromkeys((*filter(None, holders), inner)))
        return Origin(modules[0], modules) if modules[0].startswith(origin.place) else origin


def _prefixes(scope: str) -> list[str]:
    parts = scope.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def _called(frozen: fx.GraphModule) -> dict[str, Origin]:
    """Return, for every module the graph calls, where it comes from."""
    places = {node: str(node.meta.get("place", node.target)) for node in frozen.graph.nodes}
    found = {}
    for node in frozen.graph.nodes:
        if node.op == "call_module":
            # A stub belongs to the value it stands on.
            source = node.args[0] if str(node.target).startswith("stubs.") else node
            modules = modules_of(source)
            whole = modules == (str(node.target),) and "origins" not in node.meta
            found[str(node.target)] = Origin(places[source], modules, whole=whole)
    return found


def costs_by_module(model: nn.Module, given: Sensitivity | None) -> str:
    """Return what quantizing each of the user's modules costs, as the file keeps it; empty when it is not known.

    What is not given may travel with the model: `quantize` found it out on the way to a goal.
    """
    record = find_quantization(model)
    costs = record.sensitivity if given is None and record is not None else given
    if costs is None:
        return ""
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    modules = {str(node.meta.get("place", node.target)): modules_of(node)[0] for node in nodes}
    values: dict[str, float] = {}
    for cost in costs.layers:
        if cost.place not in modules:
            raise ExportError(
                f"the sensitivity is of another model: this one has no layer {cost.place!r}, it has: "
                f"{quoted_list(modules)}. Give what sensitivity(model, args) returned for the model that is exported."
            )
        if math.isfinite(cost.noise):
            values[modules[cost.place]] = values.get(modules[cost.place], 0.0) + cost.noise
    return json.dumps({"version": _VERSION, "method": costs.method, "unit": costs.unit, "modules": values})


OPSET = 21
_REGISTRATION = "torch.onnx._internal.exporter._registration"


def export_onnx(  # noqa: PLR0913 - the contract's, and what a user may add
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | Path,
    *,
    dialect: str | dialects.Dialect | None = None,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: bool = False,
    dynamic_shapes: DynamicShapes | None = None,
    fallback: bool = False,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    sensitivity: Sensitivity | None = None,
    samples: Iterable[Any] | None = None,
    runtime_version: str = "",
) -> Path:
    """Write a transformed model, quantized or not, as an ONNX file.

    Scales and zero points are initializers, batch norm is folded, nodes carry the names of the user's modules.

    Args:
        model: What `quantize` or `transform` made.
        args: Example inputs.
        path: Where the file goes.
        dialect: How the file is written, by name or one of your own; `None` writes the canonical form, from which
            `relower` makes any of them.
        target: What the file is for, instead of a dialect: a target or its name, ``here``, the name of a kernel family,
            or a device with ``architecture`` and ``features``, as the hub's ``DeviceSpec``.
        kwargs: Example keyword inputs.
        dynamic_batch: Leave the first dimension of every input open.
        dynamic_shapes: Leave these dimensions open, under these names: by the name of an input, or in the order of the
            inputs, ``{dimension: name}`` as ``torch.export`` takes it. Give `transform` the same.
        fallback: Leave in float what the dialect cannot express, instead of refusing.
        input_names: Names of the inputs in the file.
        output_names: Names of the outputs in the file.
        sensitivity: What `embedl_deploy.quantize.sensitivity` returned for this model, to be read beside the times of
            a profile; left out, what `quantize` found out on the way to a goal.
        samples: Inputs on which a portable dialect chooses each layer's weights, each as for `verify`; left out, those
            that `quantize` kept of the calibration data.
        runtime_version: The version of the runtime that will read the file; what only newer ones run in integers stays
            float, and `notes_of` tells where. Left out, the target's, where that knows it.

    Raises:
        ExportError: The model is not calibrated, the folder is missing, torch cannot export it, or the file would not
            be valid; nothing is written then.
        InputError: An open dimension is of no input, or the model does not take the example inputs.
        DialectError: The dialect is unknown or cannot express the model.
        TargetError: The target is unknown, or names no dialect.
    """
    chosen = choose_dialect(dialect, target)
    output = Path(path)
    if not output.parent.is_dir():
        raise ExportError(f"there is no folder '{output.parent}' to write '{output.name}' to; make it first.")
    _check(model)
    if chosen is not None:
        model = _targeted(model, chosen, fallback=fallback)
    costs = costs_by_module(model, sensitivity)
    frozen = freeze(model)
    dims = _open_dims(model, args, dict(kwargs or {}), dynamic_shapes, dynamic_batch=dynamic_batch)
    proto = _export(frozen, args, dict(kwargs or {}), dims, input_names, output_names)
    _finish(proto, model, frozen)
    placed = _placed(proto, model)
    set_metadata(proto, {SENSITIVITY: costs, **placed})
    if chosen is None or placed.get(PLACED) != chosen.name:
        # Weights of a model that was placed for its dialect are not rounded again.
        note_remainders(proto, exact_weights(frozen))
    if chosen is None:
        check_file(proto, model)
    else:
        record = find_quantization(model)
        if samples is None and record is not None:
            # A file without an open batch takes as many samples at once as the example inputs hold.
            samples = record.samples_like(args, dims)
        if not runtime_version and target is not None:
            runtime_version = get_target(target).runtime_version
        proto = dialects.lower(
            proto, chosen, fallback=fallback, samples=samples, runtime_version=runtime_version
        )  # fmt: skip
        check_file(proto, model, optimize=chosen.is_onnxruntime)
    return save(proto, output)


def _targeted(model: nn.Module, dialect: dialects.Dialect, *, fallback: bool) -> nn.Module:
    """Return a quantized model as it is in a dialect's file; others, and those with a fallback, as they are."""
    record = find_quantization(model)
    if record is None or fallback or dialect.name not in record.placement.variants:
        return model
    return retarget(model, dialect)


def _check(model: nn.Module) -> None:
    """Refuse a model whose pairs have no scales."""
    for part in model.modules():
        if isinstance(part, QuantStub) and part.quantizes and not part.calibrated:
            raise ExportError(
                f"the pair at '{part.label}' has no scale; call calibrate(model, batches) before export_onnx."
            )


def _placed(proto: onnx.ModelProto, model: nn.Module) -> dict[str, str]:
    """Say whose file the model rounds like, and what its weights were fitted to."""
    record = find_quantization(model)
    if record is None or not record.placement.dialect:
        return {}
    readers = {name: node.name for node in proto.graph.node for name in node.input}
    codes = {node.input[0]: node.output[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    rows = [
        dialects.RemedyRow(
            readers.get(codes.get(f"{name}.codes", ""), ""), f"{name}.codes", fit.remedy, fit.cost_db, fit.sqnr_db,
            fit.measured, dict(fit.tried),
        )
        for name, fit in record.fitted.items()
    ]  # fmt: skip
    return {PLACED: record.placement.dialect, REMEDIES: remedies_text(rows)}


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dims: Dims,
    input_names: list[str] | None,
    output_names: list[str] | None,
) -> onnx.ModelProto:
    """Run torch's exporter."""
    shapes = None
    if any(dims):
        args, kwargs = resized(args, kwargs, dims)
        shapes = shapes_of_call(model, args, kwargs, [dict(each) or None for each in dims])
    try:
        with _quiet():
            program = torch.onnx.export(
                model, args, kwargs=dict(kwargs), dynamo=True, opset_version=OPSET, dynamic_shapes=shapes,
                input_names=input_names, output_names=output_names, verbose=False,
                custom_translation_table=translations(),
            )  # fmt: skip
    except Exception as exc:
        cause: BaseException = exc
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        if any(dims):
            raise ExportError(f"{settled_at(model, args, kwargs, dims)} torch says: {first_line(cause)}.") from exc
        raise ExportError(f"torch cannot export this model: {first_line(cause)}.") from exc
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


def _open_dims(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: DynamicShapes | None,
    *,
    dynamic_batch: bool,
) -> Dims:
    """Return the open dimensions of every leaf of the call; an open batch is the first dimension of every tensor."""
    dims = read_dynamic_shapes(model, args, kwargs, dynamic_shapes)
    if not dynamic_batch:
        return dims
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    batch = [{0: "batch"} if isinstance(leaf, torch.Tensor) and leaf.ndim else {} for leaf in leaves]
    return tuple({**own, **named} for own, named in zip(batch, dims or batch, strict=True))


def _finish(proto: onnx.ModelProto, model: nn.Module, frozen: nn.Module) -> None:
    """Add what the exporter does not know."""
    graph = proto.graph
    labels = write_quantizers(graph, frozen)
    _pool_globally(graph)
    _write_int4(graph, frozen)
    modules = _name_nodes(graph, frozen)
    ranges = {
        labels[stub.label]: list(stub.current_bounds())
        for stub in model.modules()
        if isinstance(stub, QuantStub) and stub.calibrated and stub.label in labels
    }
    set_metadata(proto, {RANGES: json.dumps(ranges), LABELS: json.dumps(labels)})
    note_modules(proto, modules)
    replace_all(proto.opset_import, [entry for entry in proto.opset_import if entry.domain != DOMAIN])
    del proto.functions[:]


def _pool_globally(graph: onnx.GraphProto) -> None:
    """Write a mean over all of a picture as the pooling it was: runtimes have kernels for that name only."""
    constants = {value.name: value for value in graph.initializer}
    values = (*graph.value_info, *graph.input, *graph.output)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    for node in graph.node:
        if node.op_type != "ReduceMean" or len(node.input) < 2 or node.input[1] not in constants:
            continue
        axes = [int(axis) for axis in numpy_helper.to_array(constants[node.input[1]]).ravel()]
        rank = ranks.get(node.output[0], 0)
        spatial = rank >= 3 and sorted(axis % rank for axis in axes) == list(range(2, rank))
        if spatial and attribute(node, "keepdims", 1) == 1:
            node.op_type = "GlobalAveragePool"
            del node.input[1:]
            del node.attribute[:]
    read = {name for node in graph.node for name in node.input}
    used = [value for value in graph.initializer if value.name in read]
    if len(used) < len(graph.initializer):
        replace_all(graph.initializer, used)


def _write_int4(graph: onnx.GraphProto, frozen: nn.Module) -> None:
    """Write codes of four bits as such."""
    names = {f"{name}.codes" for name, part in frozen.named_modules() if is_int4(part)}
    for tensor in graph.initializer:
        if tensor.name in names:
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(
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
            # Remarks about the exporter's own work go: they are most of a file's text.
            del node.metadata_props[:]
            node.metadata_props.add(key="edgeproof.module", value=origin.modules[0])
    return modules
