"""Memory in a document, and whether it fits, in words."""

from __future__ import annotations

import pytest

from embedl_hub.core.document import LayerMemory, MemoryPart, MemoryProfile, fit_of

PLAN = MemoryProfile(
    "by the rules", 300_000_000, 80_000_000, "conv3",
    (LayerMemory("conv1", "Conv", 10, 0), LayerMemory("conv3", "Conv", 20, 5)), (MemoryPart("tensors", 300_000_000),),
    runtime_bytes=32_000_000, facts={"more": 1},
)  # fmt: skip


def test_a_document_gives_back_what_it_was_given() -> None:
    """Nothing is lost on the way."""
    assert MemoryProfile.from_json(PLAN.as_json()) == PLAN


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"rows": 3, "parts": "x", "arena_bytes": "many"},
        {"rows": [{"in_use_bytes": -4}, 7], "parts": [{"bytes": True}], "peak_layer": 5, "missing_because": []},
    ],
)
def test_a_damaged_document_has_no_figures(content: dict[str, object]) -> None:
    """What cannot be read is not known, and never 0 bytes of memory."""
    found = MemoryProfile.from_json(content)
    assert found.arena_bytes is None
    assert found.total_bytes is None
    assert not found.parts


def test_the_verdict_says_what_is_needed_where_and_of_what() -> None:
    """Needed, there, the layer, and what it is made of."""
    found = fit_of(PLAN, 256_000_000)
    assert found.fits is False
    assert found.text == (
        "will not fit: 412 of 256 MB, at layer conv3 (weights 80, arena 300, the runtime itself about 32)"
    )
    assert fit_of(PLAN, 412_000_000).fits is True
    assert fit_of(PLAN, 411_999_999).fits is False


def test_what_is_not_known_is_no_verdict() -> None:
    """Neither without a prediction nor without the device's memory."""
    unknown = fit_of(MemoryProfile("by the rules", weights_bytes=5, problem="it has a loop"), 1)
    assert unknown.fits is None
    assert unknown.text == "whether it fits is not known: it has a loop"
    assert fit_of(PLAN, None).fits is None
    assert "the memory of the device is not known" in fit_of(PLAN, None).text
