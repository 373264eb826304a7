"""A backend is four lists of patterns under a name; installed ones are found by entry point.

The active backend and the cache of what is installed are the only state, and `reset_backends` forgets both.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points

from embedl_deploy.errors import BackendSelectionError, PatternError, UnknownBackendError, known
from embedl_deploy.pattern import Pattern, Phase, is_pattern

__all__ = [
    "Backend",
    "BackendWarning",
    "discover_backends",
    "get_backend",
    "reset_backends",
    "set_backend",
]

ENTRY_POINT_GROUP = "embedl_deploy.backends"
_FIELDS = {
    "conversion_patterns": Phase.CONVERSION,
    "fusion_patterns": Phase.FUSION,
    "smooth_patterns": Phase.SMOOTH,
    "quantized_patterns": Phase.QUANTIZED,
}


class BackendWarning(UserWarning):
    """An installed backend could not be loaded; the others still work."""


@dataclass(frozen=True)
class Backend:
    """The pattern classes a target wants, one list per stage of the pipeline.

    Attributes:
        symmetric_activations: The target wants zero in the middle of every range, unless the user says otherwise.
        integer_kernels: The target sums codes and rounds a bias to their grid; eval mode then computes the same.

    Raises:
        PatternError: A pattern's phase does not fit the list it stands in.
    """

    name: str
    conversion_patterns: Sequence[type[Pattern]] = ()
    fusion_patterns: Sequence[type[Pattern]] = ()
    smooth_patterns: Sequence[type[Pattern]] = ()
    quantized_patterns: Sequence[type[Pattern]] = ()
    symmetric_activations: bool = True
    integer_kernels: bool = False

    def __post_init__(self) -> None:
        """Check every pattern's phase against its field, and freeze the lists."""
        for field, phase in _FIELDS.items():
            patterns = tuple(getattr(self, field))
            for pattern in patterns:
                _check_phase(pattern, field, phase, self.name)
            object.__setattr__(self, field, patterns)

    @property
    def patterns(self) -> tuple[type[Pattern], ...]:
        """What `transform` uses: conversions, then fusions."""
        return (*self.conversion_patterns, *self.fusion_patterns)


def _check_phase(pattern: object, field: str, phase: Phase, backend: str) -> None:
    """Raise unless `pattern` is a pattern class of this phase."""
    if not is_pattern(pattern):
        raise PatternError(
            f"backend '{backend}', {field}: {pattern!r} is not a pattern class; list classes, not instances."
        )
    found = getattr(pattern, "phase", None)
    if found is not phase:
        has = f"has the phase {found.name}" if isinstance(found, Phase) else "has no phase"
        right = next((name for name, value in _FIELDS.items() if value is found), None)
        advice = f"move it to {right}" if right else f"set phase = Phase.{phase.name} on the class"
        raise PatternError(
            f"backend '{backend}', {field}: {pattern.__name__} {has}, this list takes {phase.name}; {advice}."
        )


@dataclass
class _State:
    """What `reset_backends` forgets."""

    active: Backend | None = None
    found: list[Backend] | None = None
    broken: dict[str, str] | None = None


_state = _State()


def discover_backends() -> list[Backend]:
    """Return the installed backends, by name; found once and remembered.

    A backend that fails to import is left out with a `BackendWarning`, and later errors name it again.
    """
    if _state.found is None:
        found: dict[str, Backend] = {}
        broken: dict[str, str] = {}
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
            try:
                loaded = point.load()
            except Exception as exc:  # noqa: BLE001 (a third party's import may raise anything)
                broken[point.name] = f"{type(exc).__name__}: {exc}"
                continue
            if not isinstance(loaded, Backend):
                broken[point.name] = f"its entry point '{point.value}' is a {type(loaded).__name__}, not a Backend"
                continue
            found[loaded.name] = loaded
        _state.found = [found[name] for name in sorted(found)]
        _state.broken = broken
        for name, reason in broken.items():
            warnings.warn(
                f"backend '{name}' could not be loaded and is left out: {reason}", BackendWarning, stacklevel=2
            )
    return list(_state.found)


def set_backend(name: str) -> None:
    """Choose the active backend.

    Raises:
        UnknownBackendError: No installed backend has this name.
    """
    _state.active = _installed(name)


def _installed(name: str) -> Backend:
    """Return the installed backend of a name."""
    for backend in discover_backends():
        if backend.name == name:
            return backend
    installed = [backend.name for backend in discover_backends()]
    hint = "Backends are packages: pip install edgeproof-deploy-tensorrt, for example."
    if close := get_close_matches(str(name).lower(), installed, n=1):
        hint = f"Did you mean '{close[0]}'?"
    raise UnknownBackendError(f"no backend is called '{name}'; installed: {known(installed)}.{_losses()} {hint}")


def get_backend(choice: Backend | str | None = None) -> Backend:
    """Return the backend that is meant by a choice: itself, one by name, or with `None` the active or only one.

    Raises:
        UnknownBackendError: No installed backend has this name.
        BackendSelectionError: None is installed, or several are and `set_backend` was not called.
    """
    if isinstance(choice, Backend):
        return choice
    if choice is not None:
        return _installed(choice)
    if _state.active is not None:
        return _state.active
    found = discover_backends()
    if len(found) == 1:
        return found[0]
    if not found:
        raise BackendSelectionError(
            f"no backend is installed.{_losses()} Install one (pip install edgeproof-deploy-tensorrt) "
            f"or give the patterns: transform(model, args, patterns=[...])."
        )
    names = [backend.name for backend in found]
    raise BackendSelectionError(
        f"several backends are installed ({known(names)}) and none is chosen; call set_backend('{names[0]}') "
        f"or another of them first, or give the patterns: transform(model, args, patterns=[...])."
    )


def reset_backends() -> None:
    """Forget the active backend and what was discovered."""
    _state.active = _state.found = _state.broken = None


def _losses() -> str:
    """Name the backends that were installed but did not load."""
    return "".join(
        f" Backend '{name}' is installed but did not load ({why})." for name, why in (_state.broken or {}).items()
    )
