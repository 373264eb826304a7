"""Parameters of which some are enough for every day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the values for ``parametrize``: those that are kept run in ``./test``, the others with ``--all``.

    A tuple is the values of several parameters.
    """
    values = list(values)
    missing = [value for value in kept if value not in values]
    assert not missing, missing
    return [value if value in kept else pytest.param(*_each(value), marks=pytest.mark.slow) for value in values]


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
