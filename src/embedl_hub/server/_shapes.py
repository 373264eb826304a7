"""What answers look like: runs and projects as JSON, and the schemas that say so."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from embedl_hub.server._records import MOST_RECORDS
from embedl_hub.tracking import RECORD_LIMITS, LoggedArtifact, ProjectSummary, Run, RunStatus, RunType, project_id

Schema = dict[str, Any]
Document: TypeAlias = dict[str, object]

INCLUDES = ("metrics", "params", "tags", "artifacts")


def project(summary: ProjectSummary) -> Document:
    started_at = _moment(summary.last_started_ms)
    return {"id": project_id(summary.name), "name": summary.name, "runs": summary.runs, "lastStartedAt": started_at}


def run(item: Run, include: Collection[str], files: Mapping[str, list[Document]]) -> Document:
    document: Document = {
        "id": item.id, "projectId": project_id(item.project), "project": item.project, "type": item.type,
        "customType": item.name if item.type == RunType.CUSTOM else None, "name": item.name,
        "status": item.status.value, "startedAt": _moment(item.started_ms), "endedAt": _moment(item.ended_ms),
        "parentId": item.parent_id, "component": item.component, "provider": item.provider, "device": item.device,
        "error": item.error, "archived": item.archived,
    }  # fmt: skip
    if "metrics" in include:
        values = [metric.value if math.isfinite(metric.value) else str(metric.value) for metric in item.metrics]
        document["metrics"] = [
            {"name": metric.name, "value": value, "step": metric.step, "at": _moment(metric.time_ms)}
            for metric, value in zip(item.metrics, values, strict=True)
        ]
    if "params" in include:
        document["params"] = [{"name": param.name, "value": param.value} for param in item.params.values()]
    if "tags" in include:
        document["tags"] = [{"name": name, "value": value} for name, value in item.tags.items()]
    if "artifacts" in include:
        document["artifacts"] = [_artifact(artifact, files) for artifact in item.artifacts.values()]
    return document


def page(
    items: list[Document], *, limit: int, offset: int, total: int, more: bool, after: str | None = None
) -> Document:
    """Return a list with where it stands in the whole."""
    place = {"limit": limit, "offset": offset, "total": total, "hasMore": more}
    following = {"nextOffset": offset + len(items) if more else None, "nextAfter": after}
    return {"items": items, "pagination": place | following}


def _artifact(item: LoggedArtifact, files: Mapping[str, list[Document]]) -> Document:
    document: Document = {
        "name": item.name, "fileName": item.file_name, "sizeBytes": item.size_bytes, "sha256": item.sha256,
        "isFolder": item.is_folder,
    }  # fmt: skip
    return document | ({"files": files.get(item.name, [])} if item.is_folder else {})


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def obj(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def data_of(schema: Schema) -> Schema:
    return obj({"data": schema})


def list_of(schema: Schema) -> Schema:
    return data_of(obj({"items": _array(schema), "pagination": PAGINATION}))


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


# JSON Schema's patterns and Python's agree on these: printable, not blank.
_CONTROLS = "\\u0000-\\u001f\\u007f-\\u009f"
TEXT: Schema = {"type": "string"}
_SHORT_NAME = f"^[^{_CONTROLS}\\s][^{_CONTROLS}]{{0,49}}$"
NO_NUL = "^[^\\x00]*$"
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 50, "pattern": f"^[^{_CONTROLS}\\s][^{_CONTROLS}]*$"}
PLAIN_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9_$-][A-Za-z0-9._$-]*$"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": RECORD_LIMITS.whole}
SEQ: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53}
TIME_MS: Schema = {"type": "integer", "minimum": 0, "maximum": RECORD_LIMITS.time_ms}
MOMENT: Schema = {"type": "string", "format": "date-time"}
HEX_32: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
RUN_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{8,64}$"}
SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
RUN_TYPE: Schema = {"type": "string", "enum": list(RunType)}
RUN_STATUS: Schema = {"type": "string", "enum": list(RunStatus)}
METRIC: Schema = {
    "anyOf": [
        {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
        {"type": "string", "enum": list(RECORD_LIMITS.not_finite)},
    ]
}
PAGINATION = obj({
    "limit": COUNT, "offset": COUNT, "total": COUNT, "hasMore": FLAG, "nextOffset": nullable(COUNT),
    "nextAfter": nullable(TEXT),
})  # fmt: skip
PROJECT = obj({"id": HEX_32, "name": TEXT, "runs": COUNT, "lastStartedAt": nullable(MOMENT)})
_FILE = obj({"path": TEXT, "sha256": SHA256, "sizeBytes": COUNT})
_ARTIFACT = obj(
    {"name": TEXT, "fileName": TEXT, "sizeBytes": COUNT, "sha256": SHA256, "isFolder": FLAG},
    {"files": _array(_FILE)},
)
RUN = obj(
    {
        "id": RUN_ID, "projectId": HEX_32, "project": TEXT, "type": RUN_TYPE, "customType": nullable(TEXT),
        "name": TEXT,
        "status": RUN_STATUS, "startedAt": MOMENT, "endedAt": nullable(MOMENT), "parentId": nullable(RUN_ID),
        "component": nullable(TEXT), "provider": nullable(TEXT), "device": nullable(TEXT), "error": nullable(TEXT),
        "archived": FLAG,
    },
    {
        "metrics": _array(obj({"name": TEXT, "value": METRIC, "step": nullable({"type": "integer"}), "at": MOMENT})),
        "params": _array(obj({"name": TEXT, "value": {}})),
        "tags": _array(obj({"name": TEXT, "value": TEXT})),
        "artifacts": _array(_ARTIFACT),
    },
)  # fmt: skip
_ERROR = obj({"code": TEXT, "message": TEXT, "details": {"type": "object"}})
ERRORS = obj({"errors": {"type": "array", "minItems": 1, "items": _ERROR}})


def _record(kind: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return obj({"seq": SEQ, "kind": {"type": "string", "const": kind}, "time_ms": TIME_MS, **required}, optional)


_LONG_TEXT: Schema = {"type": "string", "maxLength": RECORD_LIMITS.text, "pattern": NO_NUL}
_STEP: Schema = {"type": "integer", "minimum": -RECORD_LIMITS.whole, "maximum": RECORD_LIMITS.whole}
_FILES: Schema = {
    "type": "array",
    "maxItems": RECORD_LIMITS.files,
    "items": {"type": "array", "prefixItems": [TEXT, SHA256, COUNT], "minItems": 3, "maxItems": 3},
}
RECORD: Schema = {
    "oneOf": [
        _record(
            "start",
            {"format": {"type": "integer", "const": 1}, "project": NAME, "type": RUN_TYPE, "name": NAME},
            {
                "host": NAME, "pid": COUNT, "detached": FLAG, "component": NAME, "provider": NAME, "device": NAME,
                "parent_id": RUN_ID,
            },
        ),
        _record("param", {"name": NAME, "value": {}}),
        _record("metric", {"name": NAME, "value": METRIC}, {"step": nullable(_STEP)}),
        _record("tag", {"name": NAME, "value": _LONG_TEXT}),
        _record(
            "artifact",
            {"name": PLAIN_NAME, "file_name": PLAIN_NAME, "sha256": SHA256, "size_bytes": COUNT},
            {"files": _FILES},
        ),
        _record("end", {"status": RUN_STATUS}, {"error": nullable(_LONG_TEXT), "traceback": nullable(_LONG_TEXT)}),
        _record("archive", {"archived": FLAG}),
    ]
}  # fmt: skip
RECORDS = obj({
    "after": {"type": "integer", "minimum": -1, "maximum": 2**53},
    "records": {"type": "array", "maxItems": MOST_RECORDS, "items": RECORD},
})  # fmt: skip
ARRIVED = obj({
    "last": {"type": "integer", "minimum": -1},
    "missing": _array(obj({"sha256": SHA256, "sizeBytes": COUNT})),
})  # fmt: skip
_TAGS: Schema = {"type": "object", "patternProperties": {_SHORT_NAME: _LONG_TEXT}, "additionalProperties": False}
CHANGE = obj({}, {"archived": FLAG, "tags": _TAGS})
