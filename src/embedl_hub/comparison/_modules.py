"""Modules of several runs side by side, and what leaving one of them in float would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from embedl_hub.core.profile import ModuleTime, ModuleTimes

# A module is worth a sentence for this part of the whole loss, or when float is faster by this part of the whole time.
_WORTH_SAYING = 0.005
_WORTH_SAVING = 0.01


@dataclass(frozen=True)
class ModuleRow:
    """What one module of the network costs in each run; None where a run does not name it.

    Attributes:
        name: Its qualified name; empty for the network itself.
        times_ms: Its time with that of all modules inside it.
        own_ms: The time of its own layers.
        precisions: The number format it ran in.
        sensitivity_share: Its part of what quantising all modules costs, by the first run that tells it.
    """

    name: str
    times_ms: tuple[float | None, ...]
    own_ms: tuple[float | None, ...]
    precisions: tuple[str | None, ...]
    sensitivity_share: float | None

    @property
    def depth(self) -> int:
        """How many modules it lies inside of."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True)
class FloatChoice:
    """What leaving one module in float would cost and win back, told by a float run and a quantised one.

    Both are times of layers run one by one, without an interval; where quantised neighbours meet a float module,
    conversions come on top.

    Attributes:
        name: The module.
        float_run: Number of the run in which it is float.
        quantized_run: Number of the run in which it is not.
        float_ms: Its own layers in float.
        quantized_ms: Its own layers quantised.
        sensitivity_share: The part of what quantising all modules costs that would be gone.
    """

    name: str
    float_run: int
    quantized_run: int
    float_ms: float
    quantized_ms: float
    sensitivity_share: float

    @property
    def extra_ms(self) -> float:
        """What an inference would take longer."""
        return self.float_ms - self.quantized_ms

    def sentence(self) -> str:
        """Say it in words."""
        name = self.name or "what the network itself computes"
        time = f"costs +{self.extra_ms:.3g} ms" if self.extra_ms > 0 else f"saves {-self.extra_ms:.3g} ms"
        return f"Leaving {name} in float {time} and wins back {self.sensitivity_share:.1%} of the quantisation loss."


def overlay_modules(tables: Sequence[ModuleTimes | None]) -> tuple[ModuleRow, ...]:
    """Return the module tables of several runs as rows over all of them, the costliest of neighbours first."""
    columns = [{} if times is None else {row.name: row for row in times.rows} for times in tables]
    names = {name for column in columns for name in column}

    def cost(name: str) -> float:
        return max(column[name].time_ms for column in columns if name in column)

    inside: dict[str, list[str]] = {}
    for name in names - {""}:
        inside.setdefault(name.rpartition(".")[0], []).append(name)
    waiting, rows = [""] if names else [], []
    while waiting:
        name = waiting.pop()
        rows.append(_row(name, [column.get(name) for column in columns]))
        waiting += sorted(inside.get(name, ()), key=lambda one: (cost(one), one))
    return tuple(rows)


def _row(name: str, found: Sequence[ModuleTime | None]) -> ModuleRow:
    shares = (one.sensitivity_share for one in found if one is not None and one.sensitivity_share is not None)
    return ModuleRow(
        name=name,
        times_ms=tuple(None if one is None else one.time_ms for one in found),
        own_ms=tuple(None if one is None else one.own_ms for one in found),
        precisions=tuple(None if one is None else one.precision for one in found),
        sensitivity_share=next(shares, None),
    )


def float_choices(rows: Sequence[ModuleRow]) -> tuple[FloatChoice, ...]:
    """Return which modules to leave in float, the most accuracy for the least time first.

    Rows of one pair of runs stand together; a module that is not worth a sentence is left out.
    """
    found = [choice for row in rows for choice in _choices(row) if _is_worth_it(choice, rows[0])]
    return tuple(sorted(found, key=lambda one: (one.quantized_run, *_order(one))))


def _is_worth_it(choice: FloatChoice, network: ModuleRow) -> bool:
    whole = network.times_ms[choice.quantized_run] or 0.0
    return choice.sensitivity_share >= _WORTH_SAYING or -choice.extra_ms > _WORTH_SAVING * whole


def _choices(row: ModuleRow) -> Iterator[FloatChoice]:
    known = [
        (number, time, precision.startswith("float"))
        for number, (time, precision) in enumerate(zip(row.own_ms, row.precisions, strict=True))
        if time is not None and precision is not None
    ]
    plain = next(((number, time) for number, time, is_float in known if is_float), None)
    if plain is None or row.sensitivity_share is None:
        return
    for number, time, is_float in known:
        if not is_float:
            yield FloatChoice(row.name, plain[0], number, plain[1], time, row.sensitivity_share)


def _order(choice: FloatChoice) -> tuple[bool, float]:
    if choice.extra_ms <= 0:
        return False, choice.extra_ms
    return True, choice.extra_ms / choice.sensitivity_share
