"""What cannot be done, said once: deep inside as a refusal, to the user as the error of the step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from embedl_hub.errors import ComponentError, NoProviderError


class RefusedError(Exception):
    """The model, the data or the board is not what it should be; the text is for the user."""


@contextlib.contextmanager
def refusals_as(error_class: type[ComponentError]) -> Iterator[None]:
    """Turn refusals into a step's own error."""
    try:
        yield
    except RefusedError as error:
        raise error_class(str(error)) from error


@contextlib.contextmanager
def needed_packages(what: str, extra: str) -> Iterator[None]:
    """Import inside this block; a package that is missing becomes one line to type."""
    try:
        yield
    except ImportError as error:
        raise NoProviderError(
            f"{what} need the Python package {error.name!r} on this machine, which cannot be imported "
            f"({error}). Install it with: pip install 'edgeproof-hub[{extra}]'"
        ) from error
