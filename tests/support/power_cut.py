"""A disk that can lose its power: a real ext4 on a loop device, on a file whose every write and flush is recorded.

What a disk has after a cut is what was written before the last flush, and any part of what was written since: disks
write in the order they like. The record is replayed to such a state, the file system mounted again, and looked at. The
file is served by FUSE from a process of its own: dm-log-writes does the same where the kernel has a device mapper.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.debian import leave_off, require, require_mount
from support.processes import wait_until
from support.recording_disk import DISK, ENTRY, FLUSH

_SIZE_BYTES = 48 << 20


@dataclass(frozen=True)
class Record:
    """What was on the disk first, and what was done to it since, as bytes of a log."""

    before: bytes
    log: bytes

    def after_cut(self, position: int, choice: random.Random) -> bytearray:
        """Return what a disk holds whose power went when the log was so long."""
        disk, offset = bytearray(self.before), 0
        loose: list[tuple[int, bytes]] = []
        while offset + ENTRY.size <= position:
            place, size = ENTRY.unpack_from(self.log, offset)
            offset += ENTRY.size
            if place == FLUSH:
                for start, data in loose:
                    disk[start : start + len(data)] = data
                loose = []
                continue
            if offset + size > position:
                break
            loose.append((place, self.log[offset : offset + size]))
            offset += size
        for start, data in loose:
            if choice.random() < 0.5:
                disk[start : start + len(data)] = data
        return disk


class RecordedDisk:
    """A mounted file system whose writes are recorded; ``log.stat().st_size`` is the time on its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "mounted"
        self.log = folder / "log"
        self._image = folder / "image"
        self._served = folder / "served"

    @contextlib.contextmanager
    def mounted(self) -> Iterator[RecordedDisk]:
        """Make the disk, mount it, and take it down in good order."""
        if os.geteuid() != 0:
            leave_off("a disk that loses its power", "run ./test as root")
        make, _ = require("mkfs.ext4", "e2fsprogs"), require("fusermount3", "fuse3")
        for place in (self.home, self._served):
            place.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_SIZE_BYTES)
        # A journal that is checked: a torn commit block is then told from a whole one.
        subprocess.run([make, "-q", "-F", "-O", "metadata_csum", str(self._image)], check=True, timeout=60)
        served = [
            sys.executable,
            str(Path(__file__).with_name("recording_disk.py")),
            str(self._image),
            str(self._served),
            str(self.log),
        ]
        with subprocess.Popen(served) as server, contextlib.ExitStack() as undo:
            undo.callback(subprocess.run, ["fusermount3", "-u", "-z", str(self._served)], check=False, timeout=60)
            wait_until(lambda: (self._served / DISK).exists() or server.poll() is not None, 30)
            if server.poll() is not None:
                leave_off("FUSE", "the file system of the disk could not be mounted")
            undo.enter_context(loop_mounted(self._served / DISK, self.home))
            yield self

    def record(self) -> Record:
        """Return what happened, after the disk was taken down."""
        return Record(self._image.read_bytes(), self.log.read_bytes())


@contextlib.contextmanager
def loop_mounted(image: Path, place: Path) -> Iterator[None]:
    """Mount an image for the length of a block."""
    losetup = require("losetup", "mount")
    done = subprocess.run(
        [losetup, "-f", "--show", str(image)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        leave_off("loop devices", done.stderr.strip())
    device = done.stdout.strip()
    try:
        require_mount(["-t", "ext4", device, str(place)], "a disk of its own")
        try:
            yield
        finally:
            subprocess.run(["umount", str(place)], check=True, timeout=60)
    finally:
        subprocess.run([losetup, "-d", device], check=True, timeout=60)
