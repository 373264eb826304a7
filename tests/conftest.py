"""Fixtures of the whole suite: a board that is a real sshd, other processors, a full disk, the TFLite converter."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.debian import LEFT_OFF, leave_off, left_off, require, require_mount
from support.families import FAMILIES, Emulated
from support.sshd import SSHServer
from support.tflite import SHARED_CACHE

from embedl_hub.core.device import SSHCommandRunner
from embedl_hub.errors import ConfigError
from embedl_hub.machine.environment import CACHE_VARIABLE
from embedl_hub.toolchains.tflite.environment import ENVIRONMENT

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them, and every process they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property is what these tests ask about; how long one example took on a busy machine is not.
settings.register_profile("edgeproof", deadline=None)
settings.load_profile("edgeproof")


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Count tests that were left off apart: -ra would give every part they need a line of its own."""
    is_left_off = report.skipped and isinstance(report.longrepr, tuple) and LEFT_OFF in report.longrepr[2]
    return ("left off", "l", "LEFT OFF") if is_left_off else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once what was left off, and why."""
    if reports := terminalreporter.stats.get("left off"):
        terminalreporter.write_line(left_off([report.longrepr[2] for report in reports]), yellow=True)


@pytest.fixture(autouse=True, scope="session")
def _no_server_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that a test logs may go to a server that whoever runs the tests writes to."""
    for name in ("EMBEDL_HUB_API_BASE_URL", "EMBEDL_HUB_API_KEY"):
        os.environ.pop(name, None)
    # Each home would measure this machine anew; the tests of predictions say where they want one.
    os.environ["EMBEDL_HUB_PREDICTION"] = "off"
    for name in ("CONFIG", "STATE"):
        os.environ[f"XDG_{name}_HOME"] = str(tmp_path_factory.mktemp(name.lower()))


@pytest.fixture(scope="session")
def ssh_client() -> str:
    """The program ssh, for tests that need no server."""
    return require("ssh", "openssh-client")


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SSHServer]:
    """One sshd for all tests of a worker that leave it in peace."""
    server = SSHServer(tmp_path_factory.mktemp("sshd")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def board(ssh_server: SSHServer) -> Iterator[SSHCommandRunner]:
    """One runner for all tests of a worker that leave its connection in peace."""
    runner = SSHCommandRunner(ssh_server.config())
    yield runner
    runner.close()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., SSHServer]]:
    """Start an sshd that only this test uses, and may break."""
    servers: list[SSHServer] = []

    def start(**options: Any) -> SSHServer:
        servers.append(SSHServer(tmp_path / f"sshd{len(servers)}", **options))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., SSHCommandRunner]]:
    """Make a runner for a server, closed at the end of the test."""
    runners: list[SSHCommandRunner] = []

    def make(server: SSHServer, **changes: Any) -> SSHCommandRunner:
        runners.append(SSHCommandRunner(server.config(**changes)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    require_mount(["-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], "a disk of its own")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def converter() -> Path:
    """The folder of the converter's environment; made when it is not there yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(SHARED_CACHE))
        if ENVIRONMENT.find() is None:
            try:
                ENVIRONMENT.choose_python()
            except ConfigError as error:
                leave_off("a Python that the TFLite converter takes", str(error))
        ENVIRONMENT.need()
    return SHARED_CACHE / "converters"


@pytest.fixture(scope="session")
def emulated() -> Iterator[Callable[[str], Emulated]]:
    """ONNX Runtime on a family of processors by its name; each is started once, when a test first asks it something."""
    started: dict[str, Emulated] = {}

    def get(name: str) -> Emulated:
        return started.setdefault(name, Emulated(FAMILIES[name]))

    yield get
    for family in started.values():
        family.close()
