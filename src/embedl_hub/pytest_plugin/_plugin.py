"""The plugin that pytest loads: options, markers, fixtures and reports.

It is loaded in every project of an environment that has the hub, so nothing of the hub is imported before a test
uses it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from embedl_hub.pytest_plugin._ends import NotMeasuredError
from embedl_hub.pytest_plugin._running import CURRENT, RunningTest

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Device
    from embedl_hub.pytest_plugin._session import Session

_MARKER = (
    "board(query=None, *, pool=None, each=False, name=None, kind=None, arch=None, os=None, cpu=None, accelerator=None, "
    "memory_at_least=None, cores_at_least=None): the device of the fixture `board`: the first that is like this, or "
    "every device of a pool, or with each=True every device that is like this."
)
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_TEST: pytest.StashKey[RunningTest] = pytest.StashKey()
_HOME: pytest.StashKey[Path] = pytest.StashKey()
_ATTRIBUTE = "edgeproof_findings"
_MOST_SHOWN = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what says where models are measured and recorded."""
    group = parser.getgroup("edgeproof", "Edgeproof: models on devices")
    group.addoption("--hub-home", metavar="DIR", help="the store and its devices; pytest's cache if nothing says more")
    group.addoption("--hub-project", metavar="NAME", help="record runs under this project")
    group.addoption(
        "--hub-device", metavar="NAME[,NAME]", help="the device of `board` and of the checks; pool:NAME for a pool"
    )
    group.addoption("--hub-missing", choices=("error", "skip"), help="what to do when no device is like the marker")
    group.addoption("--hub-record", metavar="TAG=VALUE", help="record models as this baseline, compare nothing with it")
    group.addoption("--hub-strict", action="store_true", default=None, help="what cannot be told is a failure")
    group.addoption("--hub-summary", metavar="FILE", help="append a summary in Markdown, as to $GITHUB_STEP_SUMMARY")
    parser.addini("hub_home", "The store and its devices, from the root folder on", default="")
    parser.addini("hub_project", "Record runs under this project", default="tests")
    parser.addini("hub_device", "The device of `board` and of the checks", default="")
    parser.addini("hub_missing", "error or skip: what to do when no device is like the marker", default="error")
    parser.addini("hub_strict", "What cannot be told is a failure", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse what cannot work before any test runs."""
    config.addinivalue_line("markers", _MARKER)
    record = config.getoption("--hub-record")
    if record is not None and not all(record.partition("=")):
        raise pytest.UsageError(f"--hub-record is {record!r}; it must look like TAG=VALUE, as stage=main.")
    if config.getini("hub_missing") not in ("error", "skip"):
        raise pytest.UsageError(f"hub_missing is {config.getini('hub_missing')!r}; it is error or skip.")
    summary = config.getoption("--hub-summary")
    if summary is not None and not _is_worker(config):
        _check_writable(Path(summary))
    if not _is_worker(config):
        config.pluginmanager.register(_Reporter(config), "edgeproof-report")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")  # pytest-xdist's word for it


def _check_writable(path: Path) -> None:
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise pytest.UsageError(f"--hub-summary cannot be written to {path}: {error.strerror}.") from None


def _session(config: pytest.Config) -> Session:
    if _SESSION not in config.stash:
        from embedl_hub.pytest_plugin._session import Session, Settings  # noqa: PLC0415 - on first use

        settings = Settings(
            home=_home(config),
            project=_setting(config, "project"),
            device=_setting(config, "device"),
            skips_missing=_setting(config, "missing") == "skip",
            record=config.getoption("--hub-record"),
            is_strict=bool(config.getoption("--hub-strict") or config.getini("hub_strict")),
            root=config.rootpath,
        )
        config.stash[_SESSION] = Session(settings)
    return config.stash[_SESSION]


def _setting(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"--hub-{name}") or config.getini(f"hub_{name}"))


def _home(config: pytest.Config) -> Path:
    """Return the store's folder: what is said, else one in pytest's cache, which stays from session to session."""
    if _HOME in config.stash:
        return config.stash[_HOME]
    told = getattr(config, "workerinput", {}).get("edgeproof_home") or config.getoption("--hub-home")
    if told is not None:
        home = Path(told).expanduser().absolute()
    elif config.getini("hub_home"):
        home = config.rootpath / Path(config.getini("hub_home")).expanduser()
    elif "EMBEDL_HUB_HOME" in os.environ:
        home = Path(os.environ["EMBEDL_HUB_HOME"]).expanduser().absolute()
    elif (cache := getattr(config, "cache", None)) is not None:
        home = cache.mkdir("edgeproof")
    else:
        import tempfile  # noqa: PLC0415 - only without pytest's cache

        home = Path(tempfile.mkdtemp(prefix="edgeproof-tests-"))
    config.stash[_HOME] = home
    return home


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the store and the connections, if a test opened them."""
    if _SESSION in config.stash:
        config.stash[_SESSION].close()


@pytest.fixture(scope="session")
def hub(pytestconfig: pytest.Config) -> HubContext:
    """An open context on the store of the tests, with the devices of its home and this machine as ``here``."""
    return _session(pytestconfig).context


@pytest.fixture
def board(request: pytest.FixtureRequest, hub: HubContext) -> Iterator[Device]:
    """The device that the marker ``board`` or ``--hub-device`` names, this test's own until it ends."""
    __tracebackhide__ = True
    session = _session(request.config)
    name = getattr(request, "param", None)
    if isinstance(name, NotMeasuredError):
        raise name
    if name is None:
        marker = _wanted(request.node)
        name, missing = session.choose(marker.args if marker else (), marker.kwargs if marker else {})
        if name is None:
            pytest.skip(missing)
    with session.lease(name):
        if _TEST in request.node.stash:
            request.node.stash[_TEST].device = name
        yield hub.devices[name]


def _wanted(node: Any) -> pytest.Mark | None:  # noqa: ANN401 - pytest's node
    found: pytest.Mark | None = node.get_closest_marker("board")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each device of a pool, or of those that are like the marker."""
    if "board" not in metafunc.fixturenames:
        return
    marker, option = _wanted(metafunc.definition), metafunc.config.getoption("--hub-device") or ""
    is_many = marker is not None and (marker.kwargs.get("pool") or marker.kwargs.get("each"))
    if not is_many and "," not in option and not option.startswith("pool:"):
        return
    from embedl_hub.errors import HubError  # noqa: PLC0415 - the hub is used from here on

    try:
        names = _session(metafunc.config).each_of(marker.args if marker else (), marker.kwargs if marker else {})
    except (HubError, NotMeasuredError) as error:
        # An error of this test: one of its module, or of the session, would keep the others from running.
        metafunc.parametrize("board", [NotMeasuredError(str(error))], indirect=True, ids=["unknown"])
        return
    metafunc.parametrize("board", names, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the checks know the test they are called in."""
    test = RunningTest(item.nodeid, lambda: _session(item.config), item.user_properties.append)
    item.stash[_TEST] = test
    token = CURRENT.set(test)
    try:
        return (yield)
    finally:
        CURRENT.reset(token)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what nobody can blame the model for an error, not a failure; hand what was found on with the report."""
    report = yield
    test = item.stash.get(_TEST, None)
    if test is None:
        return report
    if call.excinfo is not None and _is_not_measured(call.excinfo.value):
        # Also where it was expected to fail: a board that is off shows nothing of what was expected.
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)
        if report.when == "call":
            report.when = "setup"  # the one way in which pytest and JUnit tell an error from a failure
        test.add_error(str(call.excinfo.value))
    setattr(report, _ATTRIBUTE, test.take())
    return report


def _is_not_measured(error: BaseException) -> bool:
    if isinstance(error, NotMeasuredError):
        return True
    import sys  # noqa: PLC0415 - only after a failure

    # Without this module nothing of the hub can have raised it.
    errors = sys.modules.get("embedl_hub.errors")
    return errors is not None and errors.blames_board(error)


class _Reporter:
    """What was found by all tests, shown at the end; one for the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[tuple[str, dict[str, Any]]] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 - pytest-xdist's
        """Have all workers of pytest-xdist record into one store."""
        node.workerinput["edgeproof_home"] = str(_home(self._config))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what was found; a worker of pytest-xdist sends it with the report."""
        self._found += [(report.nodeid, found) for found in getattr(report, _ATTRIBUTE, ())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was measured, where, in which runs, and how to open them."""
        if not self._found:
            return
        from embedl_hub.pytest_plugin._report import shown, write_summary  # noqa: PLC0415 - only where something is

        home = _home(self._config)
        terminalreporter.section("edgeproof")
        for line in shown(self._found[:_MOST_SHOWN], home):
            terminalreporter.write_line(line)
        if (more := len(self._found) - _MOST_SHOWN) > 0:
            terminalreporter.write_line(f"{more} checks more are in JUnit and the summary, where asked for.")
        summary = self._config.getoption("--hub-summary")
        if summary is not None:
            terminalreporter.write_line(write_summary(self._found, home, Path(summary)))
