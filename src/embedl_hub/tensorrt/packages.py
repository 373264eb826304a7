"""What the TensorRT providers need on this machine, said in one line to type."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embedl_hub.errors import NoProviderError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def needed_packages(extra: str) -> Iterator[None]:
    """Import inside this block; a package that is missing becomes one line to type."""
    try:
        yield
    except ImportError as error:
        raise NoProviderError(
            f"TensorRT models need the Python package {error.name!r} on this machine, which cannot be imported "
            f"({error}). Install it with: pip install 'edgeproof-hub[{extra}]'"
        ) from error
