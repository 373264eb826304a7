"""Declarations are checked when they are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.errors import ConfigError, SignatureError, TrackingError
from embedl_hub.testing import temporary_context


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


def test_a_provider_may_leave_options_out() -> None:
    """A value for one that it lacks is refused at the call, with the place of the function; the default passes."""

    class Step(Base):
        """Without providers of its own."""

    @Step.provider("local")
    def _short(ctx: HubContext, model: object) -> object:
        return model

    with temporary_context() as ctx:
        assert Step().run(ctx, 5) == 5
        assert Step(level=1).run(ctx, 5) == 5
        with pytest.raises(SignatureError, match=r"_short \(.*test_signature.py:\d+\), does not take 'level'"):
            Step(level=2).run(ctx, 5)


def test_a_provider_that_takes_the_rest_gets_every_option() -> None:
    """**kwargs stands for the options a provider does not name."""

    class Step(Base):
        """Without providers of its own."""

    @Step.provider("local")
    def _rest(ctx: HubContext, model: object, **kwargs: object) -> object:
        return kwargs

    with temporary_context() as ctx:
        assert Step().run(ctx, 5, level=2) == {"device": None, "level": 2}


def test_a_provider_with_other_positions_is_shown_what_to_write() -> None:
    """With its file and line."""
    with pytest.raises(SignatureError, match=r"test_signature.py:\d+: .*Write: def _other\(ctx, model, \*, device=..."):

        @Base.provider("p9")
        def _other(ctx: HubContext, path: object, **kwargs: object) -> None: ...


def test_defaults_of_constructor_and_run_must_agree() -> None:
    """Either would be a surprise."""
    with pytest.raises(SignatureError, match=r"test_signature.py:\d+: .*Wrong: the defaults .* level is 1 and 2"):

        class Wrong(Component):
            run_type = RunType.COMPILE

            def __init__(self, *, name: str | None = None, device: str | None = None, level: int = 1) -> None:
                super().__init__(name=name, device=device, level=level)

            def run(self, ctx: HubContext, *, device: str | None = None, level: int = 2) -> object:
                raise NoProviderError


def test_an_option_that_the_constructor_forgets_is_found() -> None:
    """It would be lost without a word."""

    class Forgets(Component):
        run_type = RunType.COMPILE

        def __init__(self, *, name: str | None = None, device: str | None = None, level: int = 1) -> None:
            super().__init__(name=name, device=device)

        def run(self, ctx: HubContext, *, device: str | None = None, level: int = 1) -> object:
            raise NoProviderError

    with pytest.raises(SignatureError, match=r"'level' and does not pass it on.*level=level"):
        Forgets(level=9)

    class ForgetsAll(Forgets):
        def __init__(self, *, name: str | None = None, device: str | None = None, level: int = 1) -> None:
            pass

    with temporary_context() as ctx, pytest.raises(SignatureError, match="does not call super"):
        ForgetsAll().run(ctx)


class PathNetModel:
    """Not a path."""


@pytest.mark.parametrize(
    ("annotation", "given", "seen"),
    [
        (Path, "a", Path("a")),
        (str | Path, "a", Path("a")),
        ("str | os.PathLike[str]", "a", Path("a")),
        (Path | None, "a", Path("a")),
        (Path | None, None, None),
        (PurePosixPath, "a", Path("a")),
        (list[Path], ["a"], ["a"]),
        (dict[str, Path], {"a": "b"}, {"a": "b"}),
        (Path | bytes, b"a", b"a"),
        (PathNetModel, 5, 5),
        ("PathNetModel", 5, 5),
        (str, "a", "a"),
    ],
)
def test_only_paths_become_paths(annotation: object, given: object, seen: object) -> None:
    """By what an annotation means, not by how it is spelled."""

    def run(self: object, ctx: HubContext, model: Any, *, device: str | None = None) -> Any:
        raise NoProviderError

    run.__annotations__["model"] = annotation
    step: Any = type("Step", (Component,), {"run_type": RunType.CUSTOM, "run": run})
    step.provider("local")(lambda ctx, model, **_: model)
    with temporary_context() as ctx:
        assert step().run(ctx, given) == seen


def test_a_positional_default_reaches_the_provider() -> None:
    """As in any function."""

    class Step(Component):
        run_type = RunType.CUSTOM

        def run(self, ctx: HubContext, model: Path = Path("m"), times: int = 3, *, device: str | None = None) -> Any:
            raise NoProviderError

    Step.provider("local")(lambda ctx, model, times, **_: (model, times))
    with temporary_context() as ctx:
        assert Step().run(ctx) == (Path("m"), 3)


@pytest.mark.parametrize("kind", [None, 3, "", " "])
def test_a_provider_type_is_a_name(kind: Any) -> None:
    """Not whatever can be made text."""
    with pytest.raises(SignatureError, match="a provider type is a name"):
        Base.provider(kind)


def test_a_context_that_is_not_open_says_so() -> None:
    """Before anything else."""

    class Step(Base):
        """Without providers."""

    with pytest.raises(TrackingError, match="is not open; use: with HubContext"):
        Step().run(HubContext("p", tracking=False), 5)


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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            Base.provider,
            r"test_signature.py:\d+: a provider type is a name.*write @Base.provider\('my_type'\)",
        ),
        (lambda: Base.provider("x")(7), r"goes on a function, not on 7; write: def my_provider\(ctx, model, \*"),  # type: ignore[type-var]
        (lambda: Base.provider("x")(PathNetModel), r"goes on a function, not on <class .*write: def my_provider"),
        (lambda: Base.provider("x")(functools.partial(print)), "goes on a function"),
    ],
)
def test_a_slip_at_registration_says_what_to_write(make: Callable[[], object], words: str) -> None:
    """With the place where it stands."""
    with pytest.raises(SignatureError, match=words):
        make()


def test_a_mistyped_option_of_a_provider_is_guessed() -> None:
    """The right name is in the message."""
    with pytest.raises(SignatureError, match=r"has 'levle'.*it may leave some out. Did you mean 'level'\?"):

        @Base.provider("p10")
        def _mistyped(ctx: HubContext, model: object, *, levle: int = 1) -> None: ...


def test_a_path_where_a_compiled_model_is_wanted_is_refused() -> None:
    """Before the provider trips over it."""
    with temporary_context() as ctx, pytest.raises(ConfigError, match=r"is a compiled model, .* not a path: 'net"):
        ONNXRuntimeProfiler().run(ctx, "net.onnx")  # type: ignore[arg-type]
