"""What a device program tells of memory is checked, and a prediction that fails stops nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embedl_hub.core.device import MeasuringConfig
from embedl_hub.core.document import MemoryProfile, ProfileDocument
from embedl_hub.machine.memory import check_weights, foresee_memory, told_memory, with_memory
from embedl_hub.refusal import RefusedError
from embedl_hub.testing import temporary_context
from embedl_hub.tracking import RunType


def machine(memory_bytes: int | None, *, allow: bool = False) -> Any:
    """Return what of a machine is asked here."""
    config = MeasuringConfig(allow_out_of_memory=allow)
    return SimpleNamespace(title="device 'b'", memory_bytes=memory_bytes, config=config)


ROW = {"name": "n", "op_type": "Conv", "in_use_bytes": 5}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("much", "is 'much', not an object"),
        ({"rows": []}, "has no 'method'"),
        ({"method": "m", "rows": [{"name": 4}]}, "rows\\[0\\].name is 4, not str"),
        ({"method": "m", "rows": [{**ROW, "in_use_bytes": -1}]}, "in_use_bytes is -1, no number of bytes"),
        ({"method": "m", "rows": [ROW], "arena_bytes": 1 << 70}, "no number of bytes"),
        ({"method": "m", "rows": [ROW], "arena_bytes": 1e9}, "arena_bytes is 1000000000.0, not int"),
    ],
)
def test_an_answer_of_another_form_is_refused(told: object, words: str) -> None:
    """A board may be in other hands than ours."""
    with pytest.raises(RefusedError, match=f"told memory as it never does: .*{words}"):
        told_memory({"memory": told}, machine(None))


def test_an_older_program_tells_nothing() -> None:
    """Which is said, and no number."""
    found = MemoryProfile.from_json(told_memory({}, machine(None)))
    assert found.arena_bytes is None
    assert found.problem == "the device program on device 'b' is an older one"


def test_a_failing_prediction_stops_nobody() -> None:
    """It is recorded that it is not known."""

    def plan() -> MemoryProfile:
        raise ZeroDivisionError("by nothing")

    with temporary_context() as ctx:
        with ctx.client.start_run(RunType.PROFILE, component="X") as run:
            found = foresee_memory(ctx, machine(1), plan)
        assert ctx.client.store is not None
        text = str(ctx.client.store.run(run.id).params["memory_fit"].value)
    assert found.total_bytes is None
    assert text == "whether it fits is not known: it cannot be predicted (by nothing)"


def test_more_than_there_is_is_refused_or_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """Allowed with a warning, and never refused where the memory is not known."""
    plan = MemoryProfile("m", 900, 200, "conv", runtime_bytes=100)
    with temporary_context() as ctx, ctx.client.start_run(RunType.PROFILE, component="X"):
        with pytest.raises(RefusedError, match=r"will not fit: .* at layer conv .* on device 'b'.*allow_out_of_memory"):
            foresee_memory(ctx, machine(1199), lambda: plan)
        assert foresee_memory(ctx, machine(1200), lambda: plan) is plan
        assert foresee_memory(ctx, machine(None), lambda: plan) is plan
        caplog.clear()
        assert foresee_memory(ctx, machine(10, allow=True), lambda: plan) is plan
    assert "tried all the same" in caplog.text
    with pytest.raises(RefusedError, match="weights of the model alone"):
        check_weights(machine(1000), 990, 11)
    check_weights(machine(1000), 990, 10)


def test_a_document_has_both_and_the_table_finds_them() -> None:
    """Measured and predicted stay apart; what is not known has no metric."""
    document = with_memory(
        ProfileDocument(), MemoryProfile("told", 5_000_000), MemoryProfile("m", 4_000_000, 2_000_000)
    )
    assert document.metrics() == {"arena_peak_mb": 5.0, "predicted_memory_mb": 6.0}
    assert with_memory(ProfileDocument(), MemoryProfile("t"), MemoryProfile("m", 4)).metrics() == {}
