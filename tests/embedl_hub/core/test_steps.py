"""Models by run: what a run made, or used."""

from __future__ import annotations

from pathlib import Path

from embedl_hub.core.component import RunType
from embedl_hub.core.profile import TFLiteProfiler
from embedl_hub.core.steps import model_of
from embedl_hub.testing import temporary_context


def test_a_run_that_used_a_model_gives_it_whole(tmp_path: Path) -> None:
    """With what its compiler said of it; a file that nobody compiled is the file alone."""
    compiled, given = tmp_path / "compiled.tflite", tmp_path / "given.tflite"
    compiled.write_bytes(b"one")
    given.write_bytes(b"other")
    with temporary_context() as ctx:
        store = ctx.client.store
        assert store is not None
        with ctx.client.start_run(RunType.COMPILE, "compile") as run:
            run.log_artifact(given, name="input")
            made = run.log_artifact(compiled, name="path")
            run.log_param("input_name_mapping", {"x:0": "x_0"})
        models = []
        for artifact in (made, given):
            with ctx.client.start_run(RunType.PROFILE, "profile") as run:
                run.log_artifact(artifact, name="input", ctx=ctx)
            models.append(model_of(ctx, TFLiteProfiler, store.run(run.id)))
        assert models[0].input_name_mapping == {"x:0": "x_0"}
        assert models[0].input.sha256 == models[1].path.sha256
        assert (models[1].input_name_mapping, models[1].input) == ({}, None)
