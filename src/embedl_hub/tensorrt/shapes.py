"""Which shapes an engine takes: fixed by the model, or a range for each input that is open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.errors import known
from embedl_hub.toolchain.model import shape_wish
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from embedl_hub.core.device import TensorRTRTXConfig, TrtexecConfig
    from embedl_hub.toolchain.model import Tensor


@dataclass(frozen=True)
class ShapeProfile:
    """The smallest, best and largest shape of each open input, by name; inputs that are fixed are not in it."""

    smallest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    best: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def named(self) -> tuple[tuple[str, Mapping[str, tuple[int, ...]]], ...]:
        """Return the three by TensorRT's words for them."""
        return (("min", self.smallest), ("opt", self.best), ("max", self.largest))

    def as_value(self) -> dict[str, dict[str, list[int]]]:
        """Return it for recording."""
        return {name: {tensor: list(shape) for tensor, shape in shapes.items()} for name, shapes in self.named()}

    @classmethod
    def from_value(cls, value: Mapping[str, Mapping[str, Sequence[int]]]) -> ShapeProfile:
        """Return what was recorded."""
        parts = [{tensor: tuple(shape) for tensor, shape in value.get(name, {}).items()} for name in _NAMES]
        return cls(*parts)


_NAMES = ("min", "opt", "max")


def shape_profile(inputs: Sequence[Tensor], config: TrtexecConfig | TensorRTRTXConfig) -> ShapeProfile:
    """Return the shapes for a model's open inputs, or say which are missing or impossible."""
    opened = {tensor.name: tensor for tensor in inputs if not tensor.is_fixed}
    fixed = {tensor.name for tensor in inputs} - set(opened)
    given = {name: tuple(shape) for name, shape in config.opt_shapes.items()}
    if stray := set(given) - set(opened):
        kind = "is fixed in the model" if stray <= fixed else "is no input of the model"
        raise RefusedError(
            f"opt_shapes names {known(stray)}, which {kind}. The inputs are: {'; '.join(map(str, inputs))}."
        )
    for tensor in opened.values():
        if tensor.name not in given:
            wish = ", ".join(str(size) if isinstance(size, int) else "1" for size in tensor.shape)
            raise RefusedError(
                f"Input {tensor} has no fixed shape. Compile with {shape_wish(tensor)}, or give a range in the "
                f"device's config: opt_shapes={{{tensor.name!r}: ({wish})}}, with min_shapes and max_shapes."
            )
    smallest = {name: tuple(config.min_shapes.get(name, shape)) for name, shape in given.items()}
    largest = {name: tuple(config.max_shapes.get(name, shape)) for name, shape in given.items()}
    for name, tensor in opened.items():
        _check_range(tensor, smallest[name], given[name], largest[name])
    return ShapeProfile(smallest, given, largest)


def _check_range(tensor: Tensor, low: tuple[int, ...], best: tuple[int, ...], high: tuple[int, ...]) -> None:
    for shape in (low, best, high):
        fits = len(shape) == len(tensor.shape) and all(
            not isinstance(own, int) or own == size for own, size in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            raise RefusedError(f"The shape {list(shape)} does not fit the input {tensor}.")
    if not all(a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise RefusedError(
            f"The shapes of {tensor.name!r} must grow: min {list(low)}, opt {list(best)}, max {list(high)}."
        )


def shapes_of(data: Mapping[str, np.ndarray], profile: ShapeProfile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the data for the open inputs, or say what the engine takes."""
    shapes = {}
    for name in profile.best:
        shape, low, high = tuple(data[name].shape), profile.smallest[name], profile.largest[name]
        if len(shape) != len(low) or not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            raise RefusedError(
                f"Input {name!r} has shape {list(shape)}; the engine was built for {list(low)} to {list(high)}. "
                "Split the data, or compile with larger max_shapes."
            )
        shapes[name] = shape
    return shapes
