"""Settings of a provider on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProviderConfig:
    """Base of every provider's settings: subclass it as a frozen dataclass and hang it on a device."""
