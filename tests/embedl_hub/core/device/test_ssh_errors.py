"""Every complaint of ssh becomes one error with the next step."""

import pytest

from embedl_hub.core.device import SSHConfig
from embedl_hub.core.device._ssh_config import explain_connect_failure
from embedl_hub.errors import ConnectError

# What OpenSSH prints, and what our text must say of it.
COMPLAINTS = [
    (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
        "is not the one known for it",
        "ssh-keygen -R '[board]:2222'",
    ),
    ("Host key for board has changed and you have requested strict checking.", "not the one known", "ssh-keygen -R"),
    ("No ED25519 host key is known for board and you have requested strict checking.", "is not known", "accept_new"),
    ("Host key verification failed.", "is not known", "ssh -p 2222 pi@board"),
    ("pi@board: Permission denied (publickey).", "refused the login", "ssh-copy-id -p 2222 pi@board"),
    ("Received disconnect: Too many authentication failures", "too many keys", "identity_file"),
    ("ssh: Could not resolve hostname board: Name or service not known", "name is not known", "spelling"),
    ("ssh: connect to host board port 22: Connection refused", "nothing listens", "Is sshd running"),
    ("Connection timed out during banner exchange", "does not speak SSH", "right port"),
    ("ssh: connect to host board port 22: Connection timed out", "cannot be reached", "Is the board on"),
    ("ssh: connect to host board port 22: No route to host", "cannot be reached", "network"),
    ("ssh: connect to host board port 22: Network is unreachable", "cannot be reached", "network"),
    ("kex_exchange_identification: Connection closed by remote host", "closed the connection", "overloaded"),
    ("Connection reset by 192.0.2.7 port 22", "closed the connection", "overloaded"),
    ("@ WARNING: UNPROTECTED PRIVATE KEY FILE! @", "refuses a file of yours", "PRIVATE KEY"),
    ("Bad owner or permissions on /home/u/.ssh/config", "refuses a file of yours", "/home/u/.ssh/config"),
    ("/home/u/.ssh/config: line 3: Bad configuration option: foo", "does not understand", "line 3"),
    ("something new", "No connection", "something new"),
    ("", "No connection", "ssh said: nothing"),
]


@pytest.mark.parametrize(("complaint", "happened", "next_step"), COMPLAINTS)
def test_a_complaint_is_explained(complaint: str, happened: str, next_step: str) -> None:
    """What happened, what to do, and ssh's own words."""
    error = explain_connect_failure(SSHConfig("board", username="pi", port=2222), complaint)

    assert isinstance(error, ConnectError)
    for part in ("pi@board:2222", happened, next_step, complaint):
        assert part in str(error)


def test_the_standard_port_is_not_spelled_out() -> None:
    """ssh-keygen knows a host at port 22 by its bare name."""
    for port in (None, 22):
        error = explain_connect_failure(SSHConfig("board", port=port), "IDENTIFICATION HAS CHANGED")
        assert "ssh-keygen -R 'board'" in str(error)


def test_a_long_complaint_is_cut() -> None:
    """The end of it says what went wrong."""
    error = explain_connect_failure(SSHConfig("board"), "x" * 10_000 + " the end")

    assert len(str(error)) < 1000
    assert str(error).endswith("the end")
