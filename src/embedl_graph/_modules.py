"""The module that a node's name tells of, where an exporter put modules into names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List

# As torch's first exporter and TensorFlow write them: /layer1/layer1.0/conv1/Conv, model/block/conv/Conv2D; conv/0 is
# just a name.
SCOPED_NAMES = re.compile(r"^(/[^/;]+/|[^/;]+/[^/;]+/)[^;]+$")


def module_of_name(name: str) -> str:
    """Return the dotted module of a name with slashes: ``layer1.0.conv1`` for ``/layer1/layer1.0/conv1/Conv``."""
    found: List[str] = []
    for part in name.strip("/").split("/")[:-1]:
        if found and part.startswith(found[-1] + "."):
            # torch repeats the name of a list before its entry.
            part = part[len(found[-1]) + 1 :]  # noqa: PLW2901 - the entry alone
        found.append(part)
    return ".".join(found)


def title_of(path: "os.PathLike[str] | str") -> str:
    """Return the name of a file as it is shown."""
    return Path(os.fspath(path)).name[:200]
