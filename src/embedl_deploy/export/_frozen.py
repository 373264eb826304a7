"""The network as it is written to a file: integer weights, folded batch norm, stubs as operators of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from embedl_deploy._graph.clone import copy_deep
from embedl_deploy._graph.network import modules_of
from embedl_deploy.nn import QuantizedConv, QuantizedElementwise, QuantizedLinear, QuantStub, WeightQuantizer
from embedl_deploy.nn.number import NumberFormat, Precision

# torch's exporter sees one operator per quantizer and none of its numbers: `edgeproof::value` for a stub and
# `edgeproof::weight` for stored codes, each with the number of its entry. The exporter's cost grows with the number of
# operators and of tensors; scales and zero points are put in once the file is there.
_LIBRARY = torch.library.Library("edgeproof", "DEF")  # type: ignore[no-untyped-call]


def _operator(schema: str, result: Callable[..., torch.Tensor]) -> Any:
    """Declare an operator by its schema and a function that makes an empty result."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, result, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    return getattr(torch.ops.edgeproof, name).default


def _empty(like: torch.Tensor, _entry: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(like, dtype=dtype)


VALUE = _operator("value(Tensor value, int entry) -> Tensor", _empty)
WEIGHT = _operator("weight(Tensor codes, int entry, ScalarType dtype) -> Tensor", _empty)


# torch has no int4; the file gets it when it is written.
_CODES = {"int4": torch.int8, "float8e4m3fn": torch.float8_e4m3fn}


def codes_type(form: NumberFormat) -> torch.dtype:
    found: torch.dtype = _CODES.get(form.name) or getattr(torch, form.name)
    return found


class FrozenStub(nn.Module):
    """Names a value and quantizes it where the stub did."""

    entry: int

    def __init__(self, stub: QuantStub) -> None:
        super().__init__()
        self.label = stub.label
        self.quantizes = stub.quantizes
        # Not buffers: the exporter would carry them along.
        self.numbers = (stub.scale.detach().abs().float(), stub.zero_point.detach().to(codes_type(stub.form)))
        self.training = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = VALUE(value, self.entry) if value.is_floating_point() else value
        return result


class FrozenWeight(nn.Module):
    """A weight as codes and scales, or as floats."""

    entry: int
    codes: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: QuantizedConv | QuantizedLinear, *, transpose: bool) -> None:
        super().__init__()
        weight, bias = layer.folded()
        weight = weight.detach()
        quantizer = layer.weight_quantizer
        self.axis, self.block, self.quantized = 1, 0, quantizer is not None
        codes, scale = weight, torch.ones(())
        if quantizer is not None:
            codes = quantizer.codes(weight).to(codes_type(quantizer.form))
            scale = quantizer.scale.detach().abs().float()
            self.axis, self.block = self._layout(quantizer, transpose=transpose)
        # Before rounding: a portable file rounds anew, and rounding what was rounded costs decibels.
        self._exact = [weight.t() if transpose else weight]
        if transpose:
            codes, scale = codes.t().contiguous(), scale.t().contiguous() if scale.ndim == 2 else scale
        self.register_buffer("codes", codes)
        # Not a buffer: the exporter would carry it along.
        self.numbers = (scale,)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.form = None if quantizer is None else quantizer.form
        self.training = False

    @staticmethod
    def _layout(quantizer: WeightQuantizer, *, transpose: bool) -> tuple[int, int]:
        """Return axis and block as ONNX counts them in the stored layout."""
        axis = 1 if quantizer.block else quantizer.axis
        return 1 if axis is None else 1 - axis if transpose else axis, quantizer.block

    @property
    def exact(self) -> torch.Tensor:
        """The weight before it was rounded, in the layout that is stored."""
        return self._exact[0]

    def value(self) -> torch.Tensor:
        return WEIGHT(self.codes, self.entry, self.numbers[0].dtype) if self.quantized else self.codes


class FrozenConv(FrozenWeight):
    """A convolution on stored codes."""

    def __init__(self, layer: QuantizedConv) -> None:
        super().__init__(layer, transpose=False)
        self._layer = [layer]
        self.output = None if layer.output is None else FrozenStub(layer.output)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result = self._layer[0].run(value, self.value(), self.bias)
        return result if self.output is None else self.output(result)


class FrozenLinear(FrozenWeight):
    """A fully connected layer on stored codes, as a matrix product and an addition."""

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__(layer, transpose=True)
        self.output = None if layer.output is None else FrozenStub(layer.output)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result = torch.matmul(value, self.value())
        result = result if self.bias is None else result + self.bias
        return result if self.output is None else self.output(result)


@dataclass(frozen=True)
class _Method:
    """A method by its name."""

    name: str

    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, self.name)(*args, **kwargs)


class _Step(nn.Module):
    """A function as a module: torch's exporter notes at every node the module it comes from, and nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def freeze(model: nn.Module) -> nn.Module:
    """Return a copy of a model in the form it is written in; the model itself stays as it is."""
    result = copy_deep(model).eval()
    for name, part in list(result.named_modules()):
        if isinstance(part, QuantizedConv):
            result.set_submodule(name, FrozenConv(part))
        elif isinstance(part, QuantizedLinear):
            result.set_submodule(name, FrozenLinear(part))
        elif isinstance(part, QuantizedElementwise):
            result.set_submodule(name, part.layer)
    for name, part in list(result.named_modules()):
        if isinstance(part, QuantStub):
            result.set_submodule(name, FrozenStub(part))
    for entry, part in enumerate(entries(result).values()):
        part.entry = entry
    if isinstance(result, fx.GraphModule):
        _wrap_functions(result)
    return result


def entries(model: nn.Module) -> dict[str, FrozenStub | FrozenWeight]:
    """Return the quantizers of a frozen model by their names, in the order of their numbers."""
    return {name: part for name, part in model.named_modules() if isinstance(part, FrozenStub | FrozenWeight)}


def _wrap_functions(model: fx.GraphModule) -> None:
    """Call every function and method through a module that is named after its node."""
    steps = _unused_name(model, "steps")
    for node in model.graph.nodes:
        node.meta.setdefault("modules", modules_of(node))
        # What an earlier tracer noted would be taken over instead of the modules that are called now.
        node.meta.pop("nn_module_stack", None)
        if node.op not in ("call_function", "call_method"):
            continue
        function = _Method(node.target) if node.op == "call_method" else node.target
        node.meta.setdefault("place", node.name)
        # The prefix parts `x.to` from the method `to` that every module has.
        node.op, node.target = "call_module", f"{steps}.at_{node.name}"
        model.add_submodule(node.target, _Step(function))
    model.recompile()


def _unused_name(model: nn.Module, base: str) -> str:
    """Return a name that no attribute of a module has."""
    return base if not hasattr(model, base) else _unused_name(model, f"{base}_")


def exact_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights before rounding as arrays, under the names of their codes in the file."""
    return {
        f"{name}.codes": part.exact.double().cpu().numpy()
        for name, part in model.named_modules()
        if isinstance(part, FrozenWeight) and part.quantized
    }


def is_int4(part: nn.Module) -> bool:
    return isinstance(part, FrozenWeight) and part.form is not None and part.form.precision is Precision.INT4
