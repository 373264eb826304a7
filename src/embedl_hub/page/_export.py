"""A run, a comparison or a sweep as one HTML file that needs nothing else: no server, no network, no folder."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from embedl_hub.errors import ConfigError
from embedl_hub.fleet import SWEEP
from embedl_hub.page._scope import NotHereError, Scope
from embedl_hub.page._templates import FOLDER, library_text, style_ids, templates
from embedl_hub.page._views import Answer, comparison_answer, run_answer, sweep_answer
from embedl_hub.paths import replacing
from embedl_hub.tracking import LoggedArtifact, Run, Store, now_ms

_IMPORT = re.compile(r'^import \{[^}]*\} from "[^"]*";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_MODULES = {
    "run.html": ("charts.js", "layers.js", "run.js"),
    "compare.html": ("charts.js", "layers.js", "compare.js"),
    "sweep.html": ("charts.js", "sweep.js"),
}


def run_html(store: Store, run_id: str) -> str:
    """Return the file of a run, of a sweep's run its matrix; the beginning of its id is enough."""
    run, scope = store.run(run_id), Scope(store)
    return alone(sweep_answer(scope, run.id, {}) if run.component == SWEEP else run_answer(scope, run))


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
    library = library_text()
    page_style, chart_style = (_static(name) for name in ("page.css", "charts.css"))
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
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def artifact(run: Run, name: str) -> Response:
    """Answer with one artifact; a folder comes as a zip archive."""
    logged = run.artifacts.get(name)
    path = _inside(run, logged)
    if logged is None or path is None:
        raise NotHereError(f"Run {run.id} has no artifact {name!r} on this machine.")
    name, clean_up = logged.file_name, None
    if path.is_dir():
        name, path = f"{name}.zip", _pack(path)
        clean_up = BackgroundTask(path.unlink, missing_ok=True)
    return FileResponse(path, media_type="application/octet-stream", headers=_headers(name), background=clean_up)


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
