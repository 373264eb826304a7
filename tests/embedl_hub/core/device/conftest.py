"""Fixtures of the device tests."""

from collections.abc import Iterator

import pytest
from support.names import assert_nothing_was_run
from support.sshd import SSHServer

from embedl_hub.core.device import LocalCommandRunner, SSHCommandRunner


@pytest.fixture(params=["local", "ssh"])
def runner(request: pytest.FixtureRequest) -> LocalCommandRunner | SSHCommandRunner:
    """Both runners that ship, in turn."""
    if request.param == "local":
        return LocalCommandRunner()
    board: SSHCommandRunner = request.getfixturevalue("board")
    return board


@pytest.fixture(autouse=True)
def _nothing_runs_by_its_name(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    # Asked for at the end: a test that needs no board must run where there is no sshd.
    if "ssh_server" in request.fixturenames:
        server: SSHServer = request.getfixturevalue("ssh_server")
        assert_nothing_was_run(server.home)
