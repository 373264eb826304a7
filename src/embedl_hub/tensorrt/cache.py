"""Engines that were built before, kept where they were built: nowhere else are they of use.

<cache>/engines/<key>/engine.plan, layers.json, note.json    <cache>/timing/<key>.cache

An engine's key is the SHA-256 of everything that decides it: the model's content, the options, TensorRT's version and
the GPU. What is used least recently goes first when the engines outgrow their limit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from embedl_hub.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from embedl_hub.core.device import CommandRunner
    from embedl_hub.paths import RemotePath
    from embedl_hub.tensorrt.program import Trtexec

_QUICK_S = 120.0
_LABEL = "edgeproof-tensorrt"
_ABSENT = 3

# $1 cache, $2 key
_FIND = """\
cd -- "$1/engines/$2" 2>/dev/null || exit 3
[ -s engine.plan ] && [ -s note.json ] || exit 3
touch -- . && cat note.json
"""

# $1 cache, $2 key, $3 folder with engine.plan, layers.json and note.json, $4 folder of contents or nothing, $5 the
# engine's hash, $6 its name, $7 cap in KiB. What was kept under that key is replaced; contents are linked, so that
# nothing has to be sent back.
_KEEP = """\
mkdir -p -m 700 -- "$1/engines" || exit 1
part="$1/engines/.$2.$$"
rm -rf -- "$part" && mkdir -- "$part" || exit 1
for name in engine.plan layers.json note.json; do
  if [ -e "$3/$name" ]; then ln -- "$3/$name" "$part/$name" 2>/dev/null || cp -- "$3/$name" "$part/$name"; fi
done
rm -rf -- "$1/engines/$2"
mv -- "$part" "$1/engines/$2" || exit 1
if [ -n "$4" ]; then
  mkdir -p -- "$4/$5" && { ln -- "$1/engines/$2/engine.plan" "$4/$5/$6" 2>/dev/null || true; }
fi
cd -- "$1/engines" || exit 0
used=$(du -sk . | { read -r size rest; echo "$size"; })
ls -1tr | while read -r entry; do
  [ "$used" -gt "$7" ] || break
  if [ "$entry" = "$2" ]; then continue; fi
  size=$(du -sk "$entry" | { read -r size rest; echo "$size"; })
  rm -rf -- "$entry" && used=$((used - size))
done
exit 0
"""


class Shelf(Protocol):
    """Where engines are kept: a folder that stays, on a machine that commands can be run on."""

    @property
    def runner(self) -> CommandRunner:
        """Runs commands there."""
        ...

    @property
    def cache(self) -> RemotePath:
        """The folder that stays."""
        ...

    @property
    def contents(self) -> RemotePath | None:
        """The folder of contents by hash there; None where nothing has to be sent."""
        ...

    @property
    def cache_cap_bytes(self) -> int:
        """Engines are trimmed to this size."""
        ...


@dataclass(frozen=True)
class Key:
    """What decides an engine.

    Attributes:
        model: The content of the model, as the user gave it.
        options: What was asked for.
        version: TensorRT's, with the build's number.
        gpu: What the machine says about its GPU.
    """

    model: str
    options: Mapping[str, Any]
    version: str
    gpu: Mapping[str, str]

    @property
    def is_known(self) -> bool:
        """Whether the machine says what GPU it has; without it an engine cannot be taken again safely."""
        return bool(self.gpu.get("name") or self.gpu.get("board"))

    def hexdigest(self) -> str:
        """Return the key's hash."""
        return _digest(
            {"model": self.model, "options": dict(self.options), "version": self.version, "gpu": dict(self.gpu)}
        )


def key_of(program: Trtexec, model: str, options: Mapping[str, Any]) -> Key:
    """Return the key of an engine that is to be built."""
    capabilities = program.capabilities
    version = f"{capabilities.version_text} b{capabilities.build}"
    return Key(model, options, version, program.gpu)


def find_engine(place: Shelf, key: Key) -> dict[str, Any] | None:
    """Return the note of an engine that is kept there, or None."""
    try:
        text = _script(place, _FIND, str(place.cache), key.hexdigest())
        note = json.loads(text)
    except CommandError as error:
        if error.exit_code == _ABSENT:
            return None
        raise
    except ValueError:
        return None
    return note if isinstance(note, dict) and {"sha256", "size_bytes", "engine"} <= note.keys() else None


def keep_engine(place: Shelf, key: Key, note: Mapping[str, Any], folder: RemotePath, file_name: str) -> None:
    """Keep an engine with its note; ``folder`` holds them there."""
    contents = "" if place.contents is None else str(place.contents)
    cap_kib = str(place.cache_cap_bytes >> 10)
    words = (str(place.cache), key.hexdigest(), str(folder), contents, str(note["sha256"]), file_name, cap_kib)
    _script(place, _KEEP, *words)


def engine_folder(place: Shelf, key: Key) -> RemotePath:
    """Return where an engine is kept there."""
    return place.cache / "engines" / key.hexdigest()


def timing_cache(place: Shelf, program: Trtexec) -> RemotePath:
    """Return the file there in which TensorRT remembers what it timed, one for each version and GPU."""
    folder = place.cache / "timing"
    _script(place, 'mkdir -p -m 700 -- "$1"', str(folder))
    capabilities = program.capabilities
    return folder / f"{_digest({'version': capabilities.version_text, 'gpu': dict(program.gpu)})}.cache"


def write_note(path: Path, note: Mapping[str, Any]) -> None:
    """Write a note here, to be brought there."""
    path.write_text(json.dumps(note, indent=1), encoding="utf-8")


def _digest(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _script(place: Shelf, text: str, *arguments: str) -> str:
    return place.runner.run(["sh", "-c", text, _LABEL, *arguments], hide=True, timeout_s=_QUICK_S).stdout
