"""The base of every toolchain step."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from embedl_hub.core.component._dispatch import Provider, ProviderTable, choose
from embedl_hub.core.component._provider_type import normal_type
from embedl_hub.core.component._signature import RunSignature, check_component, check_provider_function
from embedl_hub.core.context import HubContext, spec_as_value
from embedl_hub.errors import ConfigError, OutputError, SignatureError, known
from embedl_hub.tracking import RunType, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CLAIMED = "$claimed"
"""The parameter that says from when until when a run had its device."""

ProviderFunction = TypeVar("ProviderFunction", bound="Callable[..., Any]")


class Component:
    """A toolchain step: a class with ``run_type``, ``__init__`` and ``run``, carried out by providers.

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
        unknown = set(defaults) - set(signature.options)
        if unknown:
            raise SignatureError(
                f"{type(self).__name__} has no option {known(unknown)}; it has: {known(signature.options)}."
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
        cls._signature = check_component(cls, cls.__init__, declared)
        if run is not None:
            cls.run = _dispatching(run)  # type: ignore[attr-defined]

    @classmethod
    def provider(
        cls, provider_type: str, *, replace: bool = False, tools: tuple[str, ...] = ()
    ) -> Callable[[ProviderFunction], ProviderFunction]:
        """Register the decorated function as this component's provider of a type.

        Args:
            provider_type: Any name; devices refer to it. ``qai-hub`` and ``qai_hub`` are the same.
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
            cls._table.add(Provider(normal_type(provider_type), function, tools), replace=replace)
            return function

        return register

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
        if unknown := set(kwargs) - set(signature.signature.parameters):
            raise SignatureError(
                f"{type(self).__name__}.run has no option {known(unknown)}; it has: {known(signature.options)}."
            )
        try:
            given = signature.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise SignatureError(f"{type(self).__name__}.run{signature.signature}: {error}.") from None
        ctx = given["ctx"]
        if not isinstance(ctx, HubContext):
            raise ConfigError(f"{type(self).__name__}.run takes a HubContext first, not {ctx!r}.")
        options = {
            **signature.defaults,
            **self._defaults,
            **{k: v for k, v in given.items() if k in signature.defaults},
        }
        positional = [
            _value(name, given[name], is_path=name in signature.paths) for name in signature.positional if name in given
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
                self._record(ctx, provider, device, options)
                result = provider.function(*positional, **options)
            if signature.returns is not None and not isinstance(result, signature.returns):
                declared = signature.returns.__name__
                raise OutputError(
                    f"Provider {provider.type!r} of {type(self).__name__} returned {result!r:.100}, but run is "
                    f"declared to return {declared}: end it with return {declared}.from_current_run(ctx)."
                )
            return result

    def _record(self, ctx: HubContext, provider: Provider, device: str | None, options: Mapping[str, object]) -> None:
        params = {**options, "$versions": tool_versions(provider.tools)}
        if device is not None:
            params["$device_spec"] = spec_as_value(ctx.device_spec(device))
        ctx.client.run.log_batch(params, tags=ctx.tags)


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


def _value(name: str, given: object, *, is_path: bool) -> object:
    """Return an argument as a provider sees it: a path is always a Path, however the user wrote it."""
    if not is_path:
        return given
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
