"""Faults: what each one prints, and hosts that are not what they should be."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from embedl_hub.errors import HubError


@contextlib.contextmanager
def fault(kind: type[HubError], *parts: str, within_s: float) -> Iterator[None]:
    """Expect an error of a kind, in time, with all these parts in its text; ``pytest -rP`` shows the text."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        yield
    took_s = time.monotonic() - started
    print(f"[{took_s:.1f} s] {kind.__name__}: {caught.value}")  # noqa: T201 - the list of faults is made from this
    for part in parts:
        assert part in str(caught.value)
    assert took_s < within_s


@contextlib.contextmanager
def silent_host() -> Iterator[int]:
    """Yield a port whose connections are never answered, as behind a router that drops them."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # The kernel drops what does not fit into the queue of connections not yet accepted.
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.contextmanager
def strange_host(greeting: bytes, *, hang_up: bool = False) -> Iterator[int]:
    """Yield a port that accepts, says this, and then nothing more."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=_greet, args=(listener, greeting, hang_up, stack.callback), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _greet(listener: socket.socket, greeting: bytes, hang_up: bool, keep: Callable[..., object]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.sendall(greeting)
            if hang_up:
                connection.close()
            else:
                keep(connection.close)
