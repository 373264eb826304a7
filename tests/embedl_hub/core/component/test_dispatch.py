"""Who carries out a step: explicit device, first device that is served, local, or a helpful refusal."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, ProviderType, RunType
from embedl_hub.core.device import Device
from embedl_hub.errors import ConfigError, SignatureError
from embedl_hub.testing import temporary_context


def make_component(base: type[Component] = Component) -> Any:
    class Step(base):  # type: ignore[misc, valid-type]
        run_type = RunType.CUSTOM

        def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
            super().__init__(name=name, device=device)

        def run(self, ctx: HubContext, *, device: str | None = None) -> Any:
            raise NoProviderError

    return Step


def answering(word: str) -> Any:
    def provider(ctx: HubContext, *, device: str | None = None) -> tuple[str, str | None]:
        return word, device

    return provider


def cloud(name: str, provider_type: str) -> Device:
    return Device(name, provider_type=provider_type)


def test_the_first_device_that_is_served_is_taken() -> None:
    """Devices of other types are passed over; order on the context decides."""
    step = make_component()
    for kind in ("a", "b", "local"):
        step.provider(kind)(answering(kind))
    with temporary_context([cloud("x", "unknown"), cloud("y", "b"), cloud("z", "a")]) as ctx:
        assert step().run(ctx) == ("b", "y")
        assert step(device="z").run(ctx) == ("a", "z")
        assert step(device="z").run(ctx, device="y") == ("b", "y")


def test_this_machine_never_stands_in_for_a_device() -> None:
    """A mistyped type is an error that lists the types; this machine is meant by name, or without devices."""
    step = make_component()
    step.provider(ProviderType.LOCAL)(answering("here"))
    step.provider("my_board")(answering("there"))
    with temporary_context([cloud("x", "my_bord")]) as ctx:
        with pytest.raises(
            NoProviderError,
            match=r"types: 'local', 'my_board'. Devices on the context: 'x' \(my_bord\).*say device='local' \(--here\)",
        ):
            step().run(ctx)
        assert step().run(ctx, device="local") == ("here", None)
    with temporary_context() as ctx:
        assert step().run(ctx) == ("here", None)


def test_an_unknown_device_lists_the_known_ones() -> None:
    """The error names what was asked for and what there is."""
    step = make_component()
    step.provider("a")(answering("a"))
    with (
        temporary_context([cloud("x", "a"), cloud("y", "a")]) as ctx,
        pytest.raises(ConfigError, match=r"no device 'z' on this context; its devices are: 'x', 'y'"),
    ):
        step(device="z").run(ctx)


def test_nobody_lists_providers_and_devices() -> None:
    """NoProviderError shows both sides and what to do."""
    step = make_component()
    step.provider("a")(answering("a"))
    with temporary_context([cloud("x", "b")]) as ctx:
        with pytest.raises(NoProviderError) as caught:
            step().run(ctx)
        assert "Its provider types: 'a'" in str(caught.value)
        assert "'x' (b)" in str(caught.value)
        assert "@Step.provider" in str(caught.value)
        with pytest.raises(NoProviderError, match="device 'x' is of type 'b'"):
            step().run(ctx, device="x")


def test_no_provider_error_can_be_raised_bare() -> None:
    """The seeds' bodies do."""
    with pytest.raises(NoProviderError, match="declaration"):
        raise NoProviderError


def other(ctx: HubContext, **_: object) -> tuple[str, str | None]:
    """Another function than what answering returns."""
    return "other", None


def test_a_type_that_another_function_has_needs_replace() -> None:
    """The error names who has the type and where it stands; with replace the newer one is taken."""
    step = make_component()
    step.provider("a")(answering("first"))
    with pytest.raises(
        SignatureError, match=r"already has a provider 'a', answering.*test_dispatch.py:\d+.*replace=True"
    ):
        step.provider("a")(other)
    step.provider("a", replace=True)(other)
    with temporary_context([cloud("x", "a")]) as ctx:
        assert step().run(ctx)[0] == "other"


def test_a_function_defined_again_takes_its_own_place() -> None:
    """A notebook's cell is run twice; a page has two versions of one function."""
    step = make_component()
    step.provider("a")(answering("first"))
    step.provider("a")(answering("second"))
    with temporary_context([cloud("x", "a")]) as ctx:
        assert step().run(ctx)[0] == "second"


def test_hyphen_and_underscore_are_one_type() -> None:
    """On the device and on the provider alike."""
    step = make_component()
    step.provider("my-kind")(answering("mine"))
    with temporary_context([cloud("x", "my_kind"), cloud("y", "my-kind")]) as ctx:
        assert step().run(ctx) == ("mine", "x")
        assert step(device="y").run(ctx) == ("mine", "y")
    with pytest.raises(SignatureError, match="already has a provider 'my_kind'"):
        step.provider("my_kind")(other)


def test_a_subclass_inherits_providers_and_keeps_its_own_to_itself() -> None:
    """Registering on the child changes nothing on the parent, and may take an inherited type."""
    parent = make_component()
    child = make_component(parent)
    parent.provider("a")(answering("parent"))
    child.provider("b")(answering("child"))
    with temporary_context([cloud("x", "a"), cloud("y", "b")]) as ctx:
        assert child().run(ctx, device="x")[0] == "parent"
        assert child().run(ctx, device="y")[0] == "child"
        with pytest.raises(NoProviderError):
            parent().run(ctx, device="y")
        child.provider("a")(answering("child's a"))
        assert child().run(ctx, device="x")[0] == "child's a"
        assert parent().run(ctx, device="x")[0] == "parent"


class Installed(Component):
    """A component that a made-up installed package provides for."""

    run_type = RunType.CUSTOM

    def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
        super().__init__(name=name, device=device)

    def run(self, ctx: HubContext, *, device: str | None = None) -> Any:
        raise NoProviderError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a distribution with three providers on the import path: a good one, and two with a missing need."""
    info = tmp_path / "made_up-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\nProvides-Extra: needy-kind\n")
    (info / "entry_points.txt").write_text(
        "[embedl_hub.providers]\ngood_kind = made_up_good\nneedy_kind = made_up_needy\nplain_kind = made_up_needy\n"
    )
    (tmp_path / "made_up_good.py").write_text(
        textwrap.dedent("""
            import sys
            component = sys.modules["__component__"].Installed

            @component.provider("good_kind")
            def _good(ctx, *, device=None):
                return "installed", device
        """)
    )
    (tmp_path / "made_up_needy.py").write_text("import a_vendor_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "__component__", sys.modules[__name__])
    monkeypatch.delitem(sys.modules, "made_up_good", raising=False)
    for table in (Installed._table,):
        monkeypatch.setattr(table, "_own", {})
    return tmp_path


def test_an_installed_provider_is_imported_on_first_use(package: Path) -> None:
    """Importing the component imports nothing; the first call for its type does."""
    assert "made_up_good" not in sys.modules
    with temporary_context([cloud("x", "good-kind")]) as ctx:
        assert Installed().run(ctx) == ("installed", "x")
    assert "made_up_good" in sys.modules


def test_a_missing_vendor_package_gives_the_line_to_install_it(package: Path) -> None:
    """One clear error: which provider, of which package, why, and the pip line with the extra."""
    with temporary_context([cloud("x", "needy-kind")]) as ctx, pytest.raises(NoProviderError) as caught:
        Installed().run(ctx)
    text = str(caught.value)
    assert "'needy_kind' of made-up" in text
    assert "a_vendor_package_that_is_not_there" in text
    assert "pip install 'made-up[needy-kind]'" in text


def test_a_provider_without_an_extra_of_its_name_suggests_the_package(package: Path) -> None:
    """Not every distribution has an extra per provider."""
    with (
        temporary_context([cloud("x", "plain_kind")]) as ctx,
        pytest.raises(NoProviderError, match="pip install --upgrade made-up"),
    ):
        Installed().run(ctx)


def test_a_broken_installed_provider_does_not_hide_the_list(package: Path) -> None:
    """For a type nobody has, the installed types are still listed."""
    with temporary_context([cloud("x", "other")]) as ctx, pytest.raises(NoProviderError, match="'good_kind'"):
        Installed().run(ctx)


def test_the_users_registration_of_an_installed_type_needs_replace(package: Path) -> None:
    """The installed one counts as registered, loaded or not; replaced, it stays replaced."""
    with pytest.raises(SignatureError, match="already has a provider 'good_kind'"):
        Installed.provider("good_kind")(answering("mine"))
    Installed.provider("good_kind", replace=True)(answering("mine"))
    with temporary_context([cloud("x", "good_kind")]) as ctx:
        assert Installed().run(ctx)[0] == "mine"


def test_replacing_before_the_installed_one_is_loaded_holds(package: Path) -> None:
    """Loading the package later does not take the place back."""
    Installed.provider("good_kind", replace=True)(answering("mine"))
    with temporary_context([cloud("x", "good_kind"), cloud("y", "other")]) as ctx:
        with pytest.raises(NoProviderError):
            Installed().run(ctx, device="y")
        assert "made_up_good" in sys.modules
        assert Installed().run(ctx)[0] == "mine"
