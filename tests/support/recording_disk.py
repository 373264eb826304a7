"""Serves one file by FUSE that is a disk, and records what is done to it: ``recording_disk.py IMAGE FOLDER LOG``."""

from __future__ import annotations

import errno
import stat
import struct
import sys
from pathlib import Path

DISK = "disk"
ENTRY = struct.Struct("<qq")
"""Where something was written and how much, followed by it."""
FLUSH = -1
"""In place of where: all that was written before is on the disk."""


def serve(image: Path, place: str, log: Path) -> None:
    import mfusepy

    disk = bytearray(image.read_bytes())
    out = log.open("wb", buffering=0)

    class Disk(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, _fh: int | None = None) -> dict[str, int]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path == f"/{DISK}":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(disk)}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, _path: str, _fh: int) -> list[str]:
            return [".", "..", DISK]

        def read(self, _path: str, size: int, offset: int, _fh: int) -> bytes:
            return bytes(disk[offset : offset + size])

        def write(self, _path: str, data: bytes, offset: int, _fh: int) -> int:
            out.write(ENTRY.pack(offset, len(data)) + data)
            disk[offset : offset + len(data)] = data
            return len(data)

        def fsync(self, _path: str, _datasync: int, _fh: int) -> int:
            out.write(ENTRY.pack(FLUSH, 0))
            return 0

        def truncate(self, _path: str, _length: int, _fh: int | None = None) -> int:
            return 0

    mfusepy.FUSE(Disk(), place, foreground=True, nothreads=True, fsname="edgeproof-disk")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
