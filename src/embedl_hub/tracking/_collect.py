"""Removing contents that no run refers to any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.tracking._journal import now_ms
from embedl_hub.tracking._rows import files_of

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

_YOUNG_S = 3600.0


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        files: How many contents.
        size_bytes: How much space they take.
        kept_young: How many were left because they came within the last hour: their run may be being written.
        dry_run: Whether nothing was removed.
    """

    files: int
    size_bytes: int
    kept_young: int
    dry_run: bool


def collect(store: Store, *, dry_run: bool = False, young_s: float = _YOUNG_S) -> Collected:
    """Remove the contents that no run folder refers to.

    Args:
        store: An open store.
        dry_run: Only say what would go.
        young_s: Leave alone what was stored so recently.
    """
    used = {
        sha256
        for _, records in store.manifests()
        for record in records
        if record["kind"] == "artifact"
        for _, sha256 in files_of(record)
    }
    files = size = young = 0
    for path in store.blobs.paths():
        facts = path.stat()
        # A second link is a run folder's, also of a run whose record is still to be written.
        if path.name in used or facts.st_nlink > 1:
            continue
        if now_ms() / 1000 - facts.st_ctime < young_s:
            young += 1
            continue
        files += 1
        size += facts.st_size
        if not dry_run:
            path.unlink()
    return Collected(files, size, young, dry_run)
