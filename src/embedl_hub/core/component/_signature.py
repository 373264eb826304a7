"""Declaration checks: a component's constructor, its ``run`` and its providers take the same options."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, TypeVar

from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.errors import SignatureError, quoted_list

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class RunSignature:
    """What a component's ``run`` takes after ``self``."""

    signature: inspect.Signature
    positional: tuple[str, ...]
    paths: frozenset[str]  # the positional names annotated as paths
    models: frozenset[str]  # the positional names annotated as compiled models
    defaults: Mapping[str, Any]
    constructor: frozenset[str] = frozenset()  # the options that its own constructor takes
    returns: type | None = None  # the class of the result if it is an output
    is_result_due: bool = True  # whether a provider owes a result

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword-only names."""
        return tuple(self.defaults)

    def of_constructor(self) -> inspect.Signature:
        """Return what the constructor takes: a name, and the options of ``run``."""
        name = inspect.Parameter("name", _KEYWORD, default=None, annotation="str | None")
        options = [each for each in self.signature.parameters.values() if each.kind is _KEYWORD]
        return inspect.Signature([name, *options])

    def check_options(self, where: str, names: Iterable[str]) -> None:
        """Refuse names that are no options."""
        if unknown := set(names) - set(self.defaults):
            raise SignatureError(f"{where} has no option {quoted_list(unknown)}; it has: {quoted_list(self.defaults)}.")


def check_component(cls: type, constructor: Callable[..., Any] | None, run: Callable[..., Any]) -> RunSignature:
    """Return the signature of ``run``, or say how the class is declared wrongly.

    The constructor is None when it takes the options of ``run`` as they are.
    """
    where = f"{source_of(run)}: {cls.__qualname__}"
    run_parameters = _parameters(run, f"{where}.run")
    if inspect.iscoroutinefunction(run):
        raise SignatureError(f"{where}.run is async; components run in threads, declare it with plain def.")
    positional = tuple(name for name, parameter in run_parameters.items() if parameter.kind in _POSITIONAL)
    if not positional or positional[0] != "ctx":
        raise SignatureError(f"{where}.run must take ctx first: def run(self, ctx, ..., *, device=None, ...).")
    defaults = {name: parameter.default for name, parameter in run_parameters.items() if parameter.kind is _KEYWORD}
    without_default = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    if without_default:
        raise SignatureError(f"{where}.run: options need a default, but {quoted_list(without_default)} has none.")
    if constructor is not None:
        init_parameters = _parameters(constructor, f"{where}.__init__")
        loose = [name for name, parameter in init_parameters.items() if parameter.kind is not _KEYWORD]
        if loose:
            raise SignatureError(
                f"{where}.__init__: {quoted_list(loose)} must be keyword-only; put * before the options."
            )
        _compare(f"{where}.__init__", set(init_parameters) - {"name"}, "run", set(defaults))
        differing = {
            name: (parameter.default, defaults[name])
            for name, parameter in init_parameters.items()
            if name in defaults and not is_same(parameter.default, defaults[name])
        }
        if differing:
            pairs = "; ".join(f"{name} is {init!r} and {run_!r}" for name, (init, run_) in differing.items())
            raise SignatureError(f"{where}: the defaults of __init__ and run differ: {pairs}. Write the same in both.")
        taken = frozenset(init_parameters) - {"name"}
    else:
        taken = frozenset()
    hints = {name: resolve(cls, run, run_parameters[name].annotation) for name in positional}
    paths = frozenset(name for name, hint in hints.items() if _is_path(hint))
    models = frozenset(
        name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, CompiledModel)
    )
    signature = inspect.Signature(list(run_parameters.values()))
    returns = resolve(cls, run, run.__annotations__.get("return"))
    is_output = isinstance(returns, type) and issubclass(returns, ComponentOutput)
    is_result_due = is_output or "return" not in run.__annotations__
    result = returns if is_output else None
    return RunSignature(signature, positional, paths, models, defaults, taken, result, is_result_due)


def source_of(function: Callable[..., Any]) -> str:
    """Return the file and line of a function, as a traceback has them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else function.__module__


def is_same(value: object, default: object) -> bool:
    """Tell whether a value is the default; an array is only itself."""
    if value is default:
        return True
    try:
        return bool(type(value) is type(default) and value == default)
    except ValueError:
        return False


def _is_path(annotation: object) -> bool:
    """Tell whether a parameter takes a path and nothing else but text and None."""
    kinds = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else (annotation,)
    kinds = tuple(typing.get_origin(kind) or kind for kind in kinds)
    if not all(isinstance(kind, type) for kind in kinds):
        return False
    paths = [kind for kind in kinds if issubclass(kind, PurePath) or kind is os.PathLike]
    return bool(paths) and all(kind in paths or kind in (str, NoneType) for kind in kinds)


def check_provider_function(where: str, expected: RunSignature, function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the options that a provider function takes, None for any, or say how it differs from ``run``."""
    if isinstance(function, type) or not hasattr(function, "__qualname__"):
        raise SignatureError(
            f"@{where}.provider(...) goes on a function, not on {function!r:.100}; write: def my_provider("
            f"{', '.join(expected.positional)}, *, device=None, **options)."
        )
    name = f"{source_of(function)}: provider {function.__qualname__}"
    if inspect.iscoroutinefunction(function):
        raise SignatureError(f"{name} is async; providers run in threads, declare it with plain def.")
    parameters = inspect.signature(function).parameters
    positional = tuple(key for key, parameter in parameters.items() if parameter.kind in _POSITIONAL)
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        raise SignatureError(
            f"{name} takes *args; it must take ({', '.join(expected.positional)}) as {where}.run does."
        )
    if positional != expected.positional:
        wanted = ", ".join([*expected.positional, "*", *(f"{key}=..." for key in expected.options)])
        raise SignatureError(
            f"{name} takes ({', '.join(positional)}) by position, but {where}.run takes "
            f"({', '.join(expected.positional)}); names and order must be the same. "
            f"Write: def {function.__name__}({wanted})."
        )
    options = {key for key, parameter in parameters.items() if parameter.kind is _KEYWORD}
    takes_rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    _compare(name, options, f"{where}.run", set(expected.options), may_miss=True)
    return None if takes_rest else frozenset(options)


def _compare(left: str, left_names: set[str], right: str, right_names: set[str], *, may_miss: bool = False) -> None:
    missing = set() if may_miss else right_names - left_names
    extra = left_names - right_names
    if missing or extra:
        faults = [f"{left} lacks {quoted_list(missing)}"] if missing else []
        faults += [f"{left} has {quoted_list(extra)}, which {right} does not know"] if extra else []
        import difflib  # noqa: PLC0415 - only where something is wrong

        close = [difflib.get_close_matches(name, right_names, 1) for name in sorted(extra)]
        hint = "".join(f" Did you mean {match[0]!r}?" for match in close if match)
        rule = "it may leave some out" if may_miss else "they must be the same"
        raise SignatureError(
            f"{'; '.join(faults)}. The options of {right} are: {quoted_list(right_names)}; {rule}.{hint}"
        )


def _parameters(function: Callable[..., Any], where: str) -> dict[str, inspect.Parameter]:
    _, *rest = inspect.signature(function).parameters.values()
    for parameter in rest:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise SignatureError(f"{where} takes {parameter}; name every parameter, so that they can be checked.")
    return {parameter.name: parameter for parameter in rest}


class _Numpy:
    """Stands for numpy, which is not imported to read a signature."""

    class ndarray:  # noqa: N801 - numpy's name
        """Stands for an array."""


# Names that modules import for type checkers only, so that they do not exist when a signature is read.
_COMMON = {"np": _Numpy, "os": os, "Path": Path, "Mapping": Mapping, "Sequence": Sequence}


def resolve(cls: type, run: Callable[..., Any], annotation: object) -> Any:  # noqa: ANN401 - a type
    """Return what an annotation of ``run`` stands for in a class; None where that cannot be known now."""
    if isinstance(annotation, str):
        try:
            names = {**_COMMON, **inspect.unwrap(run).__globals__}
            annotation = eval(annotation, names)  # noqa: S307 - the class author's own text
        except (NameError, AttributeError, TypeError, SyntaxError):
            return None
    return _type_arguments(cls).get(annotation, annotation) if isinstance(annotation, TypeVar) else annotation


def _type_arguments(cls: type) -> dict[Any, Any]:
    """Return what the type variables of generic bases are in a class."""
    arguments: dict[Any, Any] = {}
    for base in (each for parent in cls.__mro__ for each in getattr(parent, "__orig_bases__", ())):
        origin = typing.get_origin(base)
        parameters = getattr(origin, "__parameters__", ()) if origin is not typing.Generic else ()
        for parameter, value in zip(parameters, typing.get_args(base), strict=False):
            arguments.setdefault(parameter, value)
    return arguments
