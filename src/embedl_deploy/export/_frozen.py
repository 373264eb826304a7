"""The network as it is written to a file: integer weights, folded batch norm, stubs as operators of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._clone import copy_deep
from embedl_deploy._graph import modules_of
from embedl_deploy.export._operators import dequantize, mark, quantize_dequantize
from embedl_deploy.nn import QuantizedConv, QuantizedJoint, QuantizedLinear, QuantStub, WeightQuantizer
from embedl_deploy.nn.number import NumberFormat, Precision

_CODES = {
    "int4": torch.int8,  # torch has no int4; the file gets it when it is written
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "float8e4m3fn": torch.float8_e4m3fn,
}


def codes_type(form: NumberFormat) -> torch.dtype:
    """Return the type that holds codes of a format."""
    return _CODES[form.name]


class FrozenStub(nn.Module):
    """Names a value and quantises it where the stub did."""

    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, stub: QuantStub) -> None:
        super().__init__()
        self.label = stub.label
        self.quantizes = stub.quantizes
        self.register_buffer("scale", stub.scale.detach().abs().float())
        self.register_buffer("zero_point", stub.zero_point.detach().to(codes_type(stub.form)))
        self.training = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Mark, then quantise."""
        if not value.is_floating_point():
            return value
        value = mark(value, self.label)
        return quantize_dequantize(value, self.scale, self.zero_point) if self.quantizes else value


class _Weight(nn.Module):
    """A weight as codes and scales, or as floats."""

    scale: torch.Tensor
    codes: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: QuantizedConv | QuantizedLinear, *, transpose: bool) -> None:
        super().__init__()
        weight, bias = layer.folded()
        weight = weight.detach()
        quantizer = layer.weight_quantizer
        self.axis, self.block, self.quantized = 1, 0, quantizer is not None
        if quantizer is None:
            codes, scale = weight, torch.ones(())
        else:
            codes, scale = _codes(quantizer, weight), quantizer.scale.detach().abs().float()
            self.axis, self.block = self._layout(quantizer, transpose=transpose)
        # Before rounding: a portable file rounds anew, and rounding what was rounded costs decibels.
        self._exact = [weight.t() if transpose else weight]
        if transpose:
            codes, scale = codes.t().contiguous(), scale.t().contiguous() if scale.ndim == 2 else scale
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.form = None if quantizer is None else quantizer.form
        self.training = False

    @staticmethod
    def _layout(quantizer: WeightQuantizer, *, transpose: bool) -> tuple[int, int]:
        """Return axis and block as ONNX counts them in the stored layout."""
        if quantizer.block:
            return (0 if transpose else 1), quantizer.block
        if quantizer.axis is None:
            return 1, 0
        return (1 - quantizer.axis if transpose else quantizer.axis), 0

    @property
    def exact(self) -> torch.Tensor:
        """The weight before it was rounded, in the layout that is stored."""
        return self._exact[0]

    def value(self) -> torch.Tensor:
        """Return the weight as floats."""
        return dequantize(self.codes, self.scale, self.axis, self.block) if self.quantized else self.codes


def _codes(quantizer: WeightQuantizer, weight: torch.Tensor) -> torch.Tensor:
    """Return the codes in the type that is stored."""
    return quantizer.codes(weight).to(codes_type(quantizer.form))


class FrozenConv(_Weight):
    """A convolution on stored codes."""

    def __init__(self, layer: QuantizedConv) -> None:
        super().__init__(layer, transpose=False)
        self._layer = [layer]
        self.output = None if layer.output is None else FrozenStub(layer.output)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        result = self._layer[0]._convolve(value, self.value(), self.bias)
        return result if self.output is None else self.output(result)


class FrozenLinear(_Weight):
    """A fully connected layer on stored codes, as a matrix product and an addition."""

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__(layer, transpose=True)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias."""
        result = torch.matmul(value, self.value())
        return result if self.bias is None else result + self.bias


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
        """Call it."""
        return self._function(*args, **kwargs)


def freeze(model: nn.Module) -> nn.Module:
    """Return a copy of a model in the form it is written in; the model itself stays as it is."""
    result = copy_deep(model).eval()
    for name, part in list(result.named_modules()):
        if isinstance(part, QuantizedConv):
            _put(result, name, FrozenConv(part))
        elif isinstance(part, QuantizedLinear):
            _put(result, name, FrozenLinear(part))
        elif isinstance(part, QuantizedJoint):
            _put(result, name, part.layer)
    for name, part in list(result.named_modules()):
        if isinstance(part, QuantStub):
            _put(result, name, FrozenStub(part))
    if isinstance(result, fx.GraphModule):
        _wrap_functions(result)
    return result


def _wrap_functions(model: fx.GraphModule) -> None:
    """Call every function and method through a module that has the name of its node."""
    for node in model.graph.nodes:
        node.meta.setdefault("modules", modules_of(node))
        # What an earlier tracer noted would be taken over instead of the modules that are called now.
        node.meta.pop("nn_module_stack", None)
        if node.op not in ("call_function", "call_method"):
            continue
        function = _Method(node.target) if node.op == "call_method" else node.target
        node.meta.setdefault("place", node.name)
        node.op, node.target = "call_module", f"steps.{node.name}"
        model.add_submodule(node.target, _Step(function))
    model.recompile()


def _put(model: nn.Module, name: str, part: nn.Module) -> None:
    """Put a module in another's place."""
    holder, _, last = name.rpartition(".")
    parent: Any = model.get_submodule(holder)
    if isinstance(parent, nn.Sequential):
        parent[int(last)] = part
    else:
        setattr(parent, last, part)


def exact_weights(model: nn.Module) -> dict[str, Any]:
    """Return the weights before rounding as arrays, under the names of their codes in the file."""
    return {
        f"{name}.codes": part.exact.double().cpu().numpy()
        for name, part in model.named_modules()
        if isinstance(part, _Weight) and part.quantized
    }


def is_int4(part: nn.Module) -> bool:
    """Say whether a frozen layer's codes are four bits wide."""
    return isinstance(part, _Weight) and part.form is not None and part.form.precision is Precision.INT4
