#!/usr/bin/env python3
"""The program on the board that this example drives: packs a model file, and times its unpacking.

my_backend.py compile MODEL OUTPUT [--fast]
my_backend.py profile PACKED
"""

import sys
import time
import zlib
from pathlib import Path


def main() -> int:
    """Do what the command line says."""
    verb, source, *rest = sys.argv[1:]
    content = Path(source).read_bytes()
    if verb == "compile":
        Path(rest[0]).write_bytes(zlib.compress(content, 1 if "--fast" in rest else 9))
        return 0
    start = time.perf_counter()
    size = len(zlib.decompress(content))
    print(f"{(time.perf_counter() - start) * 1e3:.4f} {size / 1e6:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
