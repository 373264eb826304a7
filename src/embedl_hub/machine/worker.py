"""Work in a process of its own, so that its memory, its messages and its crashes stay there.

``python -m MODULE REQUEST.json`` prints one JSON object, or one line on stderr that says why there is none.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request = TypeVar("Request")
_MARK = "refused: "


def call_worker(
    module: str,
    request: DataclassInstance,
    scratch: Path,
    ending: str | Callable[[CommandError], str],
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Return the result of a module that ends with ``sys.exit(serve(…))`` for a request.

    ``ending`` is what to say of a process that ended and did not say why; a text is followed by the error.
    """
    request_file = scratch / f"{module.rpartition('.')[2]}.json"
    request_file.write_text(json.dumps(asdict(request)), encoding="utf-8")
    try:
        done = LocalCommandRunner().run([*python_argv(module=module), request_file], hide=True, timeout_s=timeout_s)
    except CommandError as error:
        own = [line.removeprefix(_MARK) for line in error.stderr.splitlines() if line.startswith(_MARK)]
        otherwise = f"{ending}: {error}" if isinstance(ending, str) else ending(error)
        raise RefusedError(own[-1] if own else otherwise) from error
    result = parse_answer(next(iter(done.stdout.splitlines()[-1:]), ""))
    if not isinstance(result, dict):
        raise RefusedError(f"{module} ended without an answer.")
    return result


def serve(name: str, work: Callable[[Request, Path], Mapping[str, object]], request_class: type[Request]) -> int:
    """Do what the file on the command line asks, and return the exit code; ``name`` is for the message of a failure.

    ``work`` takes the request and a path beside it that nothing has yet.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    file = Path(sys.argv[1])
    try:
        result = work(request_class(**json.loads(file.read_text(encoding="utf-8"))), file.with_suffix(""))
    except RefusedError as error:
        return _refuse(str(error))
    except Exception as error:  # noqa: BLE001 - whatever a vendor's library stumbles over is told in one line
        return _refuse(f"{name} failed on this model: {type(error).__name__}: {error}")
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(_MARK + " ".join(reason.split()) + "\n")
    return 1
