"""Declaration checks: a component's constructor, its ``run`` and its providers take the same options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component._output import ComponentOutput
from embedl_hub.errors import SignatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class RunSignature:
    """What a component's ``run`` takes after ``self``.

    ``paths`` are the positional names annotated as paths, ``returns`` is the class of the result if it is an output.
    """

    signature: inspect.Signature
    positional: tuple[str, ...]
    paths: frozenset[str]
    defaults: Mapping[str, Any]
    returns: type | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword-only names."""
        return tuple(self.defaults)


def check_component(cls: type, constructor: Callable[..., Any], run: Callable[..., Any]) -> RunSignature:
    """Return the signature of ``run``, or say how the class is declared wrongly."""
    where = f"{cls.__module__}.{cls.__qualname__}"
    run_parameters = _parameters(run, f"{where}.run")
    if inspect.iscoroutinefunction(run):
        raise SignatureError(f"{where}.run is async; components run in threads, declare it with plain def.")
    positional = tuple(name for name, parameter in run_parameters.items() if parameter.kind in _POSITIONAL)
    if not positional or positional[0] != "ctx":
        raise SignatureError(f"{where}.run must take ctx first: def run(self, ctx, ..., *, device=None, ...).")
    defaults = {name: parameter.default for name, parameter in run_parameters.items() if parameter.kind is _KEYWORD}
    without_default = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    if without_default:
        raise SignatureError(f"{where}.run: options need a default, but {_listed(without_default)} has none.")
    init_parameters = _parameters(constructor, f"{where}.__init__")
    loose = [name for name, parameter in init_parameters.items() if parameter.kind is not _KEYWORD]
    if loose:
        raise SignatureError(f"{where}.__init__: {_listed(loose)} must be keyword-only; put * before the options.")
    _compare(f"{where}.__init__", set(init_parameters) - {"name"}, f"{where}.run", set(defaults))
    paths = frozenset(name for name in positional if "Path" in str(run_parameters[name].annotation))
    signature = inspect.Signature(list(run_parameters.values()))
    return RunSignature(signature, positional, paths, defaults, _declared_class(run))


def check_provider_function(where: str, expected: RunSignature, function: Callable[..., Any]) -> None:
    """Say how a provider function differs from its component's ``run``, if it does."""
    name = f"Provider {function.__module__}.{function.__qualname__}"
    if inspect.iscoroutinefunction(function):
        raise SignatureError(f"{name} is async; providers run in threads, declare it with plain def.")
    parameters = inspect.signature(function).parameters
    positional = tuple(key for key, parameter in parameters.items() if parameter.kind in _POSITIONAL)
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        raise SignatureError(
            f"{name} takes *args; it must take ({', '.join(expected.positional)}) as {where}.run does."
        )
    if positional != expected.positional:
        raise SignatureError(
            f"{name} takes ({', '.join(positional)}) by position, but {where}.run takes "
            f"({', '.join(expected.positional)}); names and order must be the same."
        )
    options = {key for key, parameter in parameters.items() if parameter.kind is _KEYWORD}
    takes_rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    _compare(name, options, f"{where}.run", set(expected.options), may_miss=takes_rest)


def _compare(left: str, left_names: set[str], right: str, right_names: set[str], *, may_miss: bool = False) -> None:
    missing = set() if may_miss else right_names - left_names
    extra = left_names - right_names
    if missing or extra:
        faults = [f"{left} lacks {_listed(missing)}"] if missing else []
        faults += [f"{left} has {_listed(extra)}, which {right} does not know"] if extra else []
        raise SignatureError(
            f"{'; '.join(faults)}. The options of {right} are: {_listed(right_names) or 'none'}; they must be the same."
        )


def _parameters(function: Callable[..., Any], where: str) -> dict[str, inspect.Parameter]:
    _, *rest = inspect.signature(function).parameters.values()
    for parameter in rest:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise SignatureError(f"{where} takes {parameter}; name every parameter, so that they can be checked.")
    return {parameter.name: parameter for parameter in rest}


def _declared_class(run: Callable[..., Any]) -> type | None:
    """Return the class that ``run`` is declared to return; None when there is none, or it cannot be known now."""
    annotation = run.__annotations__.get("return")
    if isinstance(annotation, str):
        annotation = run.__globals__.get(annotation)
    is_output = isinstance(annotation, type) and issubclass(annotation, ComponentOutput)
    return annotation if is_output else None


def _listed(names: object) -> str:
    return ", ".join(repr(name) for name in sorted(names))  # type: ignore[call-overload]
