"""The OpenAPI document and the server agree: whatever fits the document is answered as it says, and nothing fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks

if TYPE_CHECKING:
    from support.hub_server import HubServer

from embedl_hub.server._routes import ROUTES, Route
from embedl_hub.tracking import project_id

load_all_checks()
PROJECT = "fuzzed"
RUN = "0123456789abcdef"
# What the document cannot say: that a filter must parse, that records must follow each other, that wrong keys shown
# too often are answered with 429. And what we mend below is not wrong any more. test_rest has what is refused.
_NOT_CHECKED = {
    "ensure_resource_availability", "ignored_auth", "negative_data_rejection", "positive_data_acceptance",
    "use_after_free",
}  # fmt: skip
_CASES = [
    (mode, route)
    for mode in schemathesis.GenerationMode
    for route in ROUTES
    # Nothing can be wrong about a request that has nothing.
    if mode is schemathesis.GenerationMode.POSITIVE or route.params or route.body
]


@pytest.fixture(scope="module")
def schema(shared: HubServer) -> schemathesis.schemas.BaseSchema:
    """The document, with a project and a run behind it."""
    key = shared.key()
    start = {"seq": 0, "kind": "start", "time_ms": 0, "format": 1, "project": PROJECT, "type": "EVAL", "name": "x"}
    body = {"after": -1, "records": [start]}
    assert shared.ask("POST", f"/api/projects/{project_id(PROJECT)}/runs/{RUN}/records", key, body)[0] == 200
    document = shared.ask("GET", "/api/openapi.json")[1]
    loaded = schemathesis.openapi.from_dict(document)
    loaded.config.update(base_url=shared.url)
    return loaded


@pytest.mark.parametrize(("mode", "route"), _CASES, ids=lambda value: getattr(value, "name", ""))
def test_the_server_is_as_its_document_says(
    shared: HubServer, schema: schemathesis.schemas.BaseSchema, mode: schemathesis.GenerationMode, route: Route
) -> None:
    """Fuzzed with what fits the document and with what does not."""
    key = shared.key()
    checks: list[Any] = [check for check in CHECKS.get_all() if check.__name__ not in _NOT_CHECKED]
    operation = schema[route.path][route.method]

    @seed(1)
    @settings(
        max_examples=25, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), own=st.booleans())
    def fuzz(case: schemathesis.Case[Any], own: bool) -> None:
        if own and "project" in case.path_parameters:
            # Half of the time something that is there.
            case.path_parameters["project"] = project_id(PROJECT)
            if "run" in case.path_parameters:
                case.path_parameters["run"] = RUN
        case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=checks)

    fuzz()
