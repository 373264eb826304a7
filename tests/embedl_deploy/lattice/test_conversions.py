"""Lattice's conversions: exact where they can be, off where they are not, refused with a reason."""

import pytest
import torch
from support.deploy_nets import image, kinds
from support.sampled import sampled
from torch import nn

from embedl_deploy import transform
from embedl_deploy.lattice import (
    LATTICE_PATTERNS,
    ActivationToReLUPattern,
    AdaptiveAvgPoolToAvgPoolPattern,
    AvgPoolToConvPattern,
    ExplicitPadPattern,
    GroupedConvToDensePattern,
    ReLU6ToBoundedReLUPattern,
    ReLU6ToReLUPattern,
    SplitConvPattern,
    StackMaxPoolPattern,
    ThinStridePattern,
    check,
)
from embedl_deploy.pattern import Pattern
from embedl_deploy.testing import check_pattern

TOLERANCE = 1e-5


def one(layer: nn.Module) -> nn.Module:
    """Wrap a layer so that it has a name."""
    return nn.Sequential(layer).eval()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's remark on its own padding
@pytest.mark.parametrize("kernel", [2, 4, 5, 7, 11, (1, 7), (7, 1), (3, 1), (2, 5)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 2, "same"])
def test_any_kernel_is_a_sum_of_3x3_ones(kernel: int | tuple[int, int], stride: int, padding: int | str) -> None:
    """Every size, square or not, at both strides, with and without padding."""
    if padding == "same" and stride == 2:
        padding = 1
    model = one(nn.Conv2d(3, 4, kernel, stride=stride, padding=padding))
    result = check_pattern(SplitConvPattern, model, (image(2, 17),), matches=1, tolerance=TOLERANCE)
    assert set(kinds(result.model)) <= {"Conv2d", "Add"}
    assert check(result.model)


def test_seven_by_seven_is_nine_tiles() -> None:
    """ResNet's stem: nine convolutions and eight sums; the bias is added once."""
    result = check_pattern(
        SplitConvPattern, one(nn.Conv2d(3, 4, 7, 2, 3)), (image(2, 17),), matches=1, tolerance=TOLERANCE
    )
    assert kinds(result.model).count("Conv2d") == 9
    assert kinds(result.model).count("Add") == 8
    biased = [name for name, _ in result.model.named_parameters() if name.endswith("bias")]
    assert len(biased) == 1


@pytest.mark.parametrize("dilation", [2, 3, (1, 2)])
def test_a_dilated_kernel_is_written_out(dilation: int | tuple[int, int]) -> None:
    """Tiles of zeros only are left out."""
    model = one(nn.Conv2d(3, 4, 3, dilation=dilation, padding=1))
    result = check_pattern(SplitConvPattern, model, (image(2, 17),), matches=1, tolerance=TOLERANCE)
    assert check(result.model)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_paddings_become_a_step(mode: str) -> None:
    """Padding by reflection and its kin, before a kernel that is taken."""
    model = one(nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode))  # type: ignore[arg-type]
    result = check_pattern(ExplicitPadPattern, model, (image(),), matches=1, tolerance=TOLERANCE)
    assert kinds(result.model) == ["Conv2d"]
    assert check(result.model)


@pytest.mark.parametrize("padding", [2, (1, 0), 3])
def test_large_and_uneven_paddings_become_a_step(padding: int | tuple[int, int]) -> None:
    """More than half the kernel, or not the same on every side."""
    model = one(nn.Conv2d(3, 4, 3, padding=padding, stride=2))
    assert check(check_pattern(ExplicitPadPattern, model, (image(),), matches=1, tolerance=TOLERANCE).model)


@pytest.mark.parametrize("stride", [3, 4, (1, 2), (2, 4)])
def test_long_strides_are_thinned(stride: int | tuple[int, int]) -> None:
    """Every n-th result of a shorter stride."""
    model = one(nn.Conv2d(3, 4, 3, stride=stride, padding=1))
    assert check(check_pattern(ThinStridePattern, model, (image(2, 19),), matches=1, tolerance=TOLERANCE).model)


def test_groups_become_dense_and_depthwise_stays() -> None:
    """Zeros between the groups; a depthwise convolution is taken as it is."""
    model = one(nn.Conv2d(4, 8, 3, groups=2, padding=1))
    x = torch.randn(2, 4, 9, 9)
    assert check(check_pattern(GroupedConvToDensePattern, model, (x,), matches=1, tolerance=TOLERANCE).model)
    depthwise = one(nn.Conv2d(4, 4, 3, groups=4, padding=1))
    check_pattern(GroupedConvToDensePattern, depthwise, (x,), matches=0, tolerance=0)


def test_average_poolings() -> None:
    """A pooling is a depthwise convolution where its divisor is the same everywhere."""
    for pool in (nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d((2, 3), 1)):
        check_pattern(AvgPoolToConvPattern, one(pool), (image(),), matches=1, tolerance=TOLERANCE)
    uneven = one(nn.AvgPool2d(3, 2, 1, count_include_pad=False))
    reason = "its divisor is not the kernel's area everywhere"
    check_pattern(AvgPoolToConvPattern, uneven, (image(),), matches=0, tolerance=0, refuses=[reason])


def test_adaptive_poolings() -> None:
    """One that divides evenly is an ordinary one; the global one is taken as it is."""
    even = check_pattern(
        AdaptiveAvgPoolToAvgPoolPattern, one(nn.AdaptiveAvgPool2d(4)), (image(),), matches=1, tolerance=TOLERANCE
    )
    assert kinds(even.model) == ["AvgPool2d"]
    uneven = one(nn.AdaptiveAvgPool2d(5))
    reason = "16×16 does not divide into 5×5"
    check_pattern(AdaptiveAvgPoolToAvgPoolPattern, uneven, (image(),), matches=0, tolerance=0, refuses=[reason])
    check_pattern(AdaptiveAvgPoolToAvgPoolPattern, one(nn.AdaptiveAvgPool2d(1)), (image(),), matches=0, tolerance=0)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (7, 1), (9, 1), (5, 2), (13, 1)])
def test_large_max_poolings_are_stacked(kernel: int, stride: int) -> None:
    """The pyramid poolings of YOLO, exactly."""
    model = one(nn.MaxPool2d(kernel, stride, kernel // 2))
    result = check_pattern(StackMaxPoolPattern, model, (image(2, 17),), matches=1, tolerance=0)
    assert kinds(result.model) == ["MaxPool2d"] * ((kernel - 1) // 2)
    assert check(result.model)


def test_max_poolings_that_stay() -> None:
    """An even or off-center one is refused with what it is."""
    for pool in (nn.MaxPool2d(4, 1), nn.MaxPool2d(5, 1, 1), nn.MaxPool2d(5, 3, 2)):
        reason = "and it is no centered odd square with stride 1 or 2"
        check_pattern(StackMaxPoolPattern, one(pool), (image(),), matches=0, tolerance=0, refuses=[reason])


def test_relu6_exactly_and_lossily() -> None:
    """Exact by default; the cheap one only when asked for, and then measured."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6()).eval()
    x = image() * 20
    exact = check_pattern(ReLU6ToBoundedReLUPattern, model, (x,), matches=1, tolerance=TOLERANCE)
    assert kinds(exact.model) == ["Conv2d", "ReLU", "Conv2d", "ReLU", "Conv2d"]
    plan = transform(model, (x,), LATTICE_PATTERNS)
    assert plan.report.counts() == {"ReLU6ToBoundedReLUPattern": 1}
    lossy = transform(model, (x,), LATTICE_PATTERNS, allow_lossy=True).report
    assert lossy.counts() == {"ReLU6ToReLUPattern": 1}
    assert lossy.done[0].proof is not None
    assert lossy.done[0].proof.relative_error > 0.1


@pytest.mark.parametrize("pattern", [ReLU6ToReLUPattern, ActivationToReLUPattern])
def test_lossy_patterns_say_so(pattern: type[Pattern]) -> None:
    """Both are off by default."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.SiLU()).eval()
    report = transform(model, (image(),), [pattern]).report
    assert [one.reason for one in report.refusals] == ["changes results; off unless allow_lossy=True"]


def test_a_shared_weight_is_not_split() -> None:
    """Two sets of tiles would train apart."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 5, padding=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.conv(self.conv(x))
            return out

    reason = "its weight is also used by 'another call of conv'"
    check_pattern(SplitConvPattern, Shared().eval(), (image(),), matches=0, tolerance=0, refuses=[reason])


@pytest.mark.parametrize("name", sampled(["resnet18", "mobilenet_v2", "vgg11", "yolo"], "resnet18", "yolo"))
def test_networks_end_inside_the_set(name: str) -> None:
    """Every convolution is inside, and the exact rewrites change nothing."""
    from support.deploy_zoo import torchvision_model, yolo

    model, args = yolo() if name == "yolo" else torchvision_model(name, size=224 if name == "vgg11" else 64)
    before = check(model, args)
    result = transform(model, args, LATTICE_PATTERNS)
    after = check(result.model, args)
    assert result.report.proof is not None
    assert result.report.proof.relative_error <= 1e-4
    assert not [layer for layer in after.outside if "Conv" in layer.kind]
    assert len(after.outside) < len(before.outside) or name == "vgg11"
    assert {layer.kind for layer in after.outside} <= {"SiLU", "Upsample"}


def test_check_prints_what_is_outside() -> None:
    """Layer by layer, with the reason; empty when all are inside."""
    text = str(check(nn.Sequential(nn.Conv2d(3, 4, 5), nn.GELU(), nn.ReLU())))
    assert text.splitlines()[0] == "1 of 3 layers are inside the set"
    assert "0      Conv2d  its kernel is 5×5, not 1×1 or 3×3" in text
    assert "1      GELU    GELU is not in the set" in text
    assert str(check(nn.Sequential(nn.ReLU()))) == "1 of 1 layers are inside the set"


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv2d(4, 4, 3, dilation=2), "its dilation is 2×2, not 1×1"),
        (nn.Conv2d(4, 4, 3, stride=3), "its stride is 3×3, not 1×1 or 2×2"),
        (nn.Conv2d(4, 4, 3, padding=2), "its padding is (2, 2), not at most 1 on every side"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "it pads by reflect, not with zeros"),
        (nn.Conv2d(4, 4, 3, groups=2), "it has 2 groups, neither dense nor depthwise"),
        (nn.MaxPool2d(4), "its kernel is 4×4, not 2×2 or 3×3"),
        (nn.MaxPool2d(3, 3), "its stride is 3×3, not 1×1 or 2×2"),
        (nn.MaxPool2d(2, 2, ceil_mode=True), "it is dilated, rounds up or returns indices"),
        (nn.MaxPool2d(3, 2, (1, 0)), "its padding is 1×0"),
        (nn.AdaptiveAvgPool2d(3), "it pools to 3, not to 1×1"),
        (nn.ConvTranspose2d(4, 4, 2), "ConvTranspose2d is not in the set"),
    ],
)
def test_reasons(layer: nn.Module, reason: str) -> None:
    """Every rule has its words."""
    assert [one.reason for one in check(nn.Sequential(layer)).layers] == [reason]
