"""The addresses of the API as one table: requests are checked by it, and the OpenAPI document is made from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import embedl_hub
from embedl_hub.server import _shapes as shapes
from embedl_hub.server._refusal import bad_request, not_found

_MEANINGS = {
    400: "The request cannot be understood.",
    401: "There is no key, or it does not hold.",
    403: "The key is for reading only.",
    404: "There is nothing here that this key may see.",
    409: "The request does not fit what is here.",
    410: "The run was deleted.",
    413: "More than is taken.",
    416: "The file has no such bytes.",
    422: "A content is not what it says it is.",
    429: "Too many requests; Retry-After says when to come again.",
    503: "Not at the moment; try again.",
    507: "The server's disk is full.",
}


@dataclass(frozen=True)
class Param:
    """A parameter of a request."""

    name: str
    place: str
    schema: shapes.Schema
    text: str


@dataclass(frozen=True)
class Route:
    """One thing that can be asked."""

    method: str
    path: str
    name: str
    text: str
    access: str = "read"  # ``read`` or ``write``; empty for everybody
    params: tuple[Param, ...] = ()
    body: shapes.Schema | None = None
    is_upload: bool = False  # whether the body is bytes; a JSON one has a schema
    # What a good answer holds, by status; None for no body, ``bytes`` for a file
    answers: Mapping[int, shapes.Schema | str | None] = field(default_factory=dict)
    refusals: tuple[int, ...] = ()  # the other statuses

    def checked(self, path: Mapping[str, str], query: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Return the values of a request's parameters, or refuse them."""
        known = {param.name: param for param in self.params if param.place == "query"}
        values: dict[str, Any] = {}
        for param in self.params:
            if param.place == "path":
                if "pattern" in param.schema and not re.fullmatch(param.schema["pattern"], path[param.name]):
                    raise not_found()
                values[param.name] = path[param.name]
            elif "default" in param.schema:
                values[param.name] = param.schema["default"]
        seen: set[str] = set()
        for name, text in query:
            if name not in known:
                raise bad_request(f"There is no parameter {name!r:.100}; known: {', '.join(known) or 'none'}.")
            if name in seen:
                raise bad_request(f"The parameter {name!r} is given twice.")
            seen.add(name)
            values[name] = _value(known[name], text)
        return values


def _value(param: Param, text: str) -> object:
    schema = param.schema
    if schema["type"] == "integer":
        # At most 19 digits: Python would take much longer ones, at a price.
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise bad_request(f"{param.name} must be a whole number.")
        number = int(text)
        if not schema["minimum"] <= number <= schema["maximum"]:
            raise bad_request(f"{param.name} must be from {schema['minimum']} to {schema['maximum']}.")
        return number
    if "enum" in schema:
        if text not in schema["enum"]:
            raise bad_request(f"{param.name} must be one of {', '.join(schema['enum'])}.")
        return text
    if len(text) > schema.get("maxLength", 4000) or re.search("[\0\ud800-\udfff]", text):
        raise bad_request(f"{param.name} is too long, or no valid text.")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], text):
        raise bad_request(f"{param.name} must look like {schema['pattern']}.")
    return text


def document(routes: Iterable[Route]) -> shapes.Document:
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    about = "Runs of a team: read, written, found again."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Edgeproof hub", "version": embedl_hub.__version__, "description": about},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "eh_..."}}},
    }


def _operation(route: Route) -> shapes.Document:
    answers = {status: _answer(schema) for status, schema in route.answers.items()}
    body = {} if route.method == "HEAD" else _content("application/json", shapes.ERRORS)
    refused = {status: {"description": _MEANINGS[status], **body} for status in _all_refusals(route)}
    operation: shapes.Document = {
        "operationId": route.name,
        "summary": route.text,
        "responses": {str(status): answer for status, answer in (answers | refused).items()},
        "security": [{"key": []}] if route.access else [],
    }
    if route.params:
        operation["parameters"] = [
            {
                "name": param.name, "in": param.place, "required": param.place == "path", "schema": param.schema,
                "description": param.text,
            }
            for param in route.params
        ]  # fmt: skip
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content("application/json", route.body)}
    if route.is_upload:
        operation["requestBody"] = {"required": True, **_content("application/octet-stream", _BYTES)}
    return operation


def _all_refusals(route: Route) -> list[int]:
    always = {400, 429, 503} | ({401, 404} if route.access else set())
    return sorted(always | ({403} if route.access == "write" else set()) | set(route.refusals))


def _content(media_type: str, schema: shapes.Schema) -> shapes.Document:
    return {"content": {media_type: {"schema": schema}}}


def _answer(schema: shapes.Schema | str | None) -> shapes.Document:
    if schema is None:
        return {"description": "Done."}
    if schema == "bytes":
        return {"description": "The file.", **_content("application/octet-stream", _BYTES)}
    if isinstance(schema, str):
        return {"description": "Text.", **_content(schema, {"type": "string"})}
    return {"description": "The answer.", **_content("application/json", schema)}


_BYTES: shapes.Schema = {"type": "string", "format": "binary"}
_PROJECT = Param("project", "path", shapes.HEX_32, "The project's id.")
_RUN = Param("run", "path", shapes.RUN_ID, "The run's id.")
_CONTENT = Param("sha256", "path", shapes.SHA256, "The content's hash.")
_PAGE = (
    Param("limit", "query", {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}, "At most so many."),
    Param("offset", "query", {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0}, "Pass over so many."),
)
_INCLUDE = Param(
    "include",
    "query",
    {"type": "string", "pattern": "^(all|(metrics|params|tags|artifacts)(,(metrics|params|tags|artifacts)){0,3})$"},
    "Which values to bring: metrics, params, tags and artifacts with commas between, or all.",
)
_ARCHIVED: shapes.Schema = {"type": "string", "enum": ["false", "true", "any"], "default": "false"}
_CONTENT_RANGE: shapes.Schema = {"type": "string", "pattern": "^bytes ([0-9]{1,18}-[0-9]{1,18}|\\*)/[0-9]{1,18}$"}


def _text(longest: int, default: str | None = None) -> shapes.Schema:
    schema: shapes.Schema = {"type": "string", "maxLength": longest, "pattern": shapes.NO_NUL}
    return schema if default is None else {**schema, "default": default}


_ONE_PROJECT = "/api/projects/{project}"
_ONE_RUN = "/api/projects/{project}/runs/{run}"
_ONE_CONTENT = "/api/projects/{project}/contents/{sha256}"

ROUTES = (
    Route(
        "GET", "/api/projects", "listProjects", "The projects that the key opens, by name.",
        params=_PAGE, answers={200: shapes.list_of(shapes.PROJECT)},
    ),
    Route(
        "GET", _ONE_PROJECT, "getProject", "One project.",
        params=(_PROJECT,), answers={200: shapes.data_of(shapes.PROJECT)},
    ),
    Route(
        "GET", f"{_ONE_PROJECT}/runs", "listRuns", "The runs of a project, newest first unless ordered otherwise.",
        params=(
            _PROJECT, *_PAGE,
            Param("status", "query", shapes.RUN_STATUS, "Only runs in this state."),
            Param("type", "query", shapes.RUN_TYPE, "Only runs of this type."),
            Param("customType", "query", _text(200), "Only CUSTOM runs of this name."),
            Param("where", "query", _text(4000), "Conditions: metrics.latency < 5 and tags.stage = 'ci'."),
            Param("order", "query", _text(300, "-started"), "A field; largest first with a minus in front."),
            Param("after", "query", _text(1000), "The nextAfter of the page before; quicker than offset."),
            Param("archived", "query", _ARCHIVED, "Whether archived runs are shown."),
            _INCLUDE,
        ),
        answers={200: shapes.list_of(shapes.RUN)},
    ),
    Route(
        "GET", _ONE_RUN, "getRun", "One run with the values asked for.",
        params=(_PROJECT, _RUN, _INCLUDE), answers={200: shapes.data_of(shapes.RUN)},
    ),
    Route(
        "PATCH", _ONE_RUN, "changeRun", "Archive a run that has ended, or tag it.", access="write",
        params=(_PROJECT, _RUN), body=shapes.CHANGE,
        answers={200: shapes.data_of(shapes.RUN)}, refusals=(409, 413, 507),
    ),
    Route(
        "DELETE", _ONE_RUN, "deleteRun", "Delete a run for good.", access="write",
        params=(_PROJECT, _RUN), answers={204: None}, refusals=(507,),
    ),
    Route(
        "POST", f"{_ONE_RUN}/records", "sendRecords", "Send records of a run, in order; sending again changes nothing.",
        access="write", params=(_PROJECT, _RUN), body=shapes.RECORDS,
        answers={200: shapes.data_of(shapes.ARRIVED)}, refusals=(409, 410, 413, 507),
    ),
    Route(
        "GET", f"{_ONE_RUN}/artifacts/{{name}}", "getArtifact", "The file of an artifact, or one file of a folder.",
        params=(
            _PROJECT, _RUN,
            Param("name", "path", {"type": "string", "minLength": 1, "maxLength": 200}, "What the run calls it."),
            Param("path", "query", {"type": "string", "maxLength": 4096}, "Which file of a folder."),
        ),
        answers={200: "bytes", 206: "bytes"}, refusals=(409, 416),
    ),
    Route(
        "HEAD", _ONE_CONTENT, "contentProgress", "How far a content has come: Upload-Offset and Upload-Complete.",
        access="write", params=(_PROJECT, _CONTENT), answers={200: None},
    ),
    Route(
        "PUT", _ONE_CONTENT, "sendContent", "Send a content, whole or, with Content-Range, the next piece of it.",
        access="write",
        params=(
            _PROJECT, _CONTENT,
            Param("Content-Range", "header", _CONTENT_RANGE, "bytes FIRST-LAST/ALL; bytes */ALL when all is there."),
        ),
        is_upload=True, answers={200: None, 202: None}, refusals=(409, 413, 422, 507),
    ),
    Route("GET", "/api/openapi.json", "getDocument", "This document.", access="", answers={200: {"type": "object"}}),
    Route("GET", "/healthz", "getHealth", "Whether the server can work.", access="", answers={200: {"type": "object"}}),
    Route("GET", "/metrics", "getMetrics", "Counts, for Prometheus.", answers={200: "text/plain"}),
)  # fmt: skip
