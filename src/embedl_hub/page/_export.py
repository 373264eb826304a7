"""A run, a comparison or a sweep as one HTML file that needs nothing else: no server, no network, no folder."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup

from embedl_hub.errors import ConfigError
from embedl_hub.fleet import SWEEP
from embedl_hub.page import _charts, _words
from embedl_hub.page._scope import Scope
from embedl_hub.page._templates import FOLDER, templates
from embedl_hub.page._views import comparison_answer, run_answer, sweep_answer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from embedl_hub.page._views import Answer
    from embedl_hub.tracking import Store

_IMPORT = re.compile(r'^import \{[^}]*\} from "[^"]*";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def run_html(store: Store, run_id: str) -> str:
    """Return the file of a run, of a sweep's run its matrix; the beginning of its id is enough."""
    run = store.run(run_id)
    return sweep_page(Scope(store), run.id, {}) if run.component == SWEEP else run_page(Scope(store), run.id)


def comparison_html(store: Store, run_ids: Sequence[str]) -> str:
    """Return the file of a comparison; the beginnings of ids are enough."""
    return comparison_page(Scope(store), [store.run(run_id).id for run_id in run_ids])


def run_page(scope: Scope, run_id: str) -> str:
    """Return the file of a run that a visitor may see."""
    return _alone(run_answer(scope, scope.run(run_id)), ("charts.js", "layers.js", "run.js"))


def comparison_page(scope: Scope, run_ids: Sequence[str]) -> str:
    """Return the file of a comparison that a visitor may see."""
    return _alone(comparison_answer(scope, run_ids), ("charts.js", "layers.js", "compare.js"))


def sweep_page(scope: Scope, run_id: str, wishes: Mapping[str, str]) -> str:
    """Return the file of a sweep that a visitor may see."""
    return _alone(sweep_answer(scope, run_id, wishes), ("charts.js", "sweep.js"))


def write(html: str, path: str | os.PathLike[str]) -> Path:
    """Write the file whole or not at all."""
    target = Path(path).absolute()
    draft = target.with_name(f".{target.name}.part")
    try:
        draft.write_bytes(html.encode("utf-8", "replace"))
        draft.replace(target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def _alone(answer: Answer, modules: Sequence[str]) -> str:
    library, own = _charts.library_text(), _joined(modules)
    page_style, chart_style = (_static(name) for name in ("page.css", "charts.css"))
    scripts = " ".join(f"'{_hash(text)}'" for text in (library, own))
    styles = " ".join(f"'{_hash(text)}'" for text in (page_style, chart_style))
    return templates().get_template(answer.template).render({
        **answer.context,
        "root": "", "address": "", "query": "", "token": None, "sign_out": None, "exported": True,
        "style_ids": _charts.style_ids(),
        "policy": f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:",
        # Our own files and the library's, which hold no end of an element; a test looks.
        "library": Markup(library), "own_script": Markup(own),  # noqa: S704
        "page_style": Markup(page_style), "chart_style": Markup(chart_style),  # noqa: S704
        "quote": lambda text: quote(str(text), safe=""), "ago": _words.ago,
    })  # fmt: skip


def _joined(modules: Sequence[str]) -> str:
    """Return modules as one: a file cannot import from its neighbours when it is opened from a disk."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _static(name))) for name in modules)


def _static(name: str) -> str:
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
