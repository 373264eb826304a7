"""A run, a comparison or a sweep as one HTML file that needs nothing else: no server, no network, no folder."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from embedl_graph import static_text
from embedl_hub.bisection import BISECTION
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.fleet import SWEEP
from embedl_hub.page._scope import NotHereError, Scope, TtlCache
from embedl_hub.page._templates import FOLDER, library_text, style_ids, templates
from embedl_hub.page._views import Answer, bisection_answer, comparison_answer, run_answer, sweep_answer
from embedl_hub.paths import replacing
from embedl_hub.ranges import NoSuchRangeError, pieces, range_headers, wanted_bytes
from embedl_hub.tracking import LoggedArtifact, Run, Store, now_ms

_IMPORT = re.compile(r'^import \{[^}]*\} from "[^"]*";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_MODULES = {
    "run.html": ("charts.js", "layers.js", "graph.js", "run.js"),
    "compare.html": ("charts.js", "layers.js", "compare.js"),
    "sweep.html": ("charts.js", "sweep.js"),
    "charts.html": ("charts.js", "trends.js"),
    "bisection.html": (),
}


def run_html(store: Store, run_id: str) -> str:
    """Return the file of a run, of a sweep's its matrix, of a bisection's its tree; the beginning of its id will do."""
    run, scope = store.run(run_id), Scope(store)
    if run.component == BISECTION:
        return alone(bisection_answer(scope, run.id))
    return alone(sweep_answer(scope, run.id, {}, TtlCache()) if run.component == SWEEP else run_answer(scope, run))


def comparison_html(store: Store, run_ids: Sequence[str]) -> str:
    """Return the file of a comparison; the beginnings of ids are enough."""
    return alone(comparison_answer(Scope(store), [store.run(run_id).id for run_id in run_ids]))


def write(html: str, path: str | os.PathLike[str]) -> Path:
    """Write the file whole or not at all."""
    target = Path(path).absolute()
    try:
        with replacing(target) as draft:
            draft.write_bytes(html.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}.") from error
    return target


def alone(answer: Answer) -> str:
    """Return the page of a run, a comparison or a sweep as one file."""
    # A file cannot import from its neighbors when it is opened from a disk.
    own = "\n".join(_EXPORT.sub("", _IMPORT.sub("", _static(name))) for name in _MODULES[answer.template])
    # The layout of graphs is small; the charts' library is not.
    library = library_text() + ("\n" + static_text("dagre.js") if answer.context.get("graph") else "")
    page_style, chart_style = _static("page.css") + static_text("graph.css"), _static("charts.css")
    scripts = " ".join(f"'{_hash(text)}'" for text in (library, own))
    styles = " ".join(f"'{_hash(text)}'" for text in (page_style, chart_style))
    return templates().get_template(answer.template).render({
        **answer.context,
        "root": "", "address": "", "query": "", "token": None, "sign_out": None, "exported": True,
        "style_ids": style_ids(),
        "policy": f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:",
        # Our own files and the library's, which hold no end of an element; a test looks.
        "library": Markup(library), "own_script": Markup(own),  # noqa: S704
        "page_style": Markup(page_style), "chart_style": Markup(chart_style),  # noqa: S704
        "now_ms": now_ms(),
    })  # fmt: skip


def _static(name: str) -> str:
    return static_text(name) if name.startswith("graph.") else (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def artifact(run: Run, name: str, wanted: str | None) -> Response:
    """Answer with one artifact, or the part of it that a Range header asks for; a folder comes as a zip archive."""
    logged = run.artifacts.get(name)
    try:
        if logged is None:
            raise FileNotFoundError(name)
        name = f"{logged.file_name}.zip" if logged.is_folder else logged.file_name
        file = _packed(logged) if logged.is_folder else logged.open()
    except (OSError, TrackingError, ValueError) as error:
        raise NotHereError(f"Run {run.id} has no artifact {name!r} on this machine.") from error
    size = os.fstat(file.fileno()).st_size
    try:
        first, count = wanted_bytes(wanted, size)
    except NoSuchRangeError as error:
        file.close()
        raise HTTPException(416, "The file has no such bytes.", {"Content-Range": str(error)}) from error
    headers = _headers(name) | range_headers(first, count, size)
    return StreamingResponse(
        pieces(file, first, count), 200 if count == size else 206, headers, "application/octet-stream"
    )


def _headers(file_name: str) -> dict[str, str]:
    simple = "".join(character if character.isascii() and (character.isalnum() or character in "._- ") else "_"
                     for character in file_name)  # fmt: skip
    exact = quote(file_name.encode("utf-8", "surrogateescape"), safe="")
    return {
        "Content-Disposition": f"attachment; filename=\"{simple}\"; filename*=UTF-8''{exact}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-cache",
    }


def _packed(logged: LoggedArtifact) -> IO[bytes]:
    """Return a folder as an archive, in a file without a name: it goes with the answer, whatever becomes of that."""
    logged.local()
    archive_file = tempfile.TemporaryFile(suffix=".zip")  # noqa: SIM115 - closed when it is sent
    try:
        with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_STORED) as archive:
            for name, file in logged.files():
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                    shutil.copyfileobj(file, member)
    except BaseException:
        archive_file.close()
        raise
    return archive_file
