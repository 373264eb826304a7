"""A look at what a model is calibrated on: inputs of zeros, one number everywhere, a value far from all others."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy.errors import CalibrationError, quoted_list

_FAR = 1000.0
_TYPICAL = 4


@dataclass
class _Seen:
    """What was seen of one input."""

    low: float = float("inf")
    high: float = float("-inf")
    peaks: list[float] = field(default_factory=list)  # the largest magnitude of every row that has one


class InputWatch:
    """Watches the inputs of a model while it is calibrated.

    A row with a value a thousand times larger than rows have typically would give every tensor a range that fits this
    row alone. Such values are told, and cut down to the typical peak where `clips` is set.
    """

    def __init__(self, model: fx.GraphModule, *, clips: bool) -> None:
        self._model, self._clips = model, clips
        self._names = [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]
        self._seen: dict[str, _Seen] = {}
        self._only_floats = True
        self._batch = 0
        self._outliers: list[str] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every call, and let the model run with what the watch makes of it."""
        with self._model.register_forward_pre_hook(self._look, with_kwargs=True):
            yield
        self._check()

    def _look(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._batch += 1
        named = [*zip(self._names, args, strict=False), *kwargs.items()]
        made = {name: self._input(name, value) for name, value in named}
        kept = [made.get(name, value) for name, value in zip(self._names, args, strict=False)]
        return (*kept, *args[len(kept) :]), {name: made[name] for name in kwargs}

    def _input(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            self._only_floats = False
            return value
        if not value.numel():
            return value
        low, high = (float(bound) for bound in torch.aminmax(value.detach()))
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            return value  # calibration refuses it, and names it
        seen = self._seen.setdefault(name, _Seen())
        rows = value.detach().abs().reshape(value.shape[0] if value.ndim else 1, -1)
        peaks = rows.amax(1)
        typical = self._typical(seen, rows, peaks)
        if typical and float(peaks.max()) > _FAR * typical:
            usual = peaks[peaks <= _FAR * typical]
            most = max([typical, *seen.peaks, *usual.tolist()])
            self._tell(name, float(peaks.max()), typical, most)
            if self._clips:
                value = value.clamp(-most, most)
            peaks, low, high = usual, max(low, -most), min(high, most)
        seen.low, seen.high = min(seen.low, low), max(seen.high, high)
        seen.peaks.extend(peak for peak in peaks.tolist() if peak > 0)
        return value

    def _typical(self, seen: _Seen, rows: torch.Tensor, peaks: torch.Tensor) -> float:
        """Return the peak that rows have: the median where some are known, else all but the last 0.01 % of a row."""
        known = [*seen.peaks, *(peak for peak in peaks.tolist() if peak > 0)]
        if len(known) >= _TYPICAL:
            return float(statistics.median(known))
        count = rows.shape[1]
        if count < _TYPICAL:
            return 0.0
        highest, _ = rows.kthvalue(min(int(0.9999 * count), count - 1), dim=1)
        return float(highest.max())

    def _tell(self, name: str, peak: float, typical: float, most: float) -> None:
        done = f"it was cut to {most:.3g}" if self._clips else "ranges reach as far"
        self._outliers.append(
            f"calibration batch {self._batch} has a value of {peak:.3g} in input '{name}', {peak / typical:.1g} times "
            f"the typical largest one; {done}. Look for a damaged sample."
        )

    def _check(self) -> None:
        zeros = [name for name, seen in self._seen.items() if seen.low == seen.high == 0]
        if zeros and self._only_floats and len(zeros) == len(self._seen):
            raise CalibrationError(
                f"the calibration data is all zeros in input {quoted_list(zeros)}, so no range can be taken from it; "
                "give batches of real data, prepared as the model is given them."
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd, a sentence each."""
        constant = [
            f"input '{name}' is {seen.low:.4g} everywhere in the calibration data; ranges hold for that number alone."
            for name, seen in self._seen.items()
            if seen.low == seen.high
        ]
        more = [f"{len(self._outliers) - 4} batches more have such values."] if len(self._outliers) > 4 else []
        return (*constant, *self._outliers[:4], *more)
