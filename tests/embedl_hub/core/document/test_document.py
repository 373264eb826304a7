"""One reader and one writer: what is written is read, what is older or damaged is read as far as it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import recorded

from embedl_device.statistics import Judgement, Summary, Verdict
from embedl_hub.core.document import LayerRow, LayerTable, ProfileDocument, read_document, write_document
from embedl_hub.errors import TrackingError

_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from([*recorded.EXAMPLE, "modules", "kind", "new"])


def test_a_stored_document_keeps_everything(tmp_path: Path) -> None:
    """Every value of the documented example is there again after reading and writing."""
    write_document(ProfileDocument.from_json(recorded.EXAMPLE), tmp_path / "profile.json")
    again = json.loads((tmp_path / "profile.json").read_text())
    rows = again["layers"].pop("rows")
    example: dict[str, Any] = json.loads(json.dumps(recorded.EXAMPLE))
    for row, old in zip(rows, example["layers"].pop("rows"), strict=True):
        assert {name: row[name] for name in old} == old
    assert {name: again[name] for name in example} == example


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Typed values come back as they were."""
    row = LayerRow(
        "conv", "Conv", "GPU", 1.5, 1.0, ("a",), ("stem",), provider="X", integer=True, extra={"tactic": "t"}
    )
    document = ProfileDocument(
        Summary(mean=2.0), {"load_time_ms": 3.0}, (1.0, 2.0), judgement=Judgement(Verdict.NOISY, "why"), place="here",
        layers=LayerTable((row,), {"runs": 3}), facts={"settings": {"threads": 1}},
    )  # fmt: skip
    write_document(document, tmp_path / "profile.json")
    assert read_document(tmp_path / "profile.json") == document


@given(st.dictionaries(_KEYS, _JSON))
@settings(deadline=None)
def test_anything_is_read_as_far_as_it_goes(content: dict[str, Any]) -> None:
    """Never a crash, and what was read can be written."""
    document = ProfileDocument.from_json(content)
    assert all(isinstance(value, float) for value in document.samples_us)
    document.metrics()
    json.dumps(document.as_json())


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "cannot be read"), ("[1]", "no object"), ('{"format": 2}', "has format 2, and this hub reads 1")],
)
def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(TrackingError, match=why):
        read_document(tmp_path / "profile.json")
