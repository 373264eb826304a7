"""Bisections of real profiles on this machine: a cause, none, refusals, and going on after a stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.bisection_nets import device, profiled, slow_net, with_weight
from support.models import residual_net, save

from embedl_hub.bisection import (
    STEP,
    Answer,
    BisectionResult,
    Cause,
    Decision,
    Found,
    Settings,
    Switch,
    bisect,
    plan_bisection,
    read_bisection,
)
from embedl_hub.bisection import _oracle as oracle
from embedl_hub.bisection._compiling import compilations_of
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.component import RunType
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ProfileError
from embedl_hub.core.steps import keep_model, run_of, where_measured
from embedl_hub.errors import ConfigError, TrackingError, UnknownDeviceError

_FAST = Settings(alpha=0.05, least=0.2, seconds=0.02, most_sittings=8)


def _evaluated(ctx: HubContext, model: Any, name: str, folder: Path, data: np.ndarray) -> str:
    """Run a model on data, compare its answers with those of a reference model, and return the evaluation."""
    kept = keep_model(ctx, ONNXRuntimeProfiler, save(model, folder / f"{name}.onnx"))
    answers = ONNXRuntimeInvoker().run(ctx, kept, {"x": data}, device="good")  # type: ignore[arg-type]
    answers.compare(save(residual_net(), folder / "reference.onnx"), ctx=ctx)
    store = ctx.client.store
    assert store is not None
    return store.find("type = 'EVAL'", limit=1).runs[0].id


def test_a_slower_part_of_a_model_is_found_among_harmless_settings(ctx: HubContext, tmp_path: Path) -> None:
    """The steps behind one layer explain it; two settings and another weight differ too."""
    good = profiled(ctx, slow_net(steps=0), "good", tmp_path)
    bad = profiled(ctx, with_weight(slow_net(steps=8), "w0", 1.01), "same", tmp_path)

    result = bisect(ctx, plan_bisection(ctx, good, bad), settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"model: soft0"})]
    assert result.has_difference
    assert "soft0" in result.sentence()
    assert "error of the whole search at most 0.05" in result.sentence()
    store = ctx.client.store
    assert store is not None
    assert read_bisection(store, result.run_id).sentence() == result.sentence()


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(ctx: HubContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided before a stop is not measured again, and the answered question is not asked again."""
    good = profiled(ctx, slow_net(steps=0), "good", tmp_path)
    bad = profiled(ctx, with_weight(slow_net(steps=8), "w0", 1.01), "same", tmp_path)
    plan = plan_bisection(ctx, good, bad)
    real = oracle.Trials._try_by_turns
    decided: list[int] = []

    def stop_at_the_second(self: oracle.Trials, *args: Any) -> Any:
        if len(decided) == 1:
            raise KeyboardInterrupt
        decided.append(1)
        return real(self, *args)

    monkeypatch.setattr(oracle.Trials, "_try_by_turns", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        bisect(ctx, plan, settings=_FAST)
    monkeypatch.setattr(oracle.Trials, "_try_by_turns", real)
    lines: list[str] = []

    result = bisect(ctx, plan, settings=_FAST, told=lines.append)

    assert [cause.names for cause in result.found.causes] == [frozenset({"model: soft0"})]
    assert result.reused == 2
    assert any("going on with" in line for line in lines)
    store = ctx.client.store
    assert store is not None
    finished = [run for run in store.runs(f"component = '{STEP}'") if str(run.status) == "FINISHED"]
    assert len(finished) == len(result.decisions)
    assert bisect(ctx, plan, settings=_FAST).run_id == result.run_id
    assert len(store.runs(f"component = '{STEP}' and status = 'FINISHED'")) == len(finished)


def test_equal_ends_leave_nothing_to_explain(ctx: HubContext, tmp_path: Path) -> None:
    """Harmless settings and a weight differ, and nobody is blamed."""
    good = profiled(ctx, slow_net(steps=2), "good", tmp_path)
    bad = profiled(ctx, with_weight(slow_net(steps=2), "w0", 1.001), "same", tmp_path)

    result = bisect(ctx, plan_bisection(ctx, good, bad), settings=_FAST)

    assert not result.has_difference
    assert result.found.causes == ()
    # On a busy machine it may not even be shown that they are alike.
    assert ("Undecided" if result.is_undecided else "nothing to explain") in result.sentence()


def test_what_is_not_shown_either_way_is_undecided() -> None:
    """It is not called equal, and the interval says how far it was from that."""
    none: frozenset[str] = frozenset()
    differ = Decision("differ", none, none, none, Answer.OPEN, "", 1.026, 0.87, 1.21, level=0.005, sittings=24)
    result = BisectionResult("r", "g", "b", "latency_median", "here", 0.01, 0.02, (), Found(), (differ,))
    assert result.is_undecided
    assert not result.has_difference
    assert "× 1.03 (0.87 to 1.21) in 24 sittings" in result.sentence()


def test_what_each_of_two_causes_does_alone_is_told() -> None:
    """Where either makes it much slower, "together" hides that; what was not asked alone is not told."""
    none: frozenset[str] = frozenset()
    whole = frozenset({"model", "level"})
    decisions = (
        Decision("differ", none, whole, whole, Answer.BAD, "", 7.5, 7.4, 7.6, level=0.005, sittings=4),
        Decision("trial", none, frozenset({"model"}), whole, Answer.GOOD, "", 3.0, 2.9, 3.1, share=0.41, sittings=4),
    )
    cause = Cause((Switch("model", "a", "b"), Switch("level", "all", "disable")))
    result = BisectionResult(
        "r", "g", "b", "latency_median", "here", 0.01, 0.02, cause.switches, Found((cause,)), decisions
    )
    assert "model: a -> b together with level: all -> disable (alone: model 41% of the difference)" in result.sentence()


def test_a_wrong_weight_is_named_by_the_answers(ctx: HubContext, tmp_path: Path) -> None:
    """Of the weights that differ, the one that changes the answers is found, without chance."""
    data = np.random.default_rng(1).normal(size=(1, 3, 16, 16)).astype(np.float32)
    good = _evaluated(ctx, residual_net(), "one", tmp_path, data)
    other = with_weight(with_weight(residual_net(), "w0", 1.0001), "w1", -3.0)
    bad = _evaluated(ctx, other, "two", tmp_path, data)

    result = bisect(ctx, plan_bisection(ctx, good, bad, metric="cosine"), settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"model: w1"})]
    assert all(decision.level is None for decision in result.decisions)
    assert "nothing is left to chance" in result.sentence()


def test_changed_data_is_a_cause_like_any_other(ctx: HubContext, tmp_path: Path) -> None:
    """The same wrong model does well on other data: the data is what differs."""
    random = np.random.default_rng(1)
    wrong = with_weight(residual_net(), "w1", 1.2)
    ends = [random.normal(size=(1, 3, 16, 16)).astype(np.float32) * scale for scale in (0.001, 30.0)]
    good, bad = (_evaluated(ctx, wrong, f"data{n}", tmp_path, data) for n, data in enumerate(ends))

    result = bisect(ctx, plan_bisection(ctx, good, bad, metric="max_abs_error"), settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"data"})]


def test_size_is_compared_exactly(ctx: HubContext, tmp_path: Path) -> None:
    """A file that grew is explained by the part that made it grow."""
    good = profiled(ctx, slow_net(steps=0), "good", tmp_path)
    bad = profiled(ctx, slow_net(steps=8), "same", tmp_path)

    result = bisect(ctx, plan_bisection(ctx, good, bad, metric="model_size_mb"), settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"model: soft0"})]


def _turns(slow: Mapping[str, float]) -> Callable[..., dict[str, Any]]:
    """Return what stands for measurements in turns: times by setting, with a little noise."""
    lock, draws = threading.Lock(), random.Random(3)  # noqa: S311 - no secret

    def measure(_: object, __: object, variants: Sequence[Any], *, sittings: int, **___: object) -> dict[str, Any]:
        with lock:
            rows = [
                [[draws.gauss(slow.get(each.config.optimization_level, 1.0), 0.01)] * 10 for each in variants]
                for _ in range(sittings)
            ]
        # As long as a board takes, so that both have something to do.
        time.sleep(0.05)
        ones = [1.0] * len(variants)
        return {"sittings": [{"times_us": row, "load_us": ones, "first_us": ones} for row in rows]}

    return measure


def test_equal_boards_share_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of one round run side by side, each decision on one board; what is found is the same."""
    settings = {"optimization_level": "disable", "allow_fallback": True, "allow_saturation": True}
    devices = [device("good"), device("left", **settings), device("right", **settings)]
    with HubContext("bisect", devices, home=tmp_path / "home") as ctx:
        good = profiled(ctx, residual_net(), "good", tmp_path)
        bad = profiled(ctx, residual_net(), "left", tmp_path)
        plan = plan_bisection(ctx, good, bad, pool=("left", "right"))
        monkeypatch.setattr("embedl_hub.machine.variants.measure_variants", _turns({"disable": 1.5}))

        result = bisect(ctx, plan, settings=_FAST)

        store = ctx.client.store
        assert store is not None
        places = {run.device for run in store.runs(f"component = '{STEP}'")}
    assert [cause.names for cause in result.found.causes] == [frozenset({"optimization_level"})]
    assert places == {"left", "right"}
    assert plan.place == "device left, device right"


def _classifier(*factors: float) -> onnx.ModelProto:
    """Return a classifier of two layers, one factor for each layer's weights."""
    random = np.random.default_rng(5)
    kept = [(random.normal(size=(8, 8)) * factor).astype(np.float32) for factor in factors]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "one"),
        helper.make_node("MatMul", ["h", "w1"], ["y"], "two"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [200, 8]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(values, f"w{number}") for number, values in enumerate(kept)]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_accuracy_is_asked_with_the_right_answers(ctx: HubContext, tmp_path: Path) -> None:
    """Labels are given; that the ends differ is McNemar's to say, and the weights that cost accuracy are found."""
    data = np.random.default_rng(2).normal(size=(200, 8)).astype(np.float32)
    ids: list[str] = []
    for name, model in (("one", _classifier(1, 1)), ("two", _classifier(1.001, -1))):
        kept = keep_model(ctx, ONNXRuntimeProfiler, save(model, tmp_path / f"{name}.onnx"))
        answers = ONNXRuntimeInvoker().run(ctx, kept, {"x": data}, device="good")  # type: ignore[arg-type]
        if not ids:
            np.save(tmp_path / "labels.npy", answers.output["y"].argmax(axis=-1))
        answers.compare({"y": np.zeros((200, 8), np.float32)}, ctx=ctx)
        store = ctx.client.store
        assert store is not None
        ids.append(store.find("type = 'EVAL'", limit=1).runs[0].id)
    with pytest.raises(ConfigError, match="--labels"):
        plan_bisection(ctx, *ids, metric="accuracy")

    plan = plan_bisection(ctx, *ids, metric="accuracy", labels=tmp_path / "labels.npy")
    result = bisect(ctx, plan, settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"model: w1"})]
    assert "only GOOD has" in result.decisions[0].reason
    assert result.decisions[0].level is not None
    np.save(tmp_path / "few.npy", np.zeros(3, np.int64))
    few = plan_bisection(ctx, *ids, metric="accuracy", labels=tmp_path / "few.npy")
    with pytest.raises(ProfileError, match="one label for each row"):
        bisect(ctx, few, settings=_FAST)


@pytest.mark.slow
def test_an_option_of_a_compilation_is_named(tmp_path: Path) -> None:
    """Both models are compiled from one file: it is compiled again with single options of BAD."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.normal(size=(4, 3, 16, 16)).astype(np.float32))
    source = save(residual_net(), tmp_path / "net.onnx")
    with HubContext("bisect", [device("here", prediction=False)], home=tmp_path / "home") as ctx:
        ids = []
        for per_channel, method in ((False, "minmax"), (True, "entropy")):
            compiled = ONNXRuntimeCompiler().run(
                ctx, source, device="here", calibration_data=tmp_path / "data.npz", per_channel=per_channel,
                calibration_method=method,
            )  # fmt: skip
            ids.append(run_of(ctx, ONNXRuntimeProfiler().run(ctx, compiled, device="here")).id)
        plan = plan_bisection(ctx, *ids, metric="model_size_mb", calibration_data=tmp_path / "data.npz")
        result = bisect(ctx, plan, settings=_FAST)

    assert [cause.names for cause in result.found.causes] == [frozenset({"compile: per_channel"})]
    assert "compile: per_channel (False -> True)" in result.sentence()
    refused = compilations_of(replace(plan, calibration_data=None))[0]
    assert refused is not None
    assert all("--calibration-data" in str(each.refusal) for each in refused.switches)


def test_what_cannot_be_asked_is_said_at_once(ctx: HubContext, tmp_path: Path) -> None:
    """The same run, runs of two types, an unknown run or metric, and a run without a model are refused by name."""
    good = profiled(ctx, residual_net(), "good", tmp_path)
    bad = profiled(ctx, with_weight(residual_net(), "w0", 2.0), "bad", tmp_path)
    with ctx.client.start_run(RunType.PROFILE, "by hand") as bare:
        bare.log_metric("latency_median", 1.0)
    with ctx.client.start_run(RunType.EVAL, "by hand") as other:
        other.log_metric("cosine", 1.0)

    for ids, options, words in (
        ((good, good), {}, "same run"),
        ((good, other.id), {}, "of type PROFILE"),
        ((good, bare.id), {}, "has no model"),
        ((good, bad), {"metric": "latency_p99"}, "latency_median"),
        ((good, bad), {"metric": "cosine"}, "not told by runs of type PROFILE"),
        ((good, bad), {"metric": "energy"}, "cannot be measured again"),
        ((good, bad), {"device": "good", "here": True}, "contradict"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_bisection(ctx, *ids, **options)
    with pytest.raises(TrackingError):
        plan_bisection(ctx, good, "nothing")
    with pytest.raises(ConfigError, match="does not lead to a run that gave answers"):
        plan_bisection(ctx, other.id, _copy_of(ctx), metric="cosine")


def _copy_of(ctx: HubContext) -> str:
    with ctx.client.start_run(RunType.EVAL, "by hand") as run:
        run.log_metric("cosine", 0.5)
    return run.id


def test_another_board_is_said_to_be_no_switch(ctx: HubContext, tmp_path: Path) -> None:
    """The device of the records differs, which no trial can set; one that is gone is an error with the next step."""
    good = profiled(ctx, residual_net(), "good", tmp_path)
    bad = profiled(ctx, residual_net(), "bad", tmp_path)
    store = ctx.client.store
    assert store is not None
    with HubContext("bisect", [device("other")], home=tmp_path / "home") as later:
        with pytest.raises(UnknownDeviceError, match="--here"):
            plan_bisection(later, good, bad)
        assert where_measured(later, store.run(bad), here=True) is None
        assert where_measured(later, store.run(bad), device="other") == "other"
        plan = plan_bisection(later, good, bad, here=True)

    refused = {each.name: each.refusal for each in plan.switches if each.refusal is not None}
    assert "another board cannot be switched" in str(refused["device"])
    assert next(each for each in plan.switches if each.name == "optimization_level").refusal is None


def test_effort_is_no_switch_and_a_version_without_a_python_says_how_to_get_one(
    ctx: HubContext, tmp_path: Path
) -> None:
    """How much was measured changes no inference; a version that is not there is refused with the line to type."""
    good = profiled(ctx, residual_net(), "good", tmp_path)
    devices = [device("good"), device("bad", iterations=12, optimization_level="basic")]
    with HubContext("bisect", devices, home=tmp_path / "home") as later:
        bad = profiled(later, residual_net(), "bad", tmp_path)
        store = later.client.store
        assert store is not None
        plan = plan_bisection(later, good, bad)
        assert "every trial is measured alike" in str(
            next(each for each in plan.switches if each.name == "iterations").refusal
        )
        old = replace(plan, bad=replace(plan.bad, version="1.0.0"))
        steps = oracle.Steps(later, "x", {}, lambda _: None)
        with later.client.start_run(RunType.CUSTOM, "asking"):
            switches, _ = oracle.Trials(
                later,
                replace(old, switches=(*old.switches, Switch("runtime", "1", "1.0.0", "runtime"))),
                _FAST, steps, tmp_path,
            ).find_pythons()  # fmt: skip
    refusal = str(next(each for each in switches if each.name == "runtime").refusal)
    assert "onnxruntime==1.0.0" in refusal
    assert "--python 1.0.0=" in refusal


@pytest.mark.slow
def test_a_trial_that_does_not_run_is_invalid_and_ends_nothing(ctx: HubContext, tmp_path: Path) -> None:
    """A configuration that the runtime refuses is told as such, with the runtime's words."""
    good = profiled(ctx, residual_net(), "good", tmp_path)
    bad = profiled(ctx, with_weight(residual_net(), "w0", 2.0), "bad", tmp_path)
    plan = plan_bisection(ctx, good, bad)
    with ctx.client.start_run(RunType.CUSTOM, "asking"):
        trials = oracle.Trials(ctx, plan, _FAST, oracle.Steps(ctx, "x", {}, lambda _: None), tmp_path)
        trials.find_pythons()
        real = trials.model

        def broken(names: frozenset[str]) -> Path:
            if names != {"model"}:
                return real(names)
            path = tmp_path / "broken.onnx"
            path.write_bytes(b"no model")
            return path

        trials.model = broken  # type: ignore[method-assign]
        decision = trials._trial(frozenset(), frozenset({"optimization_level"}), frozenset({"model"}))
    assert decision.answer is Answer.INVALID
    assert "does not run" in decision.reason
