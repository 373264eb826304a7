"""The base of every toolchain step; its constructor, its run and its providers take the same options."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import platform
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from embedl_hub.core.component._dispatch import Provider, ProviderTable, choose
from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.core.context import HubContext, spec_as_value
from embedl_hub.errors import ConfigError, OutputError, SignatureError, quoted_list
from embedl_hub.plugins import plugin_name
from embedl_hub.tracking import RunType, now_ms

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class RunSignature:
    """What a component's ``run`` takes after ``self``."""

    signature: inspect.Signature
    positional: tuple[str, ...]
    paths: frozenset[str]  # the positional names annotated as paths
    defaults: Mapping[str, Any]
    returns: type | None = None  # the class of the result if it is an output

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword-only names."""
        return tuple(self.defaults)

    def check_options(self, where: str, names: Iterable[str]) -> None:
        """Refuse names that are no options."""
        if unknown := set(names) - set(self.defaults):
            raise SignatureError(f"{where} has no option {quoted_list(unknown)}; it has: {quoted_list(self.defaults)}.")


def check_component(cls: type, constructor: Callable[..., Any] | None, run: Callable[..., Any]) -> RunSignature:
    """Return the signature of ``run``, or say how the class is declared wrongly.

    The constructor is None when it takes the options of ``run`` as they are.
    """
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
        raise SignatureError(f"{where}.run: options need a default, but {quoted_list(without_default)} has none.")
    if constructor is not None:
        init_parameters = _parameters(constructor, f"{where}.__init__")
        loose = [name for name, parameter in init_parameters.items() if parameter.kind is not _KEYWORD]
        if loose:
            names = quoted_list(loose)
            raise SignatureError(f"{where}.__init__: {names} must be keyword-only; put * before the options.")
        _compare(f"{where}.__init__", set(init_parameters) - {"name"}, f"{where}.run", set(defaults))
    paths = frozenset(name for name in positional if "Path" in str(run_parameters[name].annotation))
    signature = inspect.Signature(list(run_parameters.values()))
    returns = resolve(cls, run, run.__annotations__.get("return"))
    is_output = isinstance(returns, type) and issubclass(returns, ComponentOutput)
    return RunSignature(signature, positional, paths, defaults, returns if is_output else None)


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
        faults = [f"{left} lacks {quoted_list(missing)}"] if missing else []
        faults += [f"{left} has {quoted_list(extra)}, which {right} does not know"] if extra else []
        raise SignatureError(
            f"{'; '.join(faults)}. The options of {right} are: {quoted_list(right_names)}; they must be the same."
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


CLAIMED = "$claimed"
"""The parameter that says from when until when a run had its device."""

ProviderFunction = TypeVar("ProviderFunction", bound="Callable[..., Any]")


class Component:
    """A toolchain step: a class with ``run_type`` and ``run``, which providers implement.

    A subclass declares; its ``run`` has the body ``raise NoProviderError`` and dispatch takes its place. The
    keyword-only names of ``__init__`` (besides ``name``) and of ``run`` are the step's options: a value given to
    ``run`` goes before one given to the constructor, which goes before the default.
    """

    run_type: ClassVar[RunType]
    _signature: ClassVar[RunSignature | None] = None
    _table: ClassVar[ProviderTable] = ProviderTable("Component", ())

    def __init__(self, *, name: str | None = None, **defaults: object) -> None:
        """Keep the defaults for every ``run``.

        Args:
            name: What runs of this instance are called; the class's name when not given.
            **defaults: The options, by the names that ``run`` has.
        """
        signature = self._declared()
        signature.check_options(type(self).__name__, defaults)
        self.name = name or type(self).__name__
        self._defaults = defaults

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self._defaults.items())
        return f"{type(self).__name__}({options})"

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        super().__init_subclass__(**kwargs)
        bases = tuple(base._table for base in cls.__bases__ if issubclass(base, Component))  # noqa: SLF001 - our own class
        cls._table = ProviderTable(cls.__qualname__, bases)
        run = cls.__dict__.get("run")
        inherited = getattr(cls, "run", None)
        declared = run or getattr(inherited, "__wrapped__", None)
        if declared is None:
            return
        if not isinstance(getattr(cls, "run_type", None), RunType):
            raise SignatureError(
                f"{cls.__module__}.{cls.__qualname__} needs a run_type, one of: "
                f"{', '.join(f'RunType.{kind.name}' for kind in RunType)}."
            )
        constructor = None if cls.__init__ is Component.__init__ else cls.__init__
        cls._signature = check_component(cls, constructor, declared)
        if run is not None:
            cls.run = _dispatching(run)  # type: ignore[attr-defined]

    @classmethod
    def provider(
        cls, provider_type: str, *, replace: bool = False, tools: tuple[str, ...] = ()
    ) -> Callable[[ProviderFunction], ProviderFunction]:
        """Register the decorated function as this component's provider of a type.

        Args:
            provider_type: Any name; devices refer to it. ``my-tool`` and ``my_tool`` are the same.
            replace: Take the place of one that is registered.
            tools: Distributions whose versions matter for the result; they are recorded with each run.
        """
        if callable(provider_type) or not str(provider_type).strip():
            raise SignatureError(
                f"A provider type is a name, not {provider_type!r}: write @{cls.__name__}.provider('my_type')."
            )

        def register(function: ProviderFunction) -> ProviderFunction:
            if cls._signature is None:
                raise SignatureError(f"{cls.__qualname__} declares no run; providers go on components that do.")
            check_provider_function(cls.__qualname__, cls._signature, function)
            cls._table.add(Provider(plugin_name(provider_type), function, tools), replace=replace)
            return function

        return register

    @classmethod
    def result_class(cls) -> type[ComponentOutput] | None:
        """Return the class that ``run`` is declared to return, if it is an output."""
        return cls._declared().returns

    @classmethod
    def run_signature(cls) -> inspect.Signature:
        """Return what ``run`` takes after ``self``; a provider takes the same."""
        return cls._declared().signature

    @classmethod
    def model_class(cls) -> type[CompiledModel]:
        """Return the class of compiled models that ``run`` takes, one or several of them."""
        declared = cls.run.__wrapped__  # type: ignore[attr-defined]
        names = cls._declared().positional
        annotation = resolve(cls, declared, declared.__annotations__.get(names[1])) if len(names) > 1 else None
        for kind in (annotation, *(resolve(cls, declared, each) for each in typing.get_args(annotation))):
            if isinstance(kind, type) and issubclass(kind, CompiledModel):
                return kind
        return CompiledModel

    @classmethod
    def provider_types(cls) -> frozenset[str]:
        """Return the provider types registered so far; installed ones appear once they are used."""
        return frozenset(cls._table.types())

    @classmethod
    def _declared(cls) -> RunSignature:
        if cls._signature is None:
            raise SignatureError(f"{cls.__qualname__} declares no run; subclass it and declare one.")
        return cls._signature

    def _dispatch(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        signature = self._declared()
        if kwargs:
            signature.check_options(f"{type(self).__name__}.run", set(kwargs) - set(signature.positional))
        try:
            given = signature.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise SignatureError(f"{type(self).__name__}.run{signature.signature}: {error}.") from None
        ctx = given["ctx"]
        if not isinstance(ctx, HubContext):
            raise ConfigError(f"{type(self).__name__}.run takes a HubContext first, not {ctx!r}.")
        options = {**signature.defaults, **self._defaults, **{k: given[k] for k in given if k in signature.defaults}}
        positional = [
            _as_path(name, given[name]) if name in signature.paths else given[name]
            for name in signature.positional
            if name in given
        ]
        provider, device = choose(self._table, type(self).__name__, ctx, options.get("device"))
        if "device" in options:
            options["device"] = device
        client = ctx.client
        client.redactor.learn(options)
        with client.start_run(
            self.run_type, self.name, component=type(self).__name__, provider=provider.type, device=device
        ):
            with contextlib.nullcontext() if device is None else _claimed(ctx, device):
                params = {**options, "$versions": tool_versions(provider.tools)}
                if device is not None:
                    params["$device_spec"] = spec_as_value(ctx.device_spec(device))
                client.run.log_batch(params, tags=ctx.tags)
                result = provider.function(*positional, **options)
            if signature.returns is not None and not isinstance(result, signature.returns):
                declared = signature.returns.__name__
                raise OutputError(
                    f"Provider {provider.type!r} of {type(self).__name__} returned {result!r:.100}, but run is "
                    f"declared to return {declared}: end it with return {declared}.from_current_run(ctx)."
                )
            return result


@contextlib.contextmanager
def _claimed(ctx: HubContext, device: str) -> Iterator[None]:
    """Have a device, and record from when until when: a run begins before, while it waits for its turn."""
    run = ctx.client.run
    with ctx.claim(device):
        from_ms = now_ms()
        run.log_param(CLAIMED, {"from_ms": from_ms})
        try:
            yield
        finally:
            run.log_param(CLAIMED, {"from_ms": from_ms, "until_ms": now_ms()})


def _dispatching(declared: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(declared)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the declared signature is kept
        if not isinstance(self, Component):
            raise SignatureError(f"{declared.__qualname__} belongs to an instance; make one first: X().run(ctx, ...).")
        return self._dispatch(args, kwargs)

    return run


def _as_path(name: str, given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{name} must be a path, not {given!r:.100}.")
    return Path(given)


@functools.cache
def tool_versions(tools: tuple[str, ...]) -> dict[str, str | None]:
    """Return the versions a run depends on; None for a tool that is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "system": platform.platform()}
    for tool in ("edgeproof-hub", *tools):
        try:
            versions[tool] = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            versions[tool] = None
    return versions
