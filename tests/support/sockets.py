"""Clients that do not behave: they send half a request, or read half an answer, and sit there."""

import contextlib
import resource
import socket
from collections.abc import Iterator, Sequence

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: hub\r\nX-Slow: "
HALF_A_BODY = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4000\r\n\r\nkey="
)


@contextlib.contextmanager
def half_sent(
    port: int, count: int, sources: Sequence[str], sent: bytes = HALF_A_HEAD
) -> Iterator[list[socket.socket]]:
    """Hold connections from some addresses of this machine, each in the middle of a request."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(min(count, hard - 500)):
            connection = socket.create_connection(
                ("127.0.0.1", port), timeout=30, source_address=(sources[number % len(sources)], 0)
            )
            stack.callback(connection.close)
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            held.append(connection)
        yield held


def is_open(connection: socket.socket) -> bool:
    """Tell whether the other side still holds a connection, and has sent nothing."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK)) and False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
