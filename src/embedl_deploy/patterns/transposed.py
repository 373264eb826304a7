"""Transposed convolutions whose patches do not overlap.

    act ∘ BatchNorm ∘ ConvTranspose (kernel = stride)   → PixelShuffle ∘ act ∘ BatchNorm ∘ Conv1×1

Every input pixel then writes a patch of its own, and the patch is a linear map of the pixel's channels: a 1×1
convolution with a channel for each of the patch's positions. It is for targets that have integer convolutions but no
integer transposed one.
"""

from torch import Tensor, nn

from embedl_deploy.pattern import Chain, Expand, Match, Maybe, Op, Pattern, Phase, Refusal, Replacement
from embedl_deploy.patterns.conv import CLAMPS

__all__ = ["ConvTransposeToPixelShufflePattern"]


class ConvTransposeToPixelShufflePattern(Pattern):
    """Turn a transposed convolution without overlap into a 1×1 convolution and a pixel shuffle."""

    phase = Phase.CONVERSION
    tree = Chain(
        Op(nn.ConvTranspose2d, name="conv"), Maybe(Op(nn.BatchNorm2d, name="bn")), Maybe(Op(*CLAMPS, name="act"))
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse patches that overlap or are not square, groups, shared weights, and a batch norm that is training."""
        conv = match.module("conv")
        assert isinstance(conv, nn.ConvTranspose2d)
        side = conv.kernel_size[0]
        if conv.kernel_size != (side, side) or conv.stride != (side, side):
            return Refusal(f"kernel {conv.kernel_size} with stride {conv.stride} makes no square patches side by side")
        if any((*conv.padding, *conv.output_padding)) or conv.dilation != (1, 1) or conv.groups != 1:
            return Refusal("it has padding, dilation or groups")
        if others := match.sharers("conv"):
            return Refusal(f"its weight is also used by '{others[0]}'")
        bn = match.module_or_none("bn")
        if bn is not None and bn.training:
            return Refusal(
                "its batch norm is training, and each position would get statistics of its own; call eval() first"
            )
        return None

    def replace(self, match: Match) -> Replacement:
        """Convolve, normalise, clamp, shuffle."""
        conv, bn = match.module("conv"), match.module_or_none("bn")
        assert isinstance(conv, nn.ConvTranspose2d)
        assert bn is None or isinstance(bn, nn.BatchNorm2d)
        return Expand(_ConvShuffle(conv, bn, match.module_or_none("act")))


class _ConvShuffle(nn.Module):
    """A 1×1 convolution to all positions of a patch, what follows it, and the shuffle to their places."""

    def __init__(self, conv: nn.ConvTranspose2d, bn: nn.BatchNorm2d | None, act: nn.Module | None) -> None:
        super().__init__()
        side = conv.kernel_size[0]
        self.conv = _pointwise(conv)
        self.bn = None if bn is None else _repeated(bn, side * side)
        self.act = act
        self.shuffle = nn.PixelShuffle(side)
        self.training = conv.training

    def forward(self, value: Tensor) -> Tensor:
        """Convolve, normalise, clamp, shuffle."""
        value = self.conv(value)
        if self.bn is not None:
            value = self.bn(value)
        if self.act is not None:
            value = self.act(value)
        result: Tensor = self.shuffle(value)
        return result


def _pointwise(conv: nn.ConvTranspose2d) -> nn.Conv2d:
    """Build the 1×1 convolution: its channel (c, row, column) writes that position of channel c's patch."""
    positions = conv.kernel_size[0] * conv.kernel_size[1]
    made = nn.Conv2d(conv.in_channels, conv.out_channels * positions, 1, bias=conv.bias is not None, device="meta")
    weight = conv.weight.detach().permute(1, 2, 3, 0).reshape(-1, conv.in_channels, 1, 1).contiguous()
    made.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
    if conv.bias is not None:
        bias = conv.bias.detach().repeat_interleave(positions)
        made.bias = nn.Parameter(bias, requires_grad=conv.bias.requires_grad)
    return made.train(conv.training)


def _repeated(bn: nn.BatchNorm2d, times: int) -> nn.BatchNorm2d:
    """Build the batch norm of all positions: every channel's figures, once for each."""
    made = nn.BatchNorm2d(
        bn.num_features * times, bn.eps, bn.momentum, bn.affine, bn.track_running_stats, device=_device(bn)
    )
    wanted = {
        name: value if value.ndim == 0 else value.repeat_interleave(times) for name, value in bn.state_dict().items()
    }
    made.load_state_dict(wanted)
    return made.train(bn.training)


def _device(bn: nn.BatchNorm2d) -> object:
    """Return where a batch norm's figures are."""
    return next((value.device for value in bn.state_dict().values()), None)
