"""What we keep on a board, over any runner: a folder per run, and contents that are sent once.

<root>/runs/<run id>/          a run's own folder, removed when the context closes
<root>/store/<sha256>/<name>   contents, trimmed to a size, least recently used first
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_device.readers import read_json
from embedl_hub.core.device._device import PROBE, Device, DeviceSpec, parse_probe, spec_of
from embedl_hub.errors import CommandError, DeviceError, TransferError
from embedl_hub.paths import RemotePath

if TYPE_CHECKING:
    from embedl_hub.core.device._runner import CommandRunner

BOARDS_FOLDER = "boards"
_LOG = logging.getLogger("embedl_hub")


def recall_spec(home: Path | None, device: Device) -> DeviceSpec:
    """Return what is known of a device without asking it: what the user says, over what it said before."""
    path = _path(home, device)
    if path is None:
        return device.spec
    try:
        values = read_json(path)["spec"]
        kept = {each.name: values[each.name] for each in fields(DeviceSpec) if each.name in values}
        lists = {name: tuple(kept.get(name, ())) for name in ("accelerators", "features")}
        remembered = DeviceSpec(**{**kept, **lists})
    except FileNotFoundError:
        return device.spec
    except (OSError, ValueError, TypeError, KeyError) as error:
        # A memory that cannot be read is no memory; the next answer of the board replaces it.
        _LOG.info("What device %r said before cannot be read from %s: %s", device.name, path, error)
        return device.spec
    return device.spec.over(remembered)


def remember_spec(home: Path | None, device: Device, found: DeviceSpec) -> None:
    """Keep what a board said of itself; a home that cannot be written is no reason to stop."""
    path = _path(home, device)
    if path is None:
        return
    content = {"device": device.name, "reached_by": _address(device), "spec": asdict(found)}
    text = json.dumps(content, indent=1).encode()
    try:
        if path.exists() and path.read_bytes() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        _LOG.info("What device %r is cannot be kept in %s: %s", device.name, path, error)


def _path(home: Path | None, device: Device) -> Path | None:
    address = _address(device)
    if home is None or address is None:
        return None
    # Hashed: a device may be called what no file can.
    key = hashlib.sha256(f"{device.name}\0{address}".encode()).hexdigest()[:32]
    return home / BOARDS_FOLDER / f"{key}.json"


def _address(device: Device) -> str | None:
    """Return where a board is; None for runners that do not say what makes two of them the same."""
    return getattr(device.runner, "address", None)


BOARD_LABEL = "edgeproof-board"
_QUICK_S = 60.0

# $1 root, $2 run id
_MAKE_RUN = 'mkdir -p -m 700 -- "$1/runs/$2"'

# $1 root, $2 hash, $3 name: succeed when the content is there under that name; a link is enough for another name.
_FIND = """\
cd -- "$1/store" 2>/dev/null || exit 3
if [ ! -e "$2/$3" ]; then
  [ -d "$2" ] || exit 3
  for other in "$2"/*; do
    if [ -f "$other" ]; then ln -- "$other" "$2/$3" 2>/dev/null || exit 3; break; fi
  done
  [ -e "$2/$3" ] || exit 3
fi
touch -- "$2"
"""

# $1 root, $2 cap in KiB, $3 hash to spare: drop the least recently used contents; what was used within the hour stays.
_TRIM = """\
cd -- "$1/store" || exit 0
used=$(du -sk . | { read -r size rest; echo "$size"; })
[ "$used" -gt "$2" ] || exit 0
ls -1tr | while read -r entry; do
  [ "$used" -gt "$2" ] || break
  if [ "$entry" = "$3" ] || [ -n "$(find "$entry" -prune -mmin -60)" ]; then continue; fi
  size=$(du -sk "$entry" | { read -r size rest; echo "$size"; })
  rm -rf -- "$entry" && used=$((used - size))
done
"""

# $1 root, then run ids
_REMOVE_RUNS = 'root=$1; shift; for run in "$@"; do rm -rf -- "$root/runs/$run"; done'


class Board:
    """The hub's folders on one device; ``remember`` is told what the board says it is, whenever it is asked."""

    def __init__(
        self, device: Device, runner: CommandRunner, remember: Callable[[DeviceSpec], None] | None = None
    ) -> None:
        self._device = device
        self._runner = runner
        self._lock = threading.RLock()
        self._root: RemotePath | None = None
        self._remember = remember
        self._spec = device.spec
        self._runs: set[str] = set()

    def spec(self) -> DeviceSpec:
        """Return what the board is, asking it on first use."""
        self.root()
        return self._spec

    @property
    def is_asked(self) -> bool:
        """Whether the board has said what it is."""
        return self._root is not None

    def root(self) -> RemotePath:
        """Return the artifact root on the board, made on first use."""
        with self._lock:
            if self._root is None:
                wanted = "" if self._device.artifact_root is None else str(self._device.artifact_root)
                answer = parse_probe(self._script(PROBE, wanted))
                root = answer.get("root", [""])[0]
                if not root.startswith("/") or not root.isprintable():
                    raise DeviceError(
                        f"Device {self._device.name!r} did not say where its artifact folder is, but {root!r:.100}. "
                        "Does a login by hand get a shell that answers?"
                    )
                found = spec_of(answer)
                self._spec = self._device.spec.over(found)
                self._root = RemotePath(root)
                if self._remember is not None:
                    self._remember(found)
            return self._root

    def run_dir(self, run_id: str) -> RemotePath:
        """Return a run's folder on the board, made on first use."""
        root = self.root()
        with self._lock:
            if run_id not in self._runs:
                self._script(_MAKE_RUN, str(root), run_id)
                self._runs.add(run_id)
        return root / "runs" / run_id

    def send(self, path: Path, sha256: str, file_name: str) -> RemotePath:
        """Make sure a content is on the board and return its path there; known content costs one question."""
        root = self.root()
        target = root / "store" / sha256 / file_name
        if not self._has(root, sha256, file_name):
            try:
                self._runner.put(path, target)
            except TransferError:
                # Somebody else may have sent the same folder meanwhile; a folder is never replaced.
                if not self._has(root, sha256, file_name):
                    raise
            cap_kib = str(self._device.store_cap_bytes >> 10)
            self._script(_TRIM, str(root), cap_kib, sha256)
        return target

    def clean(self) -> None:
        """Remove the run folders made here."""
        with self._lock:
            if self._runs and self._root is not None:
                self._script(_REMOVE_RUNS, str(self._root), *sorted(self._runs))
            self._runs.clear()

    def _has(self, root: RemotePath, sha256: str, file_name: str) -> bool:
        try:
            self._script(_FIND, str(root), sha256, file_name)
        except CommandError as error:
            if error.exit_code == 3:
                return False
            raise
        return True

    def _script(self, text: str, *arguments: str) -> str:
        return self._runner.run(["sh", "-c", text, BOARD_LABEL, *arguments], hide=True, timeout_s=_QUICK_S).stdout
