"""Results are filled by name from what a run logged, now or later from the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.component import CompiledModel, ComponentOutput, LoggedArtifact, LoggedMetric, LoggedParam
from embedl_hub.core.invoke import ONNXRuntimeInvocationResult, ONNXRuntimeInvoker
from embedl_hub.errors import OutputError
from embedl_hub.testing import temporary_context
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from decimal import Decimal


class Mode(StrEnum):
    FAST = "fast"


@dataclass(frozen=True)
class Everything(ComponentOutput):
    model: LoggedArtifact
    latency: LoggedMetric
    level: LoggedParam
    missing: LoggedMetric | None = None
    count: int = 0
    ratio: float | None = None
    flag: bool = False
    place: Path | None = None
    mode: Mode | None = None
    names: tuple[str, ...] = ()
    mapping: dict[str, str] = field(default_factory=dict)
    late: Decimal | None = None


@pytest.fixture
def ctx() -> Iterator[HubContext]:
    with temporary_context() as context:
        yield context


def test_fields_are_filled_by_name_and_type(ctx: HubContext, tmp_path: Path) -> None:
    """Logged things as they are, plain fields converted, the rest from defaults."""
    (tmp_path / "m.bin").write_bytes(b"model")
    with ctx.client.start_run() as run:
        ctx.client.log_artifact(tmp_path / "m.bin", name="model")
        ctx.client.log_metric("latency", 1.5)
        ctx.client.log_metric("latency", 2.5)
        ctx.client.log_param("level", 7)
        ctx.client.log_metric("count", 3)
        ctx.client.log_param("ratio", "0.5")
        ctx.client.log_param("flag", value=True)
        ctx.client.log_param("place", tmp_path)
        ctx.client.log_param("mode", Mode.FAST)
        ctx.client.log_param("names", ("a", "b"))
        ctx.client.log_param("mapping", {"x": "y"})
        ctx.client.log_param("late", "as it comes")
        result = Everything.from_current_run(ctx)
    assert result.model.file_name == "m.bin"
    assert result.model.size_bytes == 5
    assert result.model.local().read_bytes() == b"model"
    assert result.latency.value == 2.5
    assert result.level.value == 7
    assert result.missing is None
    assert (result.count, result.ratio, result.flag) == (3, 0.5, True)
    assert isinstance(result.count, int)
    assert (result.place, result.mode, result.names) == (tmp_path, Mode.FAST, ("a", "b"))
    assert result.mapping == {"x": "y"}
    assert str(result.late) == "as it comes"
    assert ctx.client.store is not None
    assert Everything.from_run(ctx.client.store.run(run.id)) == result


def test_extra_goes_before_what_was_logged(ctx: HubContext) -> None:
    """A keyword is the provider's own word."""

    @dataclass(frozen=True)
    class Small(ComponentOutput):
        latency: float | None = None
        output: object = None

    with ctx.client.start_run():
        ctx.client.log_metric("latency", 1)
        result = Small.from_current_run(ctx, latency=9.0, output=[1])
    assert result == Small(9.0, [1])


def test_a_missing_field_is_named_with_what_was_logged(ctx: HubContext, tmp_path: Path) -> None:
    """The error names the class, each missing field, and everything the run has."""
    (tmp_path / "out.bin").write_bytes(b"x")
    with ctx.client.start_run():
        ctx.client.log_artifact(tmp_path / "out.bin", name="result")
        ctx.client.log_metric("latency", 1)
        ctx.client.log_param("level", 1)
        with pytest.raises(OutputError) as caught:
            CompiledModel.from_current_run(ctx)
    text = str(caught.value)
    assert "CompiledModel needs 'path'" in text
    assert "artifacts 'result'" in text
    assert "parameters 'level'" in text
    assert "metrics 'latency'" in text


def test_an_unknown_extra_is_refused(ctx: HubContext) -> None:
    """A misspelt keyword would otherwise vanish."""
    with ctx.client.start_run(), pytest.raises(OutputError, match=r"no field 'pth'; its fields are: 'input', 'path'"):
        CompiledModel.from_current_run(ctx, pth=1)


@pytest.mark.parametrize(("name", "value"), [("count", "many"), ("count", 1.5), ("flag", "perhaps"), ("mode", "slow")])
def test_a_value_of_the_wrong_type_is_refused(ctx: HubContext, tmp_path: Path, name: str, value: Any) -> None:
    """The error names field, declared type and value."""
    (tmp_path / "m").write_bytes(b"")
    with ctx.client.start_run():
        ctx.client.log_artifact(tmp_path / "m", name="model")
        ctx.client.log_metric("latency", 1)
        ctx.client.log_param("level", 1)
        ctx.client.log_param(name, value)
        with pytest.raises(OutputError, match=rf"Everything\.{name} is declared as .* logged {value!r}"):
            Everything.from_current_run(ctx)


def test_a_wrong_kind_of_result_is_an_error(ctx: HubContext) -> None:
    """The message has the function's place and the line to write; the run is not called finished."""

    class Fresh(ONNXRuntimeInvoker):
        """Without providers of its own."""

    Fresh.provider("local")(lambda ctx, model, input_data, **_: {"logits": 1})
    with pytest.raises(OutputError, match=r"test_output.py:\d+.*which is no InvocationResult.*from_current_run\(ctx\)"):
        Fresh().run(ctx, None, {})  # type: ignore[arg-type]
    assert ctx.client.store is not None
    assert ctx.client.store.runs()[0].status is RunStatus.FAILED


def test_nothing_passes_with_a_warning(ctx: HubContext) -> None:
    """A sample's empty body runs; the run says that it has no result."""

    class Fresh(ONNXRuntimeInvoker):
        """Without providers of its own."""

    Fresh.provider("local")(lambda ctx, model, input_data, **_: None)
    with pytest.warns(UserWarning, match=r"returned nothing.*return ONNXRuntimeInvocationResult.from_current_run"):
        assert Fresh().run(ctx, None, {}) is None  # type: ignore[arg-type]
    assert ctx.client.store is not None
    run = ctx.client.store.runs()[0]
    assert run.status is RunStatus.FINISHED
    assert run.params["$result"].value == "none"


def test_a_compiled_model_of_ones_own_is_taken_from_a_built_in_compiler(ctx: HubContext, tmp_path: Path) -> None:
    """Only the kind of step matters."""

    @dataclass(frozen=True)
    class Mine(CompiledModel):
        level: int = 3

    class Fresh(ONNXRuntimeCompiler):
        """Without providers of its own."""

    @Fresh.provider("local")
    def _compile(ctx: HubContext, onnx_path: Path, **_: object) -> Mine:
        ctx.client.log_artifact(onnx_path, name="path")
        return Mine.from_current_run(ctx)

    (tmp_path / "net.onnx").write_bytes(b"net")
    assert Fresh().run(ctx, tmp_path / "net.onnx").level == 3  # type: ignore[attr-defined]


def test_an_invocation_result_comes_back_with_its_arrays(ctx: HubContext) -> None:
    """The .npz artifact is enough to rebuild it."""
    import numpy as np

    with ctx.client.start_run() as run:
        np.savez(ctx.artifact_dir / "output.npz", logits=np.arange(3.0))
        ctx.client.log_artifact(ctx.artifact_dir / "output.npz", name="output_file")
        ONNXRuntimeInvocationResult.from_current_run(ctx, output={"logits": np.arange(3.0)})
    assert ctx.client.store is not None
    again = ONNXRuntimeInvocationResult.from_run(ctx.client.store.run(run.id))
    assert again.output["logits"].tolist() == [0.0, 1.0, 2.0]


def test_what_was_not_logged_comes_with_the_call(ctx: HubContext) -> None:
    """For each field the one that gives it its value; a path is no artifact."""
    with ctx.client.start_run():
        with pytest.raises(OutputError, match=r"ctx.client.log_artifact\(file, name='path'\)"):
            CompiledModel.from_current_run(ctx)
        with pytest.raises(OutputError, match=r"path is a file of the run, so ctx.client.log_artifact"):
            CompiledModel.from_current_run(ctx, path=Path("net"))
        with pytest.raises(
            OutputError, match=r"ctx.client.log_metric\('latency', value\), ctx.client.log_param\('level'"
        ):
            Everything.from_current_run(ctx, model=None)
