"""A backend is four lists of patterns under a name; installed ones are found by entry point.

The active backend and the cache of what is installed are the only state, and `reset_backends` forgets both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from embedl_deploy._extras import Registry
from embedl_deploy.errors import BackendSelectionError, PatternError, UnknownBackendError, quoted_list
from embedl_deploy.pattern import Pattern, Phase, is_pattern

__all__ = ["Backend", "discover_backends", "get_backend", "register_backend", "reset_backends", "set_backend"]

_FIELDS = {f"{phase.value}_patterns": phase for phase in Phase}


class _Patterns(tuple[type[Pattern], ...]):
    """A list that was given, frozen; it is equal to what was given."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


@dataclass(frozen=True)
class Backend:
    """The pattern classes a target wants, one list per stage of the pipeline.

    Raises:
        PatternError: A pattern's phase does not fit the list it stands in.
    """

    name: str
    conversion_patterns: Sequence[type[Pattern]] = ()
    fusion_patterns: Sequence[type[Pattern]] = ()
    smooth_patterns: Sequence[type[Pattern]] = ()
    quantized_patterns: Sequence[type[Pattern]] = ()
    # The target wants zero in the middle of every range, unless the user says otherwise
    symmetric_activations: bool = True
    # The target sums codes and rounds a bias to their grid; eval mode then computes the same
    integer_kernels: bool = False

    def __post_init__(self) -> None:
        """Check the name and every pattern's phase against its field, and freeze the lists."""
        name: object = self.name
        if not isinstance(name, str) or not name.strip():
            raise PatternError(f"a backend needs a name to be chosen by, not {name!r}.")
        for field, phase in _FIELDS.items():
            given: object = getattr(self, field)
            if not isinstance(given, Iterable) or isinstance(given, str):
                raise PatternError(
                    f"backend '{name}', {field} is {given!r}; give a list of pattern classes, or nothing."
                )
            patterns = _Patterns(given)
            for pattern in patterns:
                _check_phase(pattern, field, phase, name)
            object.__setattr__(self, field, patterns)

    @property
    def patterns(self) -> tuple[type[Pattern], ...]:
        """What `transform` uses: conversions, then fusions."""
        return (*self.conversion_patterns, *self.fusion_patterns)


def _check_phase(pattern: object, field: str, phase: Phase, backend: str) -> None:
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


_registry = Registry("embedl_deploy.backends", Backend)
_active: list[Backend] = []


def discover_backends() -> list[Backend]:
    """Return the installed and the registered backends, by name; found once and remembered.

    A backend that fails to import is left out with a `PluginWarning`, and later errors name it again.
    """
    return list(_registry.all().values())


def register_backend(backend: Backend) -> None:
    """Make a backend of your own known by its name, in this process; a package does it by entry point."""
    _registry.add(backend.name, backend)


def set_backend(name: str) -> None:
    """Choose the active backend.

    Raises:
        UnknownBackendError: No installed backend has this name.
    """
    _active[:] = [_installed(name)]


def _installed(name: str) -> Backend:
    found = _registry.all()
    if name in found:
        return found[name]
    installed = list(found)
    hint = "Backends are packages: pip install edgeproof-deploy-tensorrt, for example."
    if close := get_close_matches(str(name).lower(), installed, n=1):
        hint = f"Did you mean '{close[0]}'?"
    raise UnknownBackendError(
        f"no backend is called '{name}'; installed: {quoted_list(installed)}.{_broken_backends()} {hint}"
    )


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
    if _active:
        return _active[0]
    found = discover_backends()
    if len(found) == 1:
        return found[0]
    if not found:
        raise BackendSelectionError(
            f"no backend is installed.{_broken_backends()} Install one (pip install edgeproof-deploy-tensorrt) "
            f"or give the patterns: transform(model, args, patterns=[...])."
        )
    # One that can do everything helps whatever was called.
    complete = next((backend for backend in found if backend.quantized_patterns), found[0])
    raise BackendSelectionError(
        f"several backends are installed ({quoted_list(backend.name for backend in found)}) and none is chosen; name a "
        f"target or a backend (--target, --backend), or choose one for every call: set_backend('{complete.name}')."
    )


def reset_backends() -> None:
    """Forget the active backend, what was discovered and what was registered."""
    _active.clear()
    _registry.clear()


def _broken_backends() -> str:
    return "".join(
        f" Backend '{name}' is installed but did not load ({why})." for name, why in _registry.broken.items()
    )
