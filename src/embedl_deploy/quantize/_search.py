"""Find a small set of float islands that meets the user's goal.

Layers are ranked by what they cost (`sensitivity`). The shortest prefix of the ranking that meets the goal is found by
bisection; then each of its layers is put back if the goal still holds without it.
"""

from collections.abc import Callable

from torch import fx

from embedl_deploy.errors import QuantizationError
from embedl_deploy.quantize._config import MaxDrop
from embedl_deploy.quantize._report import Search

Build = Callable[[tuple[str, ...]], fx.GraphModule]


def find_islands(
    build: Build, first: fx.GraphModule, float_model: fx.GraphModule, ranking: list[str], target: MaxDrop
) -> tuple[fx.GraphModule, Search]:
    """Return the model with the fewest islands found, and the search.

    Args:
        build: Makes a calibrated model with the given layers float.
        first: The model without islands.
        float_model: What the goal is measured from.
        ranking: Layers, the dearest first.
        target: The goal.
    """
    judge = _Judge(build, target, {(): first})
    whole = judge.measure(float_model)
    allowed = whole - target.drop
    most = min(target.most_islands, len(ranking))
    if judge.metric(()) >= allowed:
        return judge.result((), whole, allowed)
    if judge.metric(tuple(ranking[:most])) < allowed:
        best = max(judge.seen, key=lambda islands: (judge.seen[islands], -len(islands)))
        return judge.result(best, whole, allowed)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if judge.metric(tuple(ranking[:middle])) >= allowed else (middle, high)
    islands = tuple(ranking[:high])
    for name in reversed(islands[:-1]):
        fewer = tuple(one for one in islands if one != name)
        if judge.metric(fewer) >= allowed:
            islands = fewer
    return judge.result(islands, whole, allowed)


class _Judge:
    """Builds and measures models, each once."""

    def __init__(self, build: Build, target: MaxDrop, built: dict[tuple[str, ...], fx.GraphModule]) -> None:
        self._build = build
        self._target = target
        self._built = built
        self.seen: dict[tuple[str, ...], float] = {}

    def measure(self, model: fx.GraphModule) -> float:
        """Ask the user's metric."""
        found = float(self._target.metric(model))
        if found != found:  # noqa: PLR0124 (NaN is the one number that differs from itself)
            raise QuantizationError("the metric returned NaN; it must return a number, larger is better.")
        return found

    def metric(self, islands: tuple[str, ...]) -> float:
        """Return the metric with these layers float."""
        if islands not in self.seen:
            self._built = {islands: self._built.get(islands) or self._build(islands)}
            self.seen[islands] = self.measure(self._built[islands])
        return self.seen[islands]

    def result(self, islands: tuple[str, ...], whole: float, allowed: float) -> tuple[fx.GraphModule, Search]:
        """Return a model that was measured, and the search."""
        model = self._built.get(islands) or self._build(islands)
        return model, Search(islands, whole, self.seen[islands], allowed, len(self.seen))
