"""The base of every toolchain step."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import platform
import sys
import typing
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from embedl_hub.core.component._dispatch import Provider, ProviderTable, choose
from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.core.component._signature import (
    RunSignature,
    check_component,
    check_provider_function,
    is_same,
    resolve,
    source_of,
)
from embedl_hub.core.context import HubContext
from embedl_hub.core.device import ProviderConfig, settings_of
from embedl_hub.errors import ConfigError, OutputError, SignatureError, quoted_list
from embedl_hub.plugins import plugin_name
from embedl_hub.tracking import RunType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from embedl_hub.tracking import ActiveRun

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
        if lost := signature.constructor - set(defaults):
            written = ", ".join(f"{option}={option}" for option in ("name", *signature.options))
            raise SignatureError(
                f"{source_of(type(self).__init__)}: {type(self).__name__}.__init__ takes {quoted_list(lost)} and does "
                f"not pass it on, so it would be lost. Write: super().__init__({written})."
            )
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
        cls.__signature__ = cls._signature.of_constructor()  # type: ignore[attr-defined]  # what help() shows
        if run is not None:
            cls.run = _dispatching(run)  # type: ignore[attr-defined]

    @classmethod
    def provider(
        cls, provider_type: str = "", *, replace: bool = False, tools: tuple[str, ...] = ()
    ) -> Callable[[ProviderFunction], ProviderFunction]:
        """Register the decorated function as this component's provider of a type.

        Args:
            provider_type: Any name; devices refer to it. ``my-tool`` and ``my_tool`` are the same.
            replace: Take the place of one that is registered.
            tools: Distributions whose versions matter for the result; they are recorded with each run.
        """
        kind: object = provider_type
        if not isinstance(kind, str) or not kind.strip():
            caller = sys._getframe(1)  # noqa: SLF001 - where the decorator stands; there is no function yet
            raise SignatureError(
                f"{caller.f_code.co_filename}:{caller.f_lineno}: a provider type is a name, not {provider_type!r:.60}: "
                f"write @{cls.__name__}.provider('my_type')."
            )

        def register(function: ProviderFunction) -> ProviderFunction:
            if cls._signature is None:
                raise SignatureError(f"{cls.__qualname__} declares no run; providers go on components that do.")
            options = check_provider_function(cls.__qualname__, cls._signature, function)
            cls._table.add(Provider(plugin_name(provider_type), function, options, tools), replace=replace)
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
        client = ctx.client
        options = {
            **signature.defaults,
            **self._given_defaults(),
            **{k: v for k, v in given.items() if k in signature.defaults},
        }
        positional = [_positional(signature, name, given) for name in signature.positional]
        provider, device = choose(self._table, type(self).__name__, ctx, options.get("device"))
        if "device" in options:
            options["device"] = device
        client.redactor.learn(options)
        with client.start_run(
            self.run_type, self.name, component=type(self).__name__, provider=provider.type, device=device
        ):
            params = {**options, "$versions": tool_versions(provider.tools)}
            if device is not None:
                config = ctx.devices[device].get_provider_config(ProviderConfig, type(self))
                params = {**settings_of(config), **params}
            client.run.log_batch(params, tags=ctx.tags)
            with contextlib.nullcontext() if device is None else ctx.run_on(device):
                result = provider.function(*positional, **self._accepted(provider, signature, options))
            return self._checked(result, provider, signature, client.run)

    def _given_defaults(self) -> Mapping[str, object]:
        if "_defaults" not in self.__dict__:
            raise SignatureError(
                f"{source_of(type(self).__init__)}: {type(self).__name__}.__init__ does not call super().__init__; "
                f"its options would be lost. Write: super().__init__(name=name, device=device, ...)."
            )
        return self._defaults

    def _accepted(
        self, provider: Provider, signature: RunSignature, options: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Return the options that a provider takes; one that it does not take must have its default."""
        # What a provider takes is checked when it is registered: as many are all of them.
        if provider.options is None or len(provider.options) == len(options):
            return options
        refused = [
            name
            for name, value in options.items()
            if name not in provider.options and name != "device" and not is_same(value, signature.defaults[name])
        ]
        if refused:
            raise SignatureError(
                f"Provider {provider.type!r} of {type(self).__name__}, {provider.source}, does not take "
                f"{quoted_list(refused)}; leave it out, or add it to the function's keywords."
            )
        return {name: value for name, value in options.items() if name in provider.options}

    def _checked(self, result: object, provider: Provider, signature: RunSignature, run: ActiveRun) -> object:
        """Return what a provider returned; nothing passes with a warning, a wrong kind does not."""
        declared = signature.returns
        if result is None and signature.is_result_due:
            name = "ComponentOutput" if declared is None else declared.__name__
            run.log_param("$result", "none")
            warnings.warn(
                f"Provider {provider.type!r} of {type(self).__name__}, {provider.source}, returned nothing; the run is "
                f"recorded without a result. End it with: return {name}.from_current_run(ctx)",
                stacklevel=4,
            )
        elif result is not None and declared is not None and not isinstance(result, _step_output(declared)):
            raise OutputError(
                f"Provider {provider.type!r} of {type(self).__name__}, {provider.source}, returned {result!r:.100}, "
                f"which is no {_step_output(declared).__name__}. End it with: return "
                f"{declared.__name__}.from_current_run(ctx)"
            )
        return result


def _dispatching(declared: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(declared)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the declared signature is kept
        if not isinstance(self, Component):
            raise SignatureError(f"{declared.__qualname__} belongs to an instance; make one first: X().run(ctx, ...).")
        return self._dispatch(args, kwargs)

    return run


def _positional(signature: RunSignature, name: str, given: Mapping[str, object]) -> object:
    """Return an argument as a provider sees it: a path is always a Path, however the user wrote it."""
    value = given.get(name, signature.signature.parameters[name].default)
    if name in signature.models and isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is a compiled model, as a compiler's run returns it, not a path: {value!r:.100}.")
    if name not in signature.paths or value is None:
        return value
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} must be a path, not {value!r:.100}.")
    return Path(value)


def _step_output(declared: type[ComponentOutput]) -> type[ComponentOutput]:
    """Return the base of a step's outputs: any compiled model will do where one of a toolchain is declared."""
    return next(base for base in declared.__mro__ if ComponentOutput in base.__bases__ or base is ComponentOutput)


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
