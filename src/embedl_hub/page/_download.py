"""Artifacts as files to keep. Never shown in the page's own place: a model's neighbour may be an HTML file."""

from __future__ import annotations

import os
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.responses import FileResponse

from embedl_hub.page._scope import NotHereError

if TYPE_CHECKING:
    from starlette.responses import Response

    from embedl_hub.tracking import LoggedArtifact, Run


def artifact(run: Run, name: str) -> Response:
    """Answer with one artifact; a folder comes as a zip archive."""
    found = run.artifacts.get(name)
    path = _inside(run, found)
    if found is None or path is None:
        raise NotHereError(f"Run {run.id} has no artifact {name!r} on this machine.")
    if not path.is_dir():
        return FileResponse(path, media_type="application/octet-stream", headers=_headers(found.file_name))
    packed = _pack(path)
    return FileResponse(
        packed,
        media_type="application/octet-stream",
        headers=_headers(f"{found.file_name}.zip"),
        background=BackgroundTask(packed.unlink, missing_ok=True),
    )


def _inside(run: Run, found: LoggedArtifact | None) -> Path | None:
    """Return the artifact's place, if it is a plain file or folder within the run's own folder."""
    if found is None or found.local_path is None:
        return None
    path = found.local_path
    folder = next((parent for parent in path.parents if parent.name == run.id), None)
    try:
        mode = path.lstat().st_mode
        is_plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        # Records may come from elsewhere: a name with dots, or a link, must lead nowhere else.
        return path if folder is not None and is_plain and folder.resolve() in path.resolve().parents else None
    except (OSError, ValueError):
        return None


def _headers(file_name: str) -> dict[str, str]:
    simple = "".join(character if character.isascii() and (character.isalnum() or character in "._- ") else "_"
                     for character in file_name)  # fmt: skip
    exact = quote(file_name.encode("utf-8", "surrogateescape"), safe="")
    return {
        "Content-Disposition": f"attachment; filename=\"{simple}\"; filename*=UTF-8''{exact}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-cache",
    }


def _pack(folder: Path) -> Path:
    handle, name = tempfile.mkstemp(suffix=".zip")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for current, _, names in os.walk(folder):
                for path in (Path(current, name) for name in sorted(names)):
                    # A link may lead anywhere; what the run logged are files.
                    if stat.S_ISREG(path.lstat().st_mode):
                        archive.write(path, path.relative_to(folder).as_posix())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)
