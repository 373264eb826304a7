"""Memory of an ExecuTorch program: planned in its file, and counted by the C library where it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.executorch import small_pte

from embedl_hub.core.compile import ExecuTorchCompiledModel
from embedl_hub.core.device import Device
from embedl_hub.core.profile import ExecuTorchProfiler
from embedl_hub.refusal import RefusedError
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.executorch.memory import measured_memory, plan_file


def write(path: Path, content: bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content)
    return path


def test_a_plan_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    """Lives, the fullest call, and parts that add up to the buffer to the byte."""
    found = plan_file(write(tmp_path / "m.pte", small_pte(800)))
    assert (found.arena_bytes, found.weights_bytes, found.total_bytes) == (800, 1000, 1800)
    assert [(row.name, row.in_use_bytes) for row in found.rows] == [("aten::relu:0", 512), ("aten::relu:1", 512)]
    assert found.peak_layer == "aten::relu:0"
    assert [(part.what, part.size_bytes) for part in found.parts] == [
        ("tensor 0 of aten::relu:0", 256),
        ("tensor 1 of aten::relu:0", 256),
        ("free while this layer runs", 288),
    ]


def test_a_tensor_outside_its_buffer_is_refused(tmp_path: Path) -> None:
    """A file that says so is damaged."""
    with pytest.raises(RefusedError, match="tensor 2 lies outside its buffer"):
        plan_file(write(tmp_path / "m.pte", small_pte(700)))
    with pytest.raises(RefusedError, match="does not begin as one"):
        plan_file(write(tmp_path / "n.pte", b"x" * 64))
    with pytest.raises(RefusedError, match="cut short"):
        plan_file(write(tmp_path / "c.pte", small_pte()[:90]))


def test_what_the_runtime_counted_is_told_with_the_plan(tmp_path: Path) -> None:
    """The rest is named as what it is; a system that does not count says so."""
    path = write(tmp_path / "m.pte", small_pte(800))
    told = {"method": "counted", "arena_bytes": 1100, "rows": [], "missing_because": None}
    found = measured_memory(told, path)
    assert sum(part.size_bytes for part in found.parts) == found.arena_bytes == 1100
    assert found.parts[-1].what == "the runtime's own records of the program"
    silent = measured_memory({"method": "counted", "rows": [], "missing_because": "nobody counts"}, path)
    assert (silent.arena_bytes, silent.problem) == (None, "nobody counts")


@pytest.mark.slow
def test_a_real_program_takes_what_was_planned(compiled: ExecuTorchCompiledModel, here: Device) -> None:
    """The count of the C library is the planned buffers and little more; what a delegate takes is not predicted."""
    with temporary_context([here]) as ctx:
        result = ExecuTorchProfiler().run(ctx, compiled, device="here")
        assert result.output_file is not None
        document = json.loads(result.output_file.local().read_text())
        assert ctx.client.store is not None
        (run,) = ctx.client.store.find("type = 'PROFILE'").runs
    measured, planned = document["memory"], document["predicted_memory"]
    assert planned["arena_bytes"] > 0
    assert planned["arena_bytes"] <= measured["arena_bytes"] <= planned["arena_bytes"] + 65_536
    assert "has memory of its own" in planned["missing_because"]
    assert result.predicted_memory_mb is None
    assert "not known" in str(run.params["memory_fit"].value)
    assert measured["allocated_bytes"] is None or measured["allocated_bytes"] >= measured["arena_bytes"]
