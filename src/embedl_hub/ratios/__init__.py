"""Ratios of measurements, and how far they can be trusted: of two runs' samples, and of models measured in turns."""

from embedl_hub.ratios._paired import Ranked, paired_ratio, rank
from embedl_hub.ratios._samples import RATES, Error, Ratio, Samples, centre, error_of, ratio_of, take

__all__ = [
    "RATES",
    "Error",
    "Ranked",
    "Ratio",
    "Samples",
    "centre",
    "error_of",
    "paired_ratio",
    "rank",
    "ratio_of",
    "take",
]
