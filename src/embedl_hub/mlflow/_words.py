"""What a run of ours is called in MLflow: names, values and facts there and back.

Our tags begin with ``edgeproof.``. A name that MLflow does not take has the odd characters spelled out (``$`` becomes
``_u24_``); a value that it does not take goes into a file among the artifacts (`KEPT`). Both are undone on the way
back, for runs that we exported: anybody else's are taken as they are.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, parse_json

if TYPE_CHECKING:
    from embedl_hub.tracking import Value

RUN_ID = "edgeproof.run_id"
EXPORTED = "edgeproof.exported"  # how many records of the run are there; the last thing that an export writes
STEPLESS = "edgeproof.stepless"  # metrics that have no step, which MLflow writes as step 0
MADE_FROM = "edgeproof.made_from"  # the runs whose results it read
FACT = "edgeproof.fact."  # what a run of ours is besides: type, component, provider, device, error, parent_id ...
SHA256 = "edgeproof.sha256."  # the hash of each artifact
OURS = "edgeproof."
NAME, NOTE, PARENT = "mlflow.runName", "mlflow.note.content", "mlflow.parentRunId"
OUR_NOTE = "note"
KEPT = "edgeproof/values.json"

LONGEST_NAME = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 5000  # what every version takes; newer ones take 8000
LARGEST_FLOAT = 1.7976931348623157e308
"""What a database of MLflow holds in place of infinity. No metric of ours is that large: it means infinity."""

_ODD = re.compile(r"[^/\w.\- :]", re.ASCII)
_SPELLED = re.compile(r"_u([0-9a-f]{1,6})_")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?", re.ASCII)


def name_there(name: str) -> str:
    """Return a name as MLflow takes it; different names stay different."""
    spelled = _SPELLED.sub(lambda found: f"_u5f_{found[0][1:]}", name)
    spelled = _ODD.sub(lambda found: f"_u{ord(found[0]):x}_", spelled)
    # As a path it must lead nowhere else.
    if posixpath.normpath(spelled) != spelled or spelled.startswith(("/", "..")) or spelled == ".":
        spelled = re.sub(r"[/.]", lambda found: f"_u{ord(found[0]):x}_", spelled)
    return spelled


def name_here(name: str) -> str:
    """Return the name that `name_there` was given."""
    return _SPELLED.sub(lambda found: chr(int(found[1], 16)) if int(found[1], 16) < 0x110000 else found[0], name)


def param_there(value: Value) -> str:
    """Return a parameter as text: a text as it is, all else as JSON, and a text that reads like JSON in its quotes."""
    return value if isinstance(value, str) and _is_plain(value) else json.dumps(value, ensure_ascii=False)


def param_here(text: str, *, is_ours: bool) -> Value:
    """Return a parameter of MLflow, where all are texts; of others a number only where it reads the same again."""
    if is_ours:
        value: Value = text if _is_plain(text) else _parsed(text)
        return value
    if _NUMBER.fullmatch(text):
        number = float(text) if set(text) & set(".e") else int(text)
        # An integer as long as a novel is a text.
        if len(text) < 20 and str(number) == text and math.isfinite(number):
            return number
    return text


def _is_plain(text: str) -> bool:
    if not text or text[0] in '"[{-0123456789tfn':
        try:
            parse_json(text)
        except UnreadableError:
            return True
        return False
    return True


def _parsed(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return parse_json(text)
    except UnreadableError:
        return text


def metric_there(value: float) -> float | str:
    """Return a number as the server's JSON has it."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def metric_here(value: object) -> float | None:
    """Return a number of the server's; None for what is none."""
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if isinstance(value, str):
        return words.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) <= LARGEST_FLOAT else math.inf
    return math.copysign(math.inf, number) if abs(number) == LARGEST_FLOAT else number
