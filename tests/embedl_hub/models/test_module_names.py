"""Names of modules in a model's metadata: read where they can be, said where they cannot, never in the way."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.models import residual_net

from embedl_hub.core.document import ProfileDocument, Sensitivity
from embedl_hub.models.module_names import read_modules, with_modules

GOOD = {"conv/0": ["stem.conv", "stem.bn"], "relu/0": ["stem.conv"], "add/1": [""], "conv/1": "body.conv"}


def model(**told: str) -> onnx.ModelProto:
    """Return a network with remarks."""
    made = residual_net()
    helper.set_model_props(made, {f"edgeproof.{name}": text for name, text in told.items()})
    return made


def document(*layers: list[str]) -> ProfileDocument:
    """Return a profile of layers that stand for these nodes."""
    rows = [{"name": f"layer {at}", "time_ms": 1.0, "source_nodes": nodes} for at, nodes in enumerate(layers)]
    return ProfileDocument.from_json({"layers": {"rows": rows, "runs": 3}})


def test_names_precisions_and_costs_are_read() -> None:
    """One name may stand for a list of one."""
    costs = {"version": 1, "method": "measured", "unit": "points", "modules": {"stem.conv": 0.5}}
    found = read_modules(
        model(modules=json.dumps(GOOD), precisions='{"stem.conv": "int8"}', sensitivity=json.dumps(costs))
    )
    assert found.of_node["conv/0"] == ("stem.conv", "stem.bn")
    assert found.of_node["conv/1"] == ("body.conv",)
    assert found.notes.precisions == {"stem.conv": "int8"}
    assert found.notes.sensitivity == Sensitivity({"stem.conv": 0.5}, "points", "measured")
    assert found.notes.problem is None


def test_a_layer_belongs_to_the_module_of_its_main_node() -> None:
    """A convolution before a sum before what only moves; the others are told behind it."""
    source = model(modules=json.dumps({**GOOD, "q": ["x"]}))
    told = with_modules(document(["add/1", "conv/1", "relu/1"], ["relu/0"], [], ["relu/1"]), source)
    assert [row.modules for row in told.rows] == [("body.conv", ""), ("stem.conv",), (), ()]
    kept: Any = told.as_json()
    assert kept["layers"]["runs"] == 3
    assert kept["modules"] == {"precisions": {}, "sensitivity": None, "problem": None}


def test_a_model_that_says_nothing_changes_nothing() -> None:
    """Nor does one that is not known."""
    plain = document(["conv/0"])
    assert with_modules(plain, model()) == plain
    assert with_modules(plain, None) == plain


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"modules": "no JSON"}, "edgeproof.modules cannot be read (UnreadableError: Expecting value"),
        ({"modules": "[1]"}, "edgeproof.modules cannot be read (AttributeError"),
        ({"modules": "[" * 100_000}, "edgeproof.modules cannot be read (UnreadableError: it is nested"),
        ({"modules": '{"a": []}'}, "node 'a' has no list of names"),
        ({"modules": '{"a": [3]}'}, "'3' is no name"),
        ({"modules": '{"a": ["x\\u001b[2Jy"]}'}, "is no name"),
        ({"modules": json.dumps({"a": "x" * 501})}, "is no name"),
        ({"modules": "{}", "format": "7"}, "format '7', and this hub reads '1'"),
        ({"modules": json.dumps(GOOD), "precisions": "3"}, "edgeproof.precisions cannot be read"),
        ({"modules": json.dumps(GOOD), "sensitivity": '{"version": 2}'}, "version 2, and this hub reads 1"),
        (
            {"modules": json.dumps(GOOD), "sensitivity": '{"version": 1, "modules": {"a": NaN}}'},
            "a cost is no number from 0 on",
        ),
        ({"modules": json.dumps(GOOD), "sensitivity": '{"version": 1, "modules": {"a": -1}}'}, "no number from 0 on"),
        ({"modules": json.dumps(GOOD), "sensitivity": '{"version": 1}'}, "edgeproof.sensitivity cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(told: dict[str, str], why: str) -> None:
    """The profile goes on without it; what is good stays."""
    made = with_modules(document(["conv/0"]), model(**told))
    assert made.modules is not None
    assert why in str(made.modules.problem)
    good = told["modules"] == json.dumps(GOOD)
    assert made.rows[0].modules == (("stem.conv", "stem.bn") if good else ())


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["modules", "precisions", "sensitivity", "format"]), _JSON.map(json.dumps)))
def test_no_remark_breaks_a_profile(told: dict[str, str]) -> None:
    """Whatever it says, every layer is there with its time, and names are names."""
    made = with_modules(document(["conv/0"], []), model(**told))
    assert [row.time_ms for row in made.rows] == [1.0, 1.0]
    assert all(name.isprintable() for row in made.rows for name in row.modules)
    json.dumps(made.as_json(), allow_nan=False)
