"""What a command prints, within bounds: its beginning and its end are kept, and what was between them is counted."""

from __future__ import annotations

# A command that prints without end must take neither this machine's memory with it nor our time.
MOST_OUTPUT_BYTES = 64 << 20
MOST_KEPT_BYTES = 16 << 20
MOST_COMPLAINT_BYTES = 1 << 20


class FloodError(Exception):
    """A command printed more than anybody will read, and was stopped."""

    def __init__(self) -> None:
        super().__init__(
            f"the command printed more than {MOST_OUTPUT_BYTES >> 20} MiB and was stopped; "
            "let it write to a file there, and get that"
        )


class BoundedOutput:
    """Bytes as they come; of more than can be kept, the first half and the last half of that."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.size_bytes = 0  # of all that came

    def add(self, chunk: bytes) -> None:
        """Take what came."""
        self.size_bytes += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # In steps: moving the tail with every chunk would cost more than reading it.
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """Return what was kept, with how much was not."""
        tail = self._tail[-self._half :]
        left_out = self.size_bytes - len(self._head) - len(tail)
        mark = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return (self._head + mark + tail).decode("utf-8", "replace")
