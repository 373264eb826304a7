"""The OpenAPI document and the server agree: what fits the document is answered as it says, what does not is refused.

With every check that schemathesis has. What the document cannot say (that a filter must parse, that records follow each
other, that a content has its hash) is mended in what is made to fit, so that it must be taken.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.parameters import ParameterLocation
from support.hub_server import HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator

from embedl_hub.server._routes import ROUTES, Route
from embedl_hub.tracking import folder_content, project_id

load_all_checks()
PROJECT = "fuzzed"
RUN = "0123456789abcdef"
POSITIVE = schemathesis.GenerationMode.POSITIVE
_CASES = [
    (mode, route)
    for mode in schemathesis.GenerationMode
    for route in ROUTES
    # Nothing can be wrong about a request that has nothing.
    if mode is POSITIVE or route.params or route.body
]
_FILTERS = st.sampled_from([
    "", "status = 'FINISHED'", "metrics.m < 5 or not tags.a = 'b'", "name ~ '%_'", "started > '7d'", "model = 'abcd'",
    'params."x y" is not null', "archived = true", "device in ('a', 'b')", "duration > 1e300",
])  # fmt: skip
_ORDERS = st.sampled_from(["-started", "name", "-metrics.m", "params.a", "tags.b", "duration", "id"])


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A server that takes wrong keys with patience: how it slows them down is tested elsewhere."""
    options = ["--wrong-keys", "1000000"]
    if request.param == "postgresql":
        options += ["--database", request.getfixturevalue("cluster").database("fuzzed")]
    server = HubServer(tmp_path_factory.mktemp("fuzzed") / "home", *options).start()
    yield server
    server.end()


@pytest.fixture(scope="module")
def schema(fuzzed: HubServer) -> schemathesis.schemas.BaseSchema:
    """The document, with a project and a run behind it."""
    key = fuzzed.key()
    start = {"seq": 0, "kind": "start", "time_ms": 0, "format": 1, "project": PROJECT, "type": "EVAL", "name": "x"}
    body = {"after": -1, "records": [start]}
    assert fuzzed.ask("POST", f"/api/projects/{project_id(PROJECT)}/runs/{RUN}/records", key, body)[0] == 200
    document = fuzzed.ask("GET", "/api/openapi.json")[1]
    loaded = schemathesis.openapi.from_dict(document)
    loaded.config.update(base_url=fuzzed.url)
    return loaded


@pytest.mark.parametrize(("mode", "route"), _CASES, ids=lambda value: getattr(value, "name", ""))
def test_the_server_is_as_its_document_says(
    fuzzed: HubServer,
    schema: schemathesis.schemas.BaseSchema,
    mode: schemathesis.GenerationMode,
    route: Route,
    request: pytest.FixtureRequest,
) -> None:
    """Fuzzed with what fits the document, which is taken, and with what does not, which is not."""
    key = fuzzed.key()
    checks: list[Any] = CHECKS.get_all()
    operation = schema[route.path][route.method]
    slow = request.config.getoption("markexpr", "") != "not slow"

    @seed(1)
    @settings(
        max_examples=200 if slow else 20, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), own=st.booleans(), words=st.tuples(_FILTERS, _ORDERS))
    def fuzz(case: schemathesis.Case[Any], own: bool, words: tuple[str, str]) -> None:
        is_path_wrong = case.meta is not None and case.meta.is_negative_at(ParameterLocation.PATH)
        if own and "project" in case.path_parameters and not is_path_wrong:
            # Half of the time something that is there.
            case.path_parameters["project"] = project_id(PROJECT)
            if "run" in case.path_parameters:
                case.path_parameters["run"] = RUN
        if mode is POSITIVE:
            _mend(case, route, words)
        case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=checks)

    fuzz()


def _mend(case: schemathesis.Case[Any], route: Route, words: tuple[str, str]) -> None:
    for name, word in zip(("where", "order"), words, strict=True):
        if name in case.query:
            case.query[name] = word
    case.query.pop("after", None)
    body: Any = case.body
    if route.body is not None:
        case.body = body = _whole_numbers(body)
    if route.name == "sendRecords":
        sent: Any = {"after": -1, "records": _in_order(body["records"])}
        case.body = sent
        # A run of its own: another test deletes the one that is there.
        run_id = hashlib.sha256(repr(body).encode()).hexdigest()[:20]
        case.path_parameters = {"project": project_id(PROJECT), "run": run_id}
    if route.is_upload:
        case.headers.pop("Content-Range", None)
        case.path_parameters["sha256"] = hashlib.sha256(body.data).hexdigest()


def _whole_numbers(value: Any) -> Any:
    """Write whole numbers as such: to JSON Schema 1.0 is one, to a manifest it is not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    return [_whole_numbers(item) for item in value] if isinstance(value, list) else value


def _in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    start = {"kind": "start", "time_ms": 0, "format": 1, "type": "EVAL", "name": "x"}
    start = {**next((record for record in records if record["kind"] == "start"), start), "project": PROJECT}
    made = [start, *(record for record in records if record["kind"] != "start")]
    for record in made:
        if "files" in record:
            files = {f"f{number}": (sha, size) for number, (_, sha, size) in enumerate(record["files"][:5])}
            sizes = {sha: 1 for sha, _ in files.values()}
            record["files"] = [[name, sha, sizes[sha]] for name, (sha, _) in files.items()]
            content = folder_content(tuple((name, sha, size) for name, sha, size in record["files"]))
            record |= {"sha256": content.sha256, "size_bytes": content.size_bytes}
    return [{**record, "seq": seq} for seq, record in enumerate(made)]
