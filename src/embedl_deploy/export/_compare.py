"""Sums for one comparison of two stages."""

import numpy as np

from embedl_deploy.errors import InputError


class Comparison:
    """Sums for one comparison, sample by sample."""

    def __init__(self) -> None:
        self.signal = self.noise = self.largest = 0.0
        self.same = self.rows = 0
        self.is_integer = False  # indices and classes: compared entry by entry
        self.is_classes = False  # a row of scores per sample

    def add(self, reference: np.ndarray, values: np.ndarray) -> None:
        """Add a sample.

        Raises:
            InputError: The shapes differ.
        """
        if reference.shape != values.shape:
            raise InputError(f"Outputs have the shapes {reference.shape} and {values.shape}: not the same model.")
        wanted = reference.astype(np.float64)
        with np.errstate(invalid="ignore"):  # an output that is not finite makes the result no number: it is judged
            difference = values.astype(np.float64) - wanted
        self.signal += float(np.sum(wanted**2))
        self.noise += float(np.sum(difference**2))
        self.largest = float(np.maximum(self.largest, np.max(np.abs(difference), initial=0.0)))
        self.is_integer = reference.dtype.kind in "iub"
        self.is_classes = not self.is_integer and reference.ndim == 2 and reference.shape[1] > 1
        if self.is_integer:
            self.same += int(np.sum(reference == values))
            self.rows += reference.size
            return
        first, second = np.atleast_2d(reference), np.atleast_2d(values)
        if first.size:
            flat = (first.shape[0], -1)
            self.same += int(np.sum(first.reshape(flat).argmax(1) == second.reshape(flat).argmax(1)))
            self.rows += first.shape[0]

    @property
    def decibels(self) -> float:
        """Signal over difference; infinite when there is no difference."""
        if self.noise == 0:
            return float("inf")
        return float(10 * np.log10(max(self.signal, 1e-300) / self.noise))

    @property
    def agreement(self) -> float:
        """Share of rows whose largest entry is at the same place; of integers, of equal entries."""
        return self.same / self.rows if self.rows else 1.0
