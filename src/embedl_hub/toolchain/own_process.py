"""Work in a process of its own, so that its memory, its messages and its crashes stay there.

``python -m MODULE REQUEST.json`` prints one JSON object, or one line on stderr that says why there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MARK = "refused: "


def ask(
    module: str,
    request: Mapping[str, object],
    note: Path,
    ending: Callable[[CommandError], str],
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Return a module's answer to a request.

    Args:
        module: A module that ends with ``sys.exit(answer(…))``.
        request: What its work takes, by name.
        note: Where to write the request down.
        ending: What to say of a process that ended and did not say why.
        timeout_s: After so many seconds it is stopped.
    """
    note.write_text(json.dumps(request), encoding="utf-8")
    try:
        done = LocalCommandRunner().run([sys.executable, "-m", module, note], hide=True, timeout_s=timeout_s)
    except CommandError as error:
        own = [line[len(_MARK) :] for line in error.stderr.splitlines() if line.startswith(_MARK)]
        raise RefusedError(own[-1] if own else ending(error)) from error
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def answer(worker: str, work: Callable[[dict[str, Any], Path], dict[str, Any]]) -> int:
    """Do what the file on the command line asks, and return the exit code.

    Args:
        worker: Who does it, for the message when it fails.
        work: Takes the request and a path beside it that nothing has yet.
    """
    note = Path(sys.argv[1])
    try:
        said = work(json.loads(note.read_text(encoding="utf-8")), note.with_suffix(""))
    except RefusedError as error:
        return _refuse(str(error))
    except Exception as error:  # noqa: BLE001 - whatever a vendor's library stumbles over is told in one line
        return _refuse(f"{worker} failed on this model: {type(error).__name__}: {error}")
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(_MARK + " ".join(reason.split()) + "\n")
    return 1
