"""Settings that every measuring provider has, whatever the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field

from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.errors import ConfigError


def check_words(name: str, value: object) -> None:
    """Refuse a setting that is not a tuple of words."""
    if isinstance(value, str) or not all(isinstance(word, str) for word in value):  # type: ignore[attr-defined]
        raise ConfigError(f"{name} is a tuple of words, not {value!r}.")


@dataclass(frozen=True)
class MeasuringConfig(ProviderConfig):
    """How much to measure, and with how many threads.

    Attributes:
        threads: Threads within one operator; None leaves it to the runtime.
        iterations: A profile takes at least so many samples,
        min_seconds: and measures at least so long,
        max_seconds: but never longer than this.
        max_warmup_seconds: The warm-up ends here even if the times still change.
        layer_runs: Profiled runs for the layers, after the measurement; 0 leaves the layers out.
        timeout_s: The device program is stopped after this long; None takes the runner's own limit.
    """

    threads: int | None = field(default=None, kw_only=True)
    iterations: int = field(default=100, kw_only=True)
    min_seconds: float = field(default=1.0, kw_only=True)
    max_seconds: float = field(default=30.0, kw_only=True)
    max_warmup_seconds: float = field(default=5.0, kw_only=True)
    layer_runs: int = field(default=10, kw_only=True)
    timeout_s: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("iterations", 1), ("layer_runs", 0), ("max_seconds", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or value < least):
                raise ConfigError(f"{name} must be at least {least}, not {value!r}.")
