"""The statistics of a whole model: saved, loaded, merged, and solved again without the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import torch

from embedl_deploy.errors import CalibrationError, known
from embedl_deploy.quantize._histogram import Histogram

_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """What one pass over the calibration data left.

    Attributes:
        statistics: By stub name.
    """

    statistics: Mapping[str, Histogram] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Calibration: {len(self.statistics)} tensors, {self.batches} batches>"

    @property
    def batches(self) -> int:
        """How many batches were seen."""
        return max((one.batches for one in self.statistics.values()), default=0)

    def merge(self, *others: "Calibration") -> "Calibration":
        """Return the statistics of all: equal to the last bit to one pass over all the data, in any order.

        Raises:
            CalibrationError: They are of different models.
        """
        for other in others:
            if odd := set(self.statistics) ^ set(other.statistics):
                raise CalibrationError(
                    f"these calibrations are of different models: only one of them knows {known(sorted(odd)[:5])}; "
                    "merge calibrations of one model with one placement."
                )
        merged = {
            name: reduce(Histogram.merge, (other.statistics[name] for other in others), one)
            for name, one in self.statistics.items()
        }
        return Calibration(merged)

    def save(self, path: str | Path) -> Path:
        """Write to a file and return its path."""
        target = Path(path)
        state = {name: one.to_state() for name, one in self.statistics.items()}
        torch.save({"format": _FORMAT, "statistics": state}, target)
        return target

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read from a file.

        Raises:
            CalibrationError: The file is no calibration.
        """
        try:
            found = torch.load(Path(path), weights_only=True)
            statistics = {name: Histogram.from_state(state) for name, state in found["statistics"].items()}
        except FileNotFoundError as exc:
            raise CalibrationError(f"there is no calibration file '{path}'; Calibration.save writes one.") from exc
        except Exception as exc:
            raise CalibrationError(
                f"'{path}' is no calibration file, or a damaged one; Calibration.save writes one."
            ) from exc
        return cls(statistics)
