"""Layers that a target runs as one kernel, built from the user's own modules.

Members are kept as they are and called in order, so a fused module computes what they computed, in train and in eval
mode. Batch norm is not folded: fine-tuning needs it; it is folded on export.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from embedl_deploy.nn import kernels
from embedl_deploy.nn.quantizable import ALL_INPUTS, NO_INPUTS, ElementwiseModule, QuantizableModule, QuantSpec
from embedl_deploy.nn.quantized import QuantizedConv, QuantizedLayer, QuantizedLinear
from embedl_deploy.nn.quantizers import Grid, QuantStub
from embedl_deploy.pattern import Point

CLAMPS = (nn.ReLU, nn.ReLU6)
"""Activations that a quantized value's own range can take over."""


def _then(layer: nn.Module | None, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = value if layer is None else layer(value)
    return result


class _FusedConv(QuantizableModule):
    """What every fused convolution has: its members, and how they are quantized."""

    watched = (Point.OUTPUT,)

    def __init__(self, conv: nn.Module, bn: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.act = act
        self.training = conv.training

    def _convolve(self, value: torch.Tensor) -> torch.Tensor:
        parts: Any = self._modules  # past `nn.Module.__getattr__`: a step asks hundreds of times
        return _then(parts.get("bn"), parts["conv"](value))

    def _seen(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return the result where it can be biased, activated and looked at in one step: while calibrating on a GPU."""
        if torch.compiler.is_compiling():
            return None
        behind = self.behind
        if not behind or behind[0].observer is None or not behind[0].finishes:
            return None
        if not value.is_cuda or self._forward_hooks:
            return None
        parts: Any = self._modules  # past `nn.Module.__getattr__`, as in `_convolve`
        conv, act = parts["conv"], parts.get("act")
        if not isinstance(conv, QuantizedConv) or conv.held is None or conv._forward_hooks:
            return None
        weight, bias = conv.held
        if bias is None or conv._modules.get("output") is not None or not conv.passes_weight:
            return None
        plain = conv.run(value, weight, None)
        found = behind[0].see_after(act, plain, None, bias)
        if found is None:
            found = _then(act, plain.add_(bias.reshape(-1, *[1] * (plain.ndim - 2))))
        return found

    def quantize(self, spec: QuantSpec) -> None:
        """Quantize the weights, batch norm folded into them, and the result where a target might cut."""
        cut = self.passed_inputs != NO_INPUTS or not (self.act is None or isinstance(self.act, CLAMPS))
        output = spec.stub("conv", quantizes=Point.OUTPUT in spec.points) if cut else None
        self.conv, self.bn = spec.conv(self.conv, self.bn, output), None

    def attach_stubs(self, inputs: tuple[QuantStub, ...], output: QuantStub | None) -> nn.Module:
        if isinstance(self.conv, QuantizedConv):
            output = output if self.conv.output is None else self.conv.output
            if output is not None and output.quantizes:
                self.conv.grid = Grid(inputs[:1], output)
        return self

    def input_layer(self) -> QuantizedLayer | None:
        conv = self.conv
        return conv if isinstance(conv, QuantizedConv) and conv.reads_channels_apart else None

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return those of the batch norm or the convolution, unless the activation does not scale."""
        scales = self.act is None or isinstance(self.act, CLAMPS)
        return self.conv.output_parameters() if isinstance(self.conv, QuantizedConv) and scales else None

    @property
    def output_top(self) -> float | None:
        """Where ReLU6 cuts."""
        return float(self.act.max_val) if isinstance(self.act, nn.ReLU6) else None


class FusedConvBN(_FusedConv):
    """Convolution, and batch norm where there is one."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        seen = self._seen(value)
        return self.finish(self._modules.get("act"), self._convolve(value)) if seen is None else seen


class FusedConvBNReLU(FusedConvBN):
    """Convolution, batch norm where there is one, activation."""


class FusedConvBNReLUMaxPool(FusedConvBN):
    """Convolution, batch norm where there is one, activation, max pooling: the stem of many networks."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None, act: nn.Module, pool: nn.Module) -> None:
        super().__init__(conv, bn, act)
        self.pool = pool

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return _then(self.pool, _then(self.act, self._convolve(value)))

    def quantize(self, spec: QuantSpec) -> None:
        """Quantize the weights; the range before the pooling is kept."""
        if not isinstance(self.conv, QuantizedConv):
            assert self.act is not None
            self.act = nn.Sequential(self.act, spec.stub("act", quantizes=False))
            self.conv, self.bn = spec.conv(self.conv, self.bn), None

    def input_layer(self) -> QuantizedLayer | None:
        """Stay as it is: a stem reads the data."""
        return None

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Stay as it is."""
        return None


class FusedConvBNAdd(_FusedConv):
    """Convolution, batch norm where there is one, plus a residual."""

    passed_inputs = slice(1, None)

    def forward(self, value: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return self.finish(self._modules.get("act"), self._convolve(value), residual)


class FusedConvBNAddReLU(FusedConvBNAdd):
    """Convolution, batch norm where there is one, plus a residual, activation."""


class FusedAddReLU(ElementwiseModule):
    """The sum of two tensors, activation."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        self.training = act.training

    @property
    def passed_inputs(self) -> slice:  # type: ignore[override]
        """Both, where the activation scales."""
        return ALL_INPUTS if isinstance(self.act, nn.ReLU) else NO_INPUTS

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Add, then activate."""
        return self.finish(self.act, one, other)

    def on_integers(
        self, values: Sequence[torch.Tensor], inputs: Sequence[kernels.Scale], output: kernels.Scale
    ) -> torch.Tensor:
        """Add codes, then activate."""
        return _then(self.act, kernels.add(values[0], inputs[0], values[1], inputs[1], output))


class FusedConvTransposeBN(FusedConvBN):
    """Transposed convolution, and batch norm where there is one."""


class FusedConvTransposeBNReLU(FusedConvBNReLU):
    """Transposed convolution, batch norm where there is one, activation."""


class FusedBNReLU(QuantizableModule):
    """Batch norm that no convolution takes in, and the activation where there is one."""

    def __init__(self, bn: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.bn = bn
        self.act = act
        self.training = bn.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return _then(self.act, self.bn(value))


class FusedAdaptiveAvgPool2d(ElementwiseModule):
    """Adaptive average pooling as one kernel."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self.training = pool.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pool."""
        return _then(self.pool, value)

    @property
    def is_global(self) -> bool:
        """Whether it gives one value per channel, the only size for which runtimes have an integer kernel."""
        return getattr(self.pool, "output_size", None) in (1, (1, 1), [1, 1])

    def attach_stubs(self, inputs: tuple[QuantStub, ...], output: QuantStub | None) -> nn.Module:
        """Compute on integers where it is a global average and its result is quantized too."""
        return super().attach_stubs(inputs, output) if self.is_global else self

    def on_integers(
        self, values: Sequence[torch.Tensor], inputs: Sequence[kernels.Scale], output: kernels.Scale
    ) -> torch.Tensor:
        """Average codes over everything behind batch and channel."""
        return kernels.global_average(values[0], inputs[0], output)


class FusedLinear(QuantizableModule):
    """A fully connected layer as one kernel."""

    def __init__(self, linear: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = linear
        self.act = act
        self.training = linear.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return _then(self.act, self.linear(value))

    def quantize(self, spec: QuantSpec) -> None:
        """Quantize the weights, and the result where a target might cut: before an activation that is not a clamp."""
        cut = not (self.act is None or isinstance(self.act, CLAMPS))
        output = spec.stub("linear", quantizes=Point.OUTPUT in spec.points) if cut else None
        self.linear = spec.linear(self.linear, output)

    def attach_stubs(self, inputs: tuple[QuantStub, ...], output: QuantStub | None) -> nn.Module:
        """Let the layer compute on integers; its result is float unless it is quantized before the activation."""
        del output
        if isinstance(self.linear, QuantizedLinear):
            inner = self.linear.output
            self.linear.grid = Grid(inputs, inner if inner is not None and inner.quantizes else None)
        return self

    def input_layer(self) -> QuantizedLayer | None:
        """Return the fully connected layer."""
        return self.linear if isinstance(self.linear, QuantizedLinear) else None


class FusedLinearReLU(FusedLinear):
    """A fully connected layer and its activation."""

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return those of the fully connected layer, unless the activation does not scale."""
        quantized = isinstance(self.linear, QuantizedLinear) and isinstance(self.act, nn.ReLU)
        return self.linear.output_parameters() if quantized else None  # type: ignore[operator]


class FusedSiLU(QuantizableModule):
    """SiLU as the sigmoid and the product that runtimes compute it with; the sigmoid's result can be quantized."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        self.sigmoid: QuantStub | None = None
        self.training = act.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Activate, through the sigmoid's stub where there is one."""
        return _then(self.act, value) if self.sigmoid is None else value * self.sigmoid(torch.sigmoid(value))

    def quantize(self, spec: QuantSpec) -> None:
        """Put a stub on the sigmoid's result; it quantizes where the layer's own result is quantized."""
        if self.sigmoid is None:
            self.sigmoid = spec.stub("sigmoid", quantizes=Point.OUTPUT in spec.points)
            self.sigmoid.training = self.training


class FusedLayerNorm(QuantizableModule):
    """Layer normalization as one kernel."""

    normalizes = True

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.training = norm.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Normalize."""
        return _then(self.norm, value)

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return the weight, and the bias where there is one."""
        found = [getattr(self.norm, name, None) for name in ("weight", "bias")]
        return None if found[0] is None else [tensor for tensor in found if tensor is not None]
