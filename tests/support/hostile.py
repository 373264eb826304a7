"""A board that floods, lies, hangs and sends what no board sends, by a seed; run as a program it is that board.

Its sshd is a real one. Every session but one is carried out as it was asked; in that one the board misbehaves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EVIL = "\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x1b\\\x9b2J\u202e\r"
_CHUNK = 1 << 16

# $1 the folder with the plan: which session misbehaves, and the seed.
_DOOR = """\
#!/bin/sh
printf x >> "$1/count"
read -r chosen seed < "$1/plan"
if [ "$(wc -c < "$1/count")" -ne "$chosen" ]; then exec sh -c "$SSH_ORIGINAL_COMMAND"; fi
exec '{python}' -S -E '{program}' "$seed"
"""


class Plan:
    """What the board is to do next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "door").write_text(_DOOR.format(python=sys.executable, program=__file__))
        (folder / "door").chmod(0o755)
        self.set(0, 0)

    @property
    def command(self) -> str:
        """What sshd runs for every session."""
        return f"{self.folder}/door {self.folder}"

    def set(self, chosen: int, seed: int) -> None:
        """Have the board misbehave in one of the sessions to come, counted from 1; in none for 0."""
        (self.folder / "count").write_bytes(b"")
        (self.folder / "plan").write_text(f"{chosen} {seed}\n")

    @property
    def sessions(self) -> int:
        """How many there were."""
        return (self.folder / "count").stat().st_size


def replaying(folder: Path, name: str, real: str) -> Path:
    """Put a program into a folder that does what the real one did when it was first asked the same kind of thing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        f"""#!/bin/sh
kind=other
case $* in *--help*) kind=help ;; *--saveEngine*) kind=build ;; esac
case $1 in profile | run-inference) kind=$1 ;; esac
kept='{folder}'/"{name}.$kind"
if [ ! -e "$kept/code" ]; then
  mkdir -p "$kept"
  '{real}' "$@" > "$kept/stdout" 2> "$kept/stderr"
  code=$?
  next=
  for word in "$@"; do
    case $next in --output-dir | --keep-trace) cp -r "$word" "$kept/$next" ;; esac
    next=$word
    case $word in --*=*) [ ! -f "${{word#*=}}" ] || cp "${{word#*=}}" "$kept/${{word%%=*}}" ;; esac
  done
  echo "$code" > "$kept/code"
else
  next=
  for word in "$@"; do
    case $next in --output-dir | --keep-trace) cp -r "$kept/$next" "$word" ;; esac
    next=$word
    name=${{word%%=*}}
    case $word in --save*=*|--export*=*) [ ! -f "$kept/$name" ] || cp "$kept/$name" "${{word#*=}}" ;; esac
  done
fi
cat "$kept/stderr" >&2
cat "$kept/stdout"
exit "$(cat "$kept/code")"
"""
    )
    path.chmod(0o755)
    return path


# ---- what the board does ----------------------------------------------------------------------------------------


def _write(data: bytes, *, err: bool = False) -> None:
    at = 0
    while at < len(data):
        at += os.write(2 if err else 1, data[at : at + _CHUNK])


def _values(chance: random.Random) -> Any:
    return chance.choice([
        None, True, -1, 0, 1e308, float("nan"), float("inf"), 10**30, "", EVIL, "x" * 10_000, "../../precious/secret",
        "/etc/passwd", [], {}, [[]], {"a": {}}, [None] * 50, {"value": EVIL}, "9" * 5000, [1e400], "-1", "²",
    ])  # fmt: skip


def mutated(value: Any, chance: random.Random) -> Any:
    """Return an answer with one value changed, or gone."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return [*value[:at], mutated(value[at], chance), *value[at + 1 :]]
    return _values(chance)


def _lie(data: bytes, chance: random.Random) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    line = next((line for line in text.splitlines() if line.startswith("{")), None)
    if line is not None and chance.random() < 0.9:
        with contextlib.suppress(ValueError):
            return json.dumps(mutated(json.loads(line), chance)).encode() + b"\n"
    how = chance.randrange(7)
    if how == 0:
        text = re.sub("[0-9a-f]{64}", lambda _: f"{chance.getrandbits(256):064x}", text)
    elif how == 1:
        text = text[: chance.randrange(len(text) + 1)]
    elif how == 2:
        text = re.sub(r"=.*", lambda _: f"={_values(chance)}", text)
    elif how == 3:
        text += EVIL * chance.randrange(1, 200) + "\n"
    elif how == 4:
        text = "".join(chance.sample(text.splitlines(keepends=True), len(text.splitlines())))
    elif how == 5:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chr(chance.randrange(256)) * chance.randrange(1, 2000) + text[at:]
    else:
        text = (
            chance.choice(["held\nbeat\n", "busy x\n" * 50, "late\n", "refused: " + EVIL + "\n", "kind=folder\n", "="])
            + text
        )
    return text.encode("utf-8", "surrogateescape")


def _carry_out(change: Callable[[bytes], bytes], *, streams: tuple[int, ...]) -> int:
    """Do what was asked, with what comes out changed on the way."""
    command = os.environ.get("SSH_ORIGINAL_COMMAND", "true")
    done = subprocess.Popen(["sh", "-c", command], stdin=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None
    assert done.stderr is not None
    targets = {done.stdout.fileno(): 1, done.stderr.fileno(): 2}
    while targets:
        for file in select.select(list(targets), [], [])[0]:
            data = os.read(file, _CHUNK)
            if not data:
                del targets[file]
                continue
            _write(change(data) if targets[file] in streams else data, err=targets[file] == 2)
    return done.wait()


def _wait() -> None:
    # As long as somebody listens, and no longer: the tests have many of these.
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([0], [], [], 1)[0] and not os.read(0, _CHUNK):
            return
        if os.getppid() == 1:
            return


def _header(name: bytes, kind: bytes, size: int, link: bytes = b"") -> bytes:
    fields = (name.ljust(100, b"\0")[:100], b"0000644\0" * 3, b"%011o\0" % size, b"0" * 11 + b"\0", b" " * 8, kind)
    block = b"".join((*fields, link.ljust(100, b"\0")[:100], b"ustar  \0")).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _file(name: bytes, content: bytes) -> bytes:
    return _header(name, b"0", len(content)) + content + bytes(-len(content) % 512)


def _arrays(chance: random.Random) -> bytes:
    """Return an .npz that no program wrote."""
    stream = io.BytesIO()
    how = chance.randrange(5)
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" % chance.choice(
        [b"1, 1000", b"-1,", b"99999999999,", b"1,2,3,4", b"1000000, 1000000"]
    )
    if how == 1:
        head = b"(" * 5000
    elif how == 2:
        head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    head = head.ljust(118) + b"\n"
    magic = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
    if how == 3:
        magic, head = b"\x93NUMPY\x02\x00" + (0x7FFFFFFF).to_bytes(4, "little"), b""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            chance.choice(["y.npy", "../../precious/y.npy", EVIL + ".npy", "/y.npy"]), magic + head + bytes(4000)
        )
        if how == 4:
            archive.writestr("z.npy", magic + head + bytes(64 << 20))
    return stream.getvalue()[: None if chance.random() < 0.8 else chance.randrange(1000)]


def _folder(chance: random.Random) -> None:
    """Send a folder as nobody packs one, with the hash that it would have."""
    holes = bytearray(_header(b"holes", b"S", 0))
    holes[483:495] = b"%011o\0" % (1 << 32)
    holes[148:156] = b" " * 8
    holes[148:156] = b"%06o\0 " % sum(holes)
    arrays = _arrays(chance)
    parts: list[tuple[bytes, bytes]] = [
        (bytes(holes), b""),
        (_file(b"../precious/secret", b"owned"), b"owned"),
        (_file(b"/tmp/edgeproof-owned", b"owned"), b"owned"),
        (_header(b"link", b"2", 0, b"../../precious") + _file(b"link/secret", b"owned"), b"owned"),
        (_header(b"link", b"1", 0, b"/etc/passwd"), b""),
        (b"".join(_header(b"f%d" % number, b"0", 0) for number in range(3000)), b""),
        (_header(b"long", b"L", 1 << 32), b""),
        (_file(b"a/" * 49 + b"b", b"deep"), b"deep"),
        (chance.randbytes(5000), b""),
        (_file(b"output.npz", arrays), arrays),
        (_file(b"data.npz", arrays), arrays),
        (_header(b"pipe", b"6", 0), b""),
    ]
    chosen = chance.sample(parts, chance.randrange(1, 4))
    sums = sorted(hashlib.sha256(content).hexdigest() for _, content in chosen if content)
    total = hashlib.sha256("".join(f"{each}\n" for each in sums).encode()).hexdigest()
    _write(f"kind=folder\nsha256={total}\n".encode(), err=True)
    _write(b"".join(header for header, _ in chosen) + bytes(1024))


def _deep(chance: random.Random) -> None:
    form = chance.choice(
        ["[" * 200_000, '{"a":' * 100_000, "[" + "[]," * 2_000_000 + "0]", '{"a":' + "9" * 100_000 + "}"]
    )
    _write(form.encode() + b"\n")


def _flood(chance: random.Random) -> None:
    unit = chance.choice([b"x" * _CHUNK, b"\n" * _CHUNK, EVIL.encode() * 2000, b"\xff" * _CHUNK, b"key=value\n" * 6000])
    err = chance.random() < 0.5
    with contextlib.suppress(OSError):
        for _ in range((72 << 20) // len(unit)):
            _write(unit, err=err)


def _drip(chance: random.Random) -> None:
    err, end = chance.random() < 0.3, time.monotonic() + 30
    with contextlib.suppress(OSError):
        while time.monotonic() < end and os.getppid() != 1:
            _write(chance.choice([b"x", b"\n", b"\x1b"]), err=err)
            time.sleep(0.02)


def misbehave(seed: int) -> int:
    """Do one thing that no board does."""
    chance = random.Random(seed)  # noqa: S311 - to be had again by its seed
    streams = chance.choice([(1,), (2,), (1, 2)])
    deeds: list[tuple[int, Callable[[], object]]] = [
        (30, lambda: _carry_out(lambda data: _lie(data, chance), streams=streams)),
        (12, lambda: _folder(chance)),
        (8, lambda: _deep(chance)),
        (6, lambda: _write(chance.randbytes(chance.randrange(20_000)), err=chance.random() < 0.5)),
        (6, lambda: _write((EVIL * chance.randrange(1, 300) + "\n").encode(), err=chance.random() < 0.5)),
        (5, lambda: chance.choice([0, 1, 2, 3, 17, 21, 28, 74, 75, 126, 127, 137, 255])),
        (3, lambda: os.kill(os.getppid(), signal.SIGKILL)),
        (3, lambda: _flood(chance)),
        (2, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        (1, _wait),
        (1, lambda: _drip(chance)),
    ]
    deed = chance.choices([each for _, each in deeds], [weight for weight, _ in deeds])[0]
    with contextlib.suppress(BrokenPipeError):
        result = deed()
        code = result if isinstance(result, int) else 0
        return chance.choice([code, code, 0, 1, 3, 127, 255])
    return 1


# ---- a host that is none ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hostile_host() -> Iterator[tuple[int, Callable[[int], None]]]:
    """Yield a port that speaks no SSH, or not for long, and what chooses how by a seed."""
    seeds = [0]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=_greet, args=(connection, seeds[-1]), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], seeds.append
        listener.shutdown(socket.SHUT_RDWR)


def _greet(connection: socket.socket, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to be had again by its seed
    banner = b"SSH-2.0-OpenSSH_9.2\r\n"
    greetings: list[tuple[int, bytes]] = [
        (1, chance.randbytes(chance.randrange(5000))),
        (2000, (EVIL * 20 + "\r\n").encode()),
        (1, b"x" * (1 << 20)),
        (1, banner + chance.randbytes(chance.randrange(5000))),
        (1, banner + (0x7FFFFFFF).to_bytes(4, "big") + bytes(5000)),
        (1, f"SSH-2.0-{EVIL}\r\n".encode()),
        (1, banner[: chance.randrange(len(banner))]),
        (0, b""),
    ]
    times, greeting = chance.choice(greetings)
    is_slow = chance.random() < 0.1
    with contextlib.suppress(OSError), connection:
        connection.settimeout(3)
        if is_slow:
            for byte in greeting[:20]:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        else:
            for _ in range(times):
                connection.sendall(greeting)
        if chance.random() < 0.05:
            time.sleep(3)


if __name__ == "__main__":
    sys.exit(misbehave(int(sys.argv[1])))
