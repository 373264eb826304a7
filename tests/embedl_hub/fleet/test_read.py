"""Sweeps written down in TOML, and everything that can be wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.fleet import model_files, plain_device, plain_sweep

from embedl_hub.core.device import DeviceQuery, DeviceSpec, Pool
from embedl_hub.errors import ConfigError
from embedl_hub.fleet import DeviceSelection, StepKind, SweepModel, SweepOption, plan_sweep, read_sweep
from embedl_hub.testing import temporary_context

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[sweep]
name = "candidates"
toolchain = "plain"
timeout_s = 60

[models.first]
path = "models/m0.onnx"
data = { calibration = "calibration" }

[models.others]
files = "models/m[12].onnx"

[options.float]

[options.slow]
profile = { wait_s = 0.5, command = ["sleep", "1"] }

[devices]
names = ["x", "y"]
"""


def test_a_file_becomes_a_sweep(tmp_path: Path) -> None:
    """Paths are the file's neighbors, lists are tuples, a pattern is a model for each file."""
    model_files(tmp_path / "models", 3)
    (tmp_path / "plan.toml").write_text(GOOD)
    sweep = read_sweep(tmp_path / "plan.toml")
    assert sweep.name == "candidates"
    assert sweep.timeout_s == 60
    assert sweep.steps == (StepKind.COMPILE, StepKind.PROFILE)
    assert sweep.models == (
        SweepModel("first", tmp_path / "models/m0.onnx", {"calibration": tmp_path / "calibration"}),
        SweepModel("m1", tmp_path / "models/m1.onnx"),
        SweepModel("m2", tmp_path / "models/m2.onnx"),
    )
    assert sweep.options == (
        SweepOption("float"),
        SweepOption("slow", {StepKind.PROFILE: {"wait_s": 0.5, "command": ("sleep", "1")}}),
    )
    assert sweep.devices == DeviceSelection(("x", "y"))


def test_everything_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    """Each with the names that are known."""
    (tmp_path / "plan.toml").write_text(
        """
        [sweep]
        toolchains = "plain"
        retries = true
        steps = ["compile", "benchmark"]
        [models.a]
        pth = "x"
        [models.b]
        files = "nothing/*.onnx"
        [options.o]
        profiling = {}
        [devices]
        name = ["x"]
        [else]
        """
    )
    with pytest.raises(ConfigError) as caught:
        read_sweep(tmp_path / "plan.toml")
    for part in (
        "the file has 'else'; known: 'devices', 'models', 'options', 'sweep'",
        "[sweep] has 'toolchains'; known: 'name', 'rank', 'reference'",
        "[sweep]: retries is True, which is no whole number",
        "[sweep] needs 'toolchain'",
        "[sweep] steps: 'benchmark' is no step; known: 'compile', 'invoke', 'profile'",
        "[models.a] has 'pth'; known: 'compile', 'data', 'files', 'invoke', 'path', 'profile'",
        "[models.a] needs either a path, or files",
        "[models.b] files: nothing matches 'nothing/*.onnx'",
        "[options.o] has 'profiling'; known: 'compile', 'invoke', 'profile', 'source', 'toolchain'",
        "[devices] has 'name'; known: 'names', 'pools', 'where'",
    ):
        assert part in str(caught.value)


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    """With the place of the slip."""
    with pytest.raises(ConfigError, match=r"gone.toml cannot be read"):
        read_sweep(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("[sweep\n")
    with pytest.raises(ConfigError, match=r"bad.toml cannot be read.*line 1"):
        read_sweep(tmp_path / "bad.toml")


def test_everything_wrong_with_a_sweep_is_said_before_anything_runs(tmp_path: Path) -> None:
    """Keywords that the component does not have, data that a model lacks, files and devices that are not there."""
    good = model_files(tmp_path, 1)
    gone = SweepModel("gone", tmp_path / "gone.onnx", {"labels": tmp_path / "labels.npy"})
    sweep = plain_sweep(
        (*good, gone, *good),
        options={"o": {"waits": 1, "note": "$notes", "fail": {1, 2}}},
        devices=DeviceSelection(("x", "z"), where="arch=aarch64"),
        retries=-1,
        rank=True,
    )
    with temporary_context([plain_device("x")]) as ctx, pytest.raises(ConfigError) as caught:
        plan_sweep(ctx, sweep)
    for part in (
        "models: 'm0' is there twice",
        "retries is -1",
        "option 'o', profile has no 'waits'; known: 'command', 'fail', 'hang', 'note', 'value', 'wait_s'",
        "model 'm0' has no data 'notes'",
        "option 'o', profile: fail is {1, 2}; a sweep takes text, numbers, lists and paths",
        f"model 'gone': there is no {tmp_path / 'gone.onnx'}",
        "there is no device 'z'; the context has: 'x'",
        "model 'gone' has labels but no data 'test'",
        "rank = true needs two options or more; there is 1",
        "rank = true: Models of 'plain' cannot be measured in turns",
    ):
        assert part in str(caught.value), part
    with temporary_context([plain_device("x")]) as ctx:
        assert ctx.client.store is not None
        assert ctx.client.store.count() == 0


SEVERAL = """
[models.net]
path = "models/m0.onnx"
data = { lite = "models/m1.onnx" }

[options.desktop]
toolchain = "onnxruntime"

[options.phone]
toolchain = "tflite"
source = "$lite"
"""


def test_options_name_toolchains_of_their_own(tmp_path: Path) -> None:
    """Then the sweep needs none, and an option may compile a file that was written for its toolchain."""
    model_files(tmp_path / "models", 2)
    (tmp_path / "plan.toml").write_text(SEVERAL)
    sweep = read_sweep(tmp_path / "plan.toml")
    with temporary_context() as ctx:
        plan = plan_sweep(ctx, sweep)
    sources = {(step.kind, step.toolchain): step.source.name for step in plan.steps.values()}
    assert sources == {
        (StepKind.COMPILE, "onnxruntime"): "m0.onnx",
        (StepKind.PROFILE, "onnxruntime"): "m0.onnx",
        (StepKind.COMPILE, "tflite"): "m1.onnx",
        (StepKind.PROFILE, "tflite"): "m1.onnx",
    }


def test_what_is_wrong_with_options_of_several_toolchains_is_said(tmp_path: Path) -> None:
    """Each option by the keywords of its own toolchain; a source that the model lacks; a ranking across runtimes."""
    options = (
        SweepOption("desktop", {StepKind.COMPILE: {"per_channel": True}}, "onnxruntime"),
        SweepOption("phone", {StepKind.COMPILE: {"per_channel": True}}, "tflite", source="$lite"),
        SweepOption("board", toolchain="tflite", source="lite.onnx"),
    )
    sweep = replace(plain_sweep(model_files(tmp_path, 1)), options=options, rank=True)
    with temporary_context() as ctx, pytest.raises(ConfigError) as caught:
        plan_sweep(ctx, sweep)
    for part in (
        "option 'phone', compile has no 'per_channel'; known: 'calibration_data'",
        "option 'phone', source: model 'm0' has no data 'lite'; it has: none",
        "option 'board': source is 'lite.onnx'; it names data of the model, as '$name'",
        "the options are of 'onnxruntime', 'tflite'",
    ):
        assert part in str(caught.value), part
    assert "option 'desktop', compile has no" not in str(caught.value)


def test_an_unknown_toolchain_is_answered_with_the_known(tmp_path: Path) -> None:
    """Those of installed providers included."""
    sweep = plain_sweep(model_files(tmp_path, 1))
    with (
        temporary_context([plain_device("x")]) as ctx,
        pytest.raises(ConfigError, match=r"no toolchain 'tf'.*'onnxruntime'"),
    ):
        plan_sweep(ctx, type(sweep)("s", "tf", sweep.models, sweep.options))


def test_targets_are_names_queries_and_pools(tmp_path: Path) -> None:
    """A query makes a target of each device that it means, a pool is one target; what there is not is said."""
    sweep = plain_sweep(model_files(tmp_path, 1))
    devices = [
        plain_device(name, spec=DeviceSpec(architecture=architecture))
        for name, architecture in (("a", "x86_64"), ("b", "aarch64"), ("c", "aarch64"))
    ]
    pools = {"arms": Pool("arms", DeviceQuery.parse("arch=aarch64")), "a": Pool("a", names=("a",))}

    def targets(**wishes: Any) -> dict[str, tuple[str, ...]]:
        plan = plan_sweep(ctx, replace(sweep, devices=DeviceSelection(**wishes)), pools=pools)
        return {target.name: target.devices for target in plan.targets}

    with temporary_context(devices) as ctx:
        assert targets(where="arch=aarch64") == {"b": ("b",), "c": ("c",)}
        assert targets(names=("a",), pools=("arms",)) == {"a": ("a",), "arms": ("b", "c")}
        with pytest.raises(ConfigError) as caught:
            targets(where="arch=riscv64", pools=("lab", "a"))
    for part in ("devices where: ", "there is no pool 'lab'; known: 'a', 'arms'", "pool 'a' is called like a device"):
        assert part in str(caught.value)


def test_nothing_named_is_every_device_or_this_machine(tmp_path: Path) -> None:
    """What the context has is what there is to sweep over."""
    sweep = plain_sweep(model_files(tmp_path, 1))
    with temporary_context([plain_device("x"), plain_device("y")]) as ctx:
        assert [target.name for target in plan_sweep(ctx, sweep).targets] == ["x", "y"]
    with temporary_context() as ctx:
        (target,) = plan_sweep(ctx, sweep).targets
        assert (target.name, target.devices) == ("here", ())
