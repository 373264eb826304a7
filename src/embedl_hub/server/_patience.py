"""Connections that keep nobody out: a client that we wait for has so long, and of too many the oldest goes.

A connection is waited for while its next move is the client's: before a request's head is whole, while its body comes,
while an answer is read slowly. Uvicorn alone waits for ever, and then refuses everybody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import socket

_HEAD_S = 10.0
_HANDSHAKE_S = 10.0
# A body, or the reader of an answer, must move so much in so long: 1 KiB per second.
_MOVE_S = 30.0
_MOVE_BYTES = 30 << 10
_TOUCH_BYTES = 64 << 10
_BACKLOG = 512
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)
_LATE_BODY = b'{"errors":[{"code":"too_late","message":"The request did not arrive in time.","details":{}}]}'


class Room:
    """The connections whose clients are waited for: so many in all and of one address; newcomers push out the oldest.

    The oldest and not the newcomer: whoever sends a whole request is gone from here at once, so that those who only
    sit here push out each other, also where all come through the address of one proxy.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._all: OrderedDict[Patient, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Patient, None]] = {}

    def enter(self, connection: Patient) -> None:
        own = self._of.setdefault(connection.address, OrderedDict())
        for line in (self._all, own):
            line[connection] = None
            line.move_to_end(connection)
        if len(own) > self._most_of_one:
            next(iter(own)).give_up()
        elif len(self._all) > self._most:
            next(iter(self._all)).give_up()

    def leave(self, connection: Patient) -> None:
        self._all.pop(connection, None)
        own = self._of.get(connection.address)
        if own is not None:
            own.pop(connection, None)
            if not own:
                del self._of[connection.address]

    def __len__(self) -> int:
        return len(self._all)


class _Waiting(Enum):
    """What a client is waited for."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    READING = auto()


class Patient(H11Protocol):
    """A connection with time limits; ``room`` is set by :func:`patient_in`."""

    room: ClassVar[Room]
    address = ""
    _waiting = _Waiting.NOTHING
    _timer: asyncio.TimerHandle | None = None
    _came = 0
    _mark = 0
    _touched = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.address = _network_of(self.client[0] if self.client else "")
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(_Waiting.NOTHING)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        super().data_received(data)
        self._look()
        if self._waiting is _Waiting.BODY and self._came - self._touched >= _TOUCH_BYTES:
            self._touched = self._came
            self.room.enter(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def give_up(self) -> None:
        """End the connection, in the middle of whatever it is."""
        self._wait_for(_Waiting.NOTHING)
        self.transport.abort()

    def _look(self) -> None:
        """See whose move it is."""
        if self.transport.is_closing():
            # What is written still has to be read by somebody.
            self._wait_for(_Waiting.READING if self.transport.get_write_buffer_size() else _Waiting.NOTHING)
        elif self.flow.write_paused:
            self._wait_for(_Waiting.READING)
        elif self.conn.their_state is h11.SEND_BODY:
            self._wait_for(_Waiting.BODY)
        elif self.conn.their_state is h11.IDLE:
            self._wait_for(_Waiting.HEAD)
        else:
            self._wait_for(_Waiting.NOTHING)

    def _wait_for(self, what: _Waiting) -> None:
        if what is self._waiting:
            return
        self._waiting = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is _Waiting.NOTHING:
            self.room.leave(self)
            return
        self._mark = self._moved()
        self._timer = self.loop.call_later(_HEAD_S if what is _Waiting.HEAD else _MOVE_S, self._check)
        self.room.enter(self)

    def _moved(self) -> int:
        return -self.transport.get_write_buffer_size() if self._waiting is _Waiting.READING else self._came

    def _check(self) -> None:
        moved, is_ours = self._moved(), self._waiting is _Waiting.BODY and self.flow.read_paused
        if self._waiting is not _Waiting.HEAD and (is_ours or moved - self._mark >= _MOVE_BYTES):
            self._mark = moved
            self._timer = self.loop.call_later(_MOVE_S, self._check)
            return
        if self._waiting is _Waiting.HEAD or (self._waiting is _Waiting.BODY and not self.cycle.response_started):
            self.transport.write(_LATE % (len(_LATE_BODY), _LATE_BODY))
            self.transport.close()
        self.give_up()


def patient_in(room: Room) -> type[Patient]:
    """Return the kind of connections that share a room."""
    return type("Patient", (Patient,), {"room": room})


class PatientServer(uvicorn.Server):
    """Uvicorn with a limit on TLS handshakes, which it does not pass on."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        config, loop = self.config, asyncio.get_running_loop()

        def connect() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn calls it
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        limit_s = None if config.ssl is None else _HANDSHAKE_S
        self.servers = [
            await loop.create_server(
                connect, sock=each, ssl=config.ssl, ssl_handshake_timeout=limit_s, backlog=_BACKLOG
            )
            for each in sockets or ()
        ]
        self.started = True


def raise_file_limit() -> int:
    """Allow as many open files as the system lets this process have, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard > 0 else soft


def _network_of(host: str) -> str:
    """Return what is one client's by its address: of IPv6 the first half, the rest of which is free to choose."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
