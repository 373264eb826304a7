"""How inputs may have been prepared, and what undoes a wrong preparation: the explanations that are tried.

Pictures are taken for numbers from 0 to 1 that were brought to a range. What the data has is read off its least and
largest values; what the network wants is any other range. A range that the values leave, or of which they use less
than four fifths, is not what the data has. That keeps a set of dark pictures from being explained as a wrong range.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

_ROOM = 0.06  # beyond black and white: what resizing by bicubic filters adds
_USED = 0.8  # of the way from black to white, over all samples
_SAME = 0.25  # an input that changes by a smaller part of its own deviation is the same for a verdict
_UNCORRELATED = 0.1
_FLAT = 0.02  # of the distance from zero: any range that networks are fed gives ten times as much
_PICTURE, _SEQUENCE = 4, 3  # dimensions of a batch
Repair = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Normalization:
    """Constants that a group of networks is trained with, for pictures from 0 to 1."""

    name: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


_COLOR = (
    Normalization("ImageNet's mean and deviation", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    Normalization("CIFAR-10's mean and deviation", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    Normalization("CLIP's mean and deviation", (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),
)
_CAFFE = (123.68, 116.779, 103.939)
_GREY = (
    Normalization("MNIST's mean and deviation", (0.1307,), (0.3081,)),
    Normalization("Fashion-MNIST's mean and deviation", (0.2860,), (0.3530,)),
    Normalization("ImageNet's mean and deviation", (0.449,), (0.226,)),
)


@dataclass(frozen=True)
class Range:
    """One way to write a picture: how it is made of numbers from 0 to 1, and back."""

    name: str
    write: Repair
    read: Repair
    wanted: bool = True  # whether networks are trained so; else it is a fault by itself

    def fits(self, value: torch.Tensor) -> bool:
        """Say whether values may have been written so."""
        low, high = (float(bound) for bound in torch.aminmax(self.read(value)))
        return low >= -_ROOM and high <= 1 + _ROOM and high - low >= _USED


@dataclass(frozen=True)
class Explanation:
    """A fault that the data may have, and the data without it."""

    fault: str  # what the data has
    advice: str  # what to do
    repair: Repair
    free: bool = False  # whether its constants are taken from the data itself: such a repair fits much that is no fault
    paired: bool = False  # whether it moves so little that both versions are compared sample by sample
    evidence: float = 0.5  # that a paired comparison must give; one class of pictures alone gives 0.25
    simpler: str = ""  # the fault of an explanation that says less, and is preferred unless this one is clearly better


def _along(numbers: Sequence[float], value: torch.Tensor) -> torch.Tensor:
    return torch.tensor(numbers, dtype=value.dtype, device=value.device).reshape(1, -1, *[1] * (value.ndim - 2))


def _affine(name: str, scale: Sequence[float], offset: Sequence[float], *, wanted: bool = True) -> Range:
    """Return the range that a picture has after x · scale + offset."""
    return Range(
        name, lambda x: x * _along(scale, x) + _along(offset, x), lambda x: (x - _along(offset, x)) / _along(scale, x),
        wanted,
    )  # fmt: skip


def ranges(channels: int) -> list[Range]:
    """Return the ways that pictures of so many channels are written."""
    known = _COLOR if channels == 3 else _GREY if channels == 1 else ()
    made = [
        _affine("values from 0 to 1", (1.0,), (0.0,)),
        _affine("values from 0 to 255", (255.0,), (0.0,)),
        _affine("values from -1 to 1", (2.0,), (-1.0,)),
        _affine("values divided by 255 twice", (1 / 255,), (0.0,), wanted=False),
        _affine("values from -1 to 1, scaled twice", (4.0,), (-3.0,), wanted=False),
        _affine("values from -1 to 1, made from 0 to 255", (510.0,), (-1.0,), wanted=False),
        _affine("values from -1 to 1, divided by 255 twice", (2 / 255,), (-1.0,), wanted=False),
    ]
    for each in known:
        scale = [1 / part for part in each.deviation]
        offset = [-mean * part for mean, part in zip(each.mean, scale, strict=True)]
        by = f"normalized by {each.name}"
        made += [
            _affine(f"values {by}", scale, offset),
            _affine(f"values {by} twice", [part**2 for part in scale],
                    [start * part + start for start, part in zip(offset, scale, strict=True)], wanted=False),
            _affine(f"values from 0 to 255, {by}", [255 * part for part in scale], offset, wanted=False),
            _affine(f"values divided by 255 twice, {by}", [part / 255 for part in scale], offset, wanted=False),
        ]  # fmt: skip
    if channels == 3:
        # Caffe's networks are fed blue first; the mean may be taken off before the channels are swapped, or after.
        # Its mean is half a step of 255 from ImageNet's: much for values from 0 to 1 that it is taken off by mistake.
        means = (("ImageNet's", [255 * part for part in _COLOR[0].mean]), ("Caffe's", list(_CAFFE)))
        for (whose, mean), (order, first) in itertools.product(means, (("", 1), (", blue first", -1))):
            offset = [-part for part in mean[::first]]
            made += [
                _affine(f"values from 0 to 255 less {whose} mean{order}", (255.0,), offset),
                _affine(f"values from 0 to 1 less {whose} mean of 0 to 255{order}", (1.0,), offset, wanted=False),
                _affine(f"values divided by 255 twice less {whose} mean of 0 to 255{order}", (1 / 255,), offset,
                        wanted=False),
            ]  # fmt: skip
    return made


def is_picture(value: torch.Tensor) -> bool:
    """Say whether a batch may be of pictures: N x C x H x W with one, three or four channels."""
    return value.ndim == _PICTURE and value.shape[1] in (1, 3, 4) and min(value.shape[2:]) >= 8


def order_faults(value: torch.Tensor) -> Iterator[Explanation]:
    """Yield what leaves the range of values as it is, and may go unseen in it: order, layout, sign."""
    if is_picture(value):
        channels, height, width = value.shape[1:]
        if channels == 3 and not _is_grey(value):
            yield Explanation("the channels are in the other order: BGR for RGB, or RGB for BGR", "swap them",
                              lambda x: x.flip(1), paired=True)  # fmt: skip
        if channels > 1:
            layout = Explanation(
                "height, width and channels are in memory in this order, read as channels, height and width",
                "transpose the pictures, do not reshape them",
                lambda x: x.reshape(len(x), height, width, channels).permute(0, 3, 1, 2),
            )
            # Right pictures, mixed up so, may meet the statistics of others; but their rows have less in common then.
            if _in_common(layout.repair(value).mT) > _in_common(value.mT):
                yield layout
        middle = value.amin((0, 2, 3), keepdim=True) + value.amax((0, 2, 3), keepdim=True)
        # Light is what pictures differ in most: right sets of 8 gave up to 2, inverted digits 35.
        yield Explanation("light and dark are exchanged", "invert the pictures", lambda x: middle - x,
                          evidence=5.0)  # fmt: skip
    elif value.ndim == _SEQUENCE and 1 < value.shape[1] <= 64:
        half = value.shape[1] // 2
        yield Explanation("the first and the last channels are exchanged", "look at the order of the channels",
                          lambda x: x.roll(half, 1))  # fmt: skip


def range_faults(value: torch.Tensor) -> Iterator[Explanation]:
    """Yield what data in one range looks like to a network that wants another."""
    if is_picture(value):
        yield from _picture_faults(value)
        return
    mean, deviation = _own(value)
    for factor, what in ((1000.0, "1000"), (9.80665, "9.81"), (180 / torch.pi, "57.3"), (255.0, "255")):
        for scale, word in ((factor, "larger"), (1 / factor, "smaller")):
            yield Explanation(f"the values are {what} times {word} than in training: another unit", "convert the unit",
                              _divided(scale))  # fmt: skip
    yield Explanation(
        "the values are not normalized as in training: each channel with mean 0 and deviation 1 fits",
        "normalize as in training", lambda x: (x - mean) / deviation, free=True,
    )  # fmt: skip
    if value.ndim == _SEQUENCE:
        shape = value.shape
        layout = Explanation(
            "time comes before channels in memory, read as channels before time", "transpose, do not reshape",
            lambda x: x.reshape(len(x), shape[2], shape[1]).transpose(1, 2),
        )  # fmt: skip
        if _in_common(layout.repair(value)) > _in_common(value):
            yield layout


def _own(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    axes = [axis for axis in range(value.ndim) if axis != 1]
    return value.mean(axes, keepdim=True), value.std(axes, keepdim=True).clamp(min=1e-6)


def _picture_faults(value: torch.Tensor) -> Iterator[Explanation]:
    channels = value.shape[1]
    known = ranges(channels)
    wanted = [each for each in known if each.wanted]
    taken: list[torch.Tensor] = []
    for has in (each for each in known if each.fits(value)):
        pixels = has.read(value)
        if any(_same(pixels, other) for other in taken):
            continue  # constants of two data sets that hardly differ
        taken.append(pixels)
        made: list[torch.Tensor] = [value]
        for wants in wanted:
            if any(_same(wants.write(pixels), other) for other in made):
                continue
            made.append(wants.write(pixels))
            fault = f"it looks like {has.name}, and the network fits {wants.name}"
            yield Explanation(fault, f"prepare it as {wants.name}",
                              _rewritten(has, wants))  # fmt: skip
            if channels == 3:
                yield Explanation(f"{fault}, with the channels in the other order (BGR)",
                                  f"prepare it as {wants.name}, and swap the channels",
                                  _rewritten(has, wants, swaps=True), simpler=fault)  # fmt: skip
    yield from _signed(value)


def _signed(value: torch.Tensor) -> Iterator[Explanation]:
    """Yield bytes that were read with a sign: what was 128 and more has become negative."""
    for name, unit in (("", 255.0), (" and divided by 255", 1.0)):
        step = unit / 255
        low, high = (float(bound) / step for bound in torch.aminmax(value))
        if -128.5 <= low < -64 and 64 < high <= 127.5:
            for wants in ranges(value.shape[1]):
                if wants.wanted:
                    yield Explanation(
                        f"bytes were read with a sign{name}: 128 to 255 became -128 to -1", "read them without a sign",
                        _read_unsigned(wants, step),
                    )  # fmt: skip


def _divided(scale: float) -> Repair:
    return lambda x: x / scale


def _rewritten(has: Range, wants: Range, *, swaps: bool = False) -> Repair:
    return lambda x: wants.write(has.read(x)).flip(1) if swaps else wants.write(has.read(x))


def _read_unsigned(wants: Range, step: float) -> Repair:
    return lambda x: wants.write(torch.where(x < 0, x / step + 256, x / step) / 255)


def _is_grey(value: torch.Tensor) -> bool:
    """Say whether red and blue show the same: then exchanging them says nothing, whatever it does to constants."""
    red, blue = (value[:, channel].flatten().double() for channel in (0, 2))
    red, blue = red - red.mean(), blue - blue.mean()
    power = float(red.norm() * blue.norm())
    return power == 0 or (2 - 2 * float(red @ blue) / power) < _SAME**2


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).square().mean().sqrt()) < _SAME * float(other.std())


def neighbors(value: torch.Tensor) -> float | None:
    """Return how much values next to each other have in common, from 0 to 1; None where nothing is next to another."""
    if value.ndim < _SEQUENCE or value.shape[-1] < 8:
        return None
    rows = value.detach().double().flatten(0, -2)
    rows = rows - rows.mean(1, keepdim=True)
    power = float(rows[:, :-1].square().sum().sqrt() * rows[:, 1:].square().sum().sqrt())
    return float((rows[:, :-1] * rows[:, 1:]).sum()) / power if power else None


def is_noise(value: torch.Tensor) -> bool:
    """Say whether values next to each other have nothing in common."""
    found = neighbors(value)
    return found is not None and abs(found) < _UNCORRELATED


def _in_common(value: torch.Tensor) -> float:
    return neighbors(value) or 0.0


def is_flat(value: torch.Tensor) -> bool:
    """Say whether pictures are all of one color: what is far from zero in every channel, and hardly moves there."""
    if not is_picture(value):
        return False
    mean, deviation = _own(value)
    return bool((deviation < _FLAT * mean.abs()).all())
