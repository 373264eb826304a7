"""Numbers and times as people read them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_hub.page import _format


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, _format.NONE), (3.0, "3"), (100000, "100,000"), (0.1946, "0.1946"), (11.5512, "11.55"),
     (0.00001, "1.000e\N{MINUS SIGN}05"),
     (-2.5, "\N{MINUS SIGN}2.500"), (math.inf, "∞"), (math.nan, "not a number"), (1234.56, "1,235")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert _format.number(value) == text


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_a_number_never_lies_by_more_than_its_digits(value: float) -> None:
    """What is shown reads back to nearly the value."""
    text = _format.number(value).replace(",", "").replace("\N{MINUS SIGN}", "-")
    assert math.isclose(float(text), value, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("before_s", "text"),
    [(5, "just now"), (61, "1 minute ago"), (7200, "2 hours ago"), (86_400 * 3, "3 days ago"), (-50, "just now")],
)
def test_ago(before_s: int, text: str) -> None:
    assert _format.ago(1_000_000_000_000 - before_s * 1000, 1_000_000_000_000) == text


@pytest.mark.parametrize(("count", "text"), [(12, "12 B"), (3_580_000, "3.58 MB"), (1000, "1 kB"), (5e15, "5e+03 TB")])
def test_sizes(count: float, text: str) -> None:
    assert _format.size(count) == text


@pytest.mark.parametrize(("ms", "text"), [(None, _format.NONE), (793, "0.793 s"), (2540, "2.5 s"),
                                          (125_000, "2 min 05 s"),
                                          (7_260_000, "2 h 01 min")])  # fmt: skip
def test_spans(ms: float | None, text: str) -> None:
    assert _format.span(ms) == text


@given(
    st.recursive(
        st.text() | st.floats() | st.none() | st.booleans(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_page_holds_no_markup(values: object) -> None:
    """And is the same JSON."""
    text = _format.for_script(values)
    assert not set("<>&") & set(text)
    assert json.loads(text) == json.loads(_format.dumps(values))
