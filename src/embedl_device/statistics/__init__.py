"""Every statistic of the house: percentiles, intervals, verdicts, and ratios with how far they can be trusted.

Shared by the programs on a board and by the hub. Knows no unit and no metric; numpy is imported on use.
"""

from embedl_device.statistics._ratios import (
    LogError,
    Ranked,
    Ratio,
    Series,
    log_error,
    paired_ratio,
    rank,
    ratio_of,
    series_of,
    trimmed_mean,
    without_waiting,
)
from embedl_device.statistics._samples import (
    PERCENTILE_RULE,
    Interval,
    Judgement,
    Summary,
    Verdict,
    judge,
    judge_ratios,
    mean_interval,
    median_interval,
    percentile,
    relative_change,
    spread,
    summarize,
)

__all__ = [
    "PERCENTILE_RULE", "Interval", "Judgement", "LogError", "Ranked", "Ratio", "Series", "Summary", "Verdict",
    "judge", "judge_ratios", "log_error", "mean_interval", "median_interval", "paired_ratio", "percentile", "rank",
    "ratio_of", "relative_change", "series_of", "spread", "summarize", "trimmed_mean", "without_waiting",
]  # fmt: skip
