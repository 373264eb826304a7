"""Backends: phases, discovery by entry point, selection."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedl_deploy import backend as module
from embedl_deploy.backend import Backend, discover_backends, get_backend, reset_backends, set_backend
from embedl_deploy.errors import BackendSelectionError, PatternError, PluginWarning, UnknownBackendError
from embedl_deploy.patterns import ConvBNPattern, RemoveDropoutPattern

Install = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    reset_backends()
    yield
    reset_backends()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with one backend; nothing else is installed."""
    monkeypatch.setattr(module._registry, "group", "embedl_deploy.backends.test")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> None:
        (tmp_path / f"edgeproof_test_{name}.py").write_text(source)
        info = tmp_path / f"edgeproof_test_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: edgeproof-test-{name}\nVersion: 1.0\n")
        points = f"[embedl_deploy.backends.test]\n{name} = edgeproof_test_{name}:BACKEND\n"
        (info / "entry_points.txt").write_text(points)

    return write


GOOD = "from embedl_deploy.backend import Backend\nBACKEND = Backend('{}')\n"


def test_ours_are_found_by_their_entry_points() -> None:
    """Both installed distributions register themselves."""
    assert [backend.name for backend in discover_backends()] == ["lattice", "onnxruntime", "tensorrt"]


def test_none_installed_names_what_to_do(install: Install) -> None:
    """With no backend, the error says how to get one."""
    del install
    assert discover_backends() == []
    with pytest.raises(BackendSelectionError, match=r"no backend is installed.*pip install edgeproof-deploy-tensorrt"):
        get_backend()


def test_the_only_one_is_selected_by_itself(install: Install) -> None:
    """With one backend there is nothing to choose."""
    install("solo", GOOD.format("solo"))
    assert get_backend().name == "solo"


def test_several_and_none_chosen(install: Install) -> None:
    """With several, the error names them and the call to make."""
    install("one", GOOD.format("one"))
    install("two", GOOD.format("two"))
    with pytest.raises(BackendSelectionError, match=r"'one', 'two'.*set_backend\('one'\)") as caught:
        get_backend()
    assert isinstance(caught.value, RuntimeError)
    set_backend("two")
    assert get_backend().name == "two"
    reset_backends()
    with pytest.raises(RuntimeError):
        get_backend()


def test_unknown_name_lists_what_is_installed(install: Install) -> None:
    """A wrong name is answered with the right ones."""
    install("one", GOOD.format("one"))
    with pytest.raises(UnknownBackendError, match=r"no backend is called 'tensorflow'; installed: 'one'") as caught:
        set_backend("tensorflow")
    assert isinstance(caught.value, ValueError)


def test_a_broken_backend_does_not_take_the_others_down(install: Install) -> None:
    """An import that fails is reported by name and reason; the rest works."""
    install("good", GOOD.format("good"))
    install("sick", "raise RuntimeError('no driver')\n")
    with pytest.warns(PluginWarning, match=r"'sick' could not be loaded.*RuntimeError: no driver"):
        assert [backend.name for backend in discover_backends()] == ["good"]
    with pytest.raises(UnknownBackendError, match=r"'sick' is installed but did not load \(RuntimeError: no driver\)"):
        set_backend("sick")


def test_an_entry_point_to_something_else_is_reported(install: Install) -> None:
    """An entry point that is not a Backend is a broken backend."""
    install("odd", "BACKEND = 3\n")
    with pytest.warns(PluginWarning, match="is a int, not a Backend"):
        assert discover_backends() == []


def test_discovery_is_cached(install: Install) -> None:
    """A backend installed later is seen after a reset."""
    install("one", GOOD.format("one"))
    discover_backends()
    install("two", GOOD.format("two"))
    assert len(discover_backends()) == 1
    reset_backends()
    assert len(discover_backends()) == 2


def test_wrong_phase_names_pattern_phase_and_field() -> None:
    """The error has everything needed to put it right."""
    with pytest.raises(PatternError, match=r"'mine', fusion_patterns: RemoveDropoutPattern has the phase CONVERSION"):
        Backend("mine", fusion_patterns=[RemoveDropoutPattern])
    with pytest.raises(PatternError, match="move it to fusion_patterns"):
        Backend("mine", smooth_patterns=[ConvBNPattern])


def test_an_instance_is_no_pattern_class() -> None:
    """Lists hold classes."""
    with pytest.raises(PatternError, match="list classes, not instances"):
        Backend("mine", fusion_patterns=[ConvBNPattern()])  # type: ignore[list-item]


def test_lists_are_frozen() -> None:
    """A backend cannot be changed through the list it was made from."""
    patterns = [ConvBNPattern]
    made = Backend("mine", fusion_patterns=patterns)
    patterns.clear()
    assert made.patterns == (ConvBNPattern,)


def test_a_backend_is_equal_to_what_it_was_made_from() -> None:
    """A list stays comparable with a list, and both ways of writing one backend make the same."""
    made = Backend("mine", fusion_patterns=[ConvBNPattern])
    assert made.fusion_patterns == [ConvBNPattern]
    assert (made.fusion_patterns != [ConvBNPattern]) is False
    assert made == Backend("mine", fusion_patterns=(ConvBNPattern,))
    assert hash(made) == hash(Backend("mine", fusion_patterns=(ConvBNPattern,)))


@pytest.mark.parametrize("name", ["", " ", None])
def test_a_backend_needs_a_name(name: str) -> None:
    """It could not be chosen otherwise."""
    with pytest.raises(PatternError, match="needs a name"):
        Backend(name)


def test_a_field_that_is_no_list_says_so() -> None:
    """None is easily written for nothing."""
    with pytest.raises(PatternError, match="fusion_patterns is None; give a list of pattern classes, or nothing"):
        Backend("mine", fusion_patterns=None)  # type: ignore[arg-type]


def test_the_advice_names_a_backend_that_can_quantize(install: Install) -> None:
    """Whatever was called, what the message says helps."""
    install("alpha", GOOD.format("alpha"))
    install("beta", GOOD.format("beta"))
    with pytest.raises(BackendSelectionError, match=r"set_backend\('(alpha|beta)'\)"):
        get_backend()
