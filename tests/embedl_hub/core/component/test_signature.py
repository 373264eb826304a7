"""Declarations are checked when they are made."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.errors import SignatureError


class Base(Component):
    run_type = RunType.COMPILE

    def __init__(self, *, name: str | None = None, device: str | None = None, level: int = 1) -> None:
        super().__init__(name=name, device=device, level=level)

    def run(self, ctx: HubContext, model: object, *, device: str | None = None, level: int = 1) -> object:
        raise NoProviderError


def test_run_keeps_its_declared_signature() -> None:
    """Dispatch takes the place of the body only; help() and type checkers see the declaration."""
    assert list(inspect.signature(Base.run).parameters) == ["self", "ctx", "model", "device", "level"]


def test_a_missing_and_an_extra_option_are_both_named() -> None:
    """The error names the class, what is missing and what is extra."""
    with pytest.raises(SignatureError) as caught:

        class Wrong(Component):
            run_type = RunType.COMPILE

            def __init__(self, *, name: str | None = None, device: str | None = None, fast: bool = True) -> None:
                super().__init__(name=name, device=device, fast=fast)

            def run(self, ctx: HubContext, model: object, *, device: str | None = None, level: int = 1) -> object:
                raise NoProviderError

    text = str(caught.value)
    assert "Wrong.__init__ lacks 'level'" in text
    assert "has 'fast'" in text
    assert "'device', 'level'" in text


def test_signature_errors_are_type_errors() -> None:
    """The seeds promise a TypeError-like failure at class creation."""
    assert issubclass(SignatureError, TypeError)


def _class_with(run: Any, init: Any = None, **extra: Any) -> type[Component]:
    def default_init(self: Component, *, name: str | None = None) -> None:
        Component.__init__(self, name=name)

    return type(
        "Made", (Component,), {"run_type": RunType.CUSTOM, "__init__": init or default_init, "run": run, **extra}
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda self, model: None, "must take ctx first"),
        (lambda self: None, "must take ctx first"),
        (lambda self, ctx, *models: None, r"\*models"),
        (lambda self, ctx, **options: None, r"\*\*options"),
    ],
)
def test_run_must_be_checkable(run: Any, words: str) -> None:
    """A run that hides its parameters, or has no context, is refused."""
    with pytest.raises(SignatureError, match=words):
        _class_with(run)


def test_an_option_needs_a_default() -> None:
    """Option resolution ends at the default, so there must be one."""

    def run(self: Component, ctx: HubContext, *, level: int) -> None: ...
    def init(self: Component, *, name: str | None = None, level: int = 1) -> None: ...

    with pytest.raises(SignatureError, match="'level' has none"):
        _class_with(run, init)


def test_constructor_options_are_keyword_only() -> None:
    """A positional constructor argument could not be matched to an option."""

    def run(self: Component, ctx: HubContext, *, level: int = 1) -> None: ...
    def init(self: Component, level: int = 1, *, name: str | None = None) -> None: ...

    with pytest.raises(SignatureError, match="'level' must be keyword-only"):
        _class_with(run, init)


def test_a_component_needs_a_run_type() -> None:
    """The error lists the run types."""
    with pytest.raises(SignatureError, match=r"needs a run_type.*RunType\.COMPILE"):
        _class_with(lambda self, ctx: None, run_type="compile")


def test_async_run_is_refused() -> None:
    """Nothing would await it."""

    async def run(self: Component, ctx: HubContext) -> None: ...

    with pytest.raises(SignatureError, match="async"):
        _class_with(run)


def test_a_subclass_that_changes_only_options_of_run_is_refused() -> None:
    """The check sees the class as a whole, inherited constructor included."""
    with pytest.raises(SignatureError, match="lacks 'extra'"):

        class Grown(Base):
            def run(
                self, ctx: HubContext, model: object, *, device: str | None = None, level: int = 1, extra: int = 0
            ) -> object:
                raise NoProviderError


def test_a_provider_with_other_positional_names_is_refused() -> None:
    """The error shows both lists."""
    with pytest.raises(SignatureError, match=r"takes \(ctx, onnx\).*takes \(ctx, model\)"):

        @Base.provider("p1")
        def _wrong(ctx: HubContext, onnx: object, *, device: str | None = None, level: int = 1) -> None: ...


def test_a_provider_that_lacks_an_option_is_refused_unless_it_takes_the_rest() -> None:
    """**kwargs stands for the options a provider does not name."""
    with pytest.raises(SignatureError, match="lacks 'level'"):

        @Base.provider("p2")
        def _short(ctx: HubContext, model: object, *, device: str | None = None) -> None: ...

    @Base.provider("p2")
    def _rest(ctx: HubContext, model: object, *, device: str | None = None, **kwargs: object) -> None: ...

    @Base.provider("p3")
    def _all_rest(ctx: HubContext, model: object, **kwargs: object) -> None: ...

    assert {"p2", "p3"} <= Base.provider_types()


def test_a_provider_with_an_unknown_option_is_refused() -> None:
    """Also when it takes the rest: the option would never be given."""
    with pytest.raises(SignatureError, match=r"has 'speed', which Base.run does not know.*'device', 'level'"):

        @Base.provider("p4")
        def _extra(ctx: HubContext, model: object, *, speed: int = 1, **kwargs: object) -> None: ...


@pytest.mark.parametrize("kind", ["star", "async"])
def test_a_provider_must_be_a_plain_function_with_names(kind: str) -> None:
    """*args and async are refused at registration."""

    def star(ctx: HubContext, *rest: object, **kwargs: object) -> None: ...
    async def waiting(ctx: HubContext, model: object, **kwargs: object) -> None: ...

    with pytest.raises(SignatureError, match="args" if kind == "star" else "async"):
        Base.provider("p5")(star if kind == "star" else waiting)


def test_the_decorator_without_a_type_says_how_to_write_it() -> None:
    """@X.provider without a call is an easy slip."""
    with pytest.raises(SignatureError, match=r"@Base.provider\('my_type'\)"):

        @Base.provider  # type: ignore[arg-type]
        def _bare(ctx: HubContext, model: object, **kwargs: object) -> None: ...


def test_a_class_without_run_takes_no_providers() -> None:
    """An abstract base has nothing to provide for."""

    class Abstract(Component):
        run_type = RunType.CUSTOM

    with pytest.raises(SignatureError, match="declares no run"):
        Abstract.provider("x")(lambda ctx: None)
    with pytest.raises(SignatureError, match="declares no run"):
        Abstract()
