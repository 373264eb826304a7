"""Every statistic of the house: percentiles, intervals, verdicts, and ratios with how far they can be trusted.

Shared by the programs on a board and by the hub. Knows no unit and no metric; numpy is imported on use.
"""

from embedl_device.statistics._ratios import (
    LogError,
    Ranked,
    Ratio,
    Series,
    correlation_length,
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
    Verdict,
    judge,
    judge_ratios,
    mean_interval,
    mean_of,
    median_interval,
    percentile,
    relative_change,
    spread,
)
from embedl_device.statistics._tails import (
    BOUND_RULE,
    PERCENTS,
    Summary,
    Tail,
    effective_number,
    fewest_samples,
    slowest_of_bound,
    summarize,
    tail_facts,
    tails,
)

__all__ = [
    "BOUND_RULE", "PERCENTILE_RULE", "PERCENTS", "Interval", "Judgement", "LogError", "Ranked", "Ratio", "Series",
    "Summary", "Tail", "Verdict", "correlation_length", "effective_number", "fewest_samples", "judge",
    "judge_ratios", "log_error", "mean_interval", "mean_of", "median_interval", "paired_ratio", "percentile", "rank",
    "ratio_of", "relative_change", "series_of", "slowest_of_bound", "spread", "summarize", "tail_facts", "tails",
    "trimmed_mean", "without_waiting",
]  # fmt: skip
