"""The gate: noise does not fail a build, a real worsening does, and what nobody can tell is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from support.runs import profile_run, samples

from embedl_device.statistics import summarize, tail_facts
from embedl_hub.comparison import Decision, GateResult, gate, junit_xml
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import LoggedMetric, Run, RunStatus


class Machine:
    """A machine whose speed wanders: both models meet the same weather, each run some noise of its own."""

    def __init__(self, folder: Path, *, noise: float, weather: float, seed: int) -> None:
        self._folder = folder
        self._noise = noise
        self._weather = weather
        self._random = np.random.default_rng(seed)
        self.slow = 1.0
        self._count = 0
        self.true_us = {"base": 1000.0, "candidate": 1000.0}
        self.order: list[str] = []

    def profile(self, name: str) -> Run:
        """Measure once."""
        self._count += 1
        self.slow *= float(np.exp(self._random.normal(0, self._weather)))
        center = self.true_us[name] * self.slow * float(np.exp(self._random.normal(0, self._noise)))
        run = profile_run(
            self._folder, f"{name}-{self._count}", samples(center, count=40, spread=0.03, seed=self._count)
        )
        self.order.append(name)
        return run

    def again(self, run: Run) -> Run:
        """Measure what a run measured."""
        return self.profile(run.id.partition("-")[0])


Make = Callable[..., Machine]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_machine(*, noise: float = 0.01, weather: float = 0.05, seed: int = 0) -> Machine:
        return Machine(tmp_path, noise=noise, weather=weather, seed=seed)

    return make_machine


def _ask(machine: Machine, **options: object) -> GateResult:
    baseline, candidate = machine.profile("base"), machine.profile("candidate")
    return gate(candidate, baseline, measure_again=machine.again, **options)  # type: ignore[arg-type]


def test_two_alike_pass_whatever_the_weather(make: Make) -> None:
    """Also where the first look is far off; at least three turns, whoever goes first changes."""
    machine = make()
    baseline = machine.profile("base")
    machine.slow = 1.6
    candidate = machine.profile("candidate")
    machine.slow = 1.0
    result = gate(candidate, baseline, measure_again=machine.again)
    assert result.first_look.value > 1.4
    assert result.decision is Decision.OK
    assert len(result.pairs) >= 3
    assert machine.order[2:6] == ["base", "candidate", "candidate", "base"]


def test_a_real_worsening_fails(make: Make) -> None:
    """And the numbers say by how much."""
    machine = make()
    machine.true_us["candidate"] = 1120.0
    result = _ask(machine)
    assert result.decision is Decision.WORSE
    assert 1.08 < result.worsening.value < 1.16
    assert json.loads(json.dumps(result.as_dict()))["decision"] == "worse"


@pytest.mark.slow
def test_the_rates_hold_on_a_noisy_machine(make: Make) -> None:
    """40 times alike and 40 times 10 % slower, with 2 % noise per run and a machine that wanders."""
    said = {"alike": 0, "slower": 0}
    for seed in range(40):
        machine = make(noise=0.02, seed=seed)
        said["alike"] += _ask(machine).decision is Decision.WORSE
        machine.true_us["candidate"] = 1100.0
        said["slower"] += _ask(machine).decision is Decision.WORSE
    assert said["alike"] <= 1
    assert said["slower"] >= 38


def test_what_nobody_can_tell_is_said(make: Make) -> None:
    """No failure, no praise."""
    result = _ask(make(noise=0.5), most_pairs=6)
    assert result.decision is Decision.CANNOT_TELL
    assert "6 turns" in result.reason


def test_more_is_better_for_rates(make: Make) -> None:
    """A slower model has fewer frames per second."""
    machine = make()
    machine.true_us["candidate"] = 1150.0
    assert _ask(machine, metric="fps").decision is Decision.WORSE
    machine.true_us["candidate"] = 900.0
    assert _ask(machine, metric="fps").decision is Decision.OK


def test_a_percentile_is_held_against_a_percentile(tmp_path: Path) -> None:
    """With the error that its samples tell; a run of too few for it says how many, and how to get them."""

    def profile(name: str, center_us: float) -> Run:
        number = len(list(tmp_path.iterdir()))
        times = samples(center_us, count=1000, spread=0.05, seed=number)
        told = summarize(times, 1e3)
        values = {"latency_p99": told.p99 or 0.0, "latency_p99_high": told.p99_high or 0.0}
        return profile_run(tmp_path, f"{name}-{number}", times, metrics=values)

    centers = {"base": 1000.0, "alike": 1000.0, "slow": 1300.0}
    runs = {name: profile(name, center) for name, center in centers.items()}

    def again(run: Run) -> Run:
        name = run.id.partition("-")[0]
        return profile(name, centers[name])

    for metric in ("latency_p99", "latency_p99_high"):
        for name, decision in (("alike", Decision.OK), ("slow", Decision.WORSE)):
            result = gate(runs[name], runs["base"], metric=metric, measure_again=again)
            assert result.decision is decision
            assert min(pair.error for pair in result.pairs) > 0
    few = samples(1000, count=200)
    short = profile_run(tmp_path, "short", few, tails=tail_facts(few))
    with pytest.raises(ConfigError, match="p99 needs 662 samples, there are 200; profile with --until p99"):
        gate(short, runs["base"], metric="latency_p99")


def test_without_a_fresh_baseline_every_repeat_must_agree(make: Make) -> None:
    """The machine may have changed since; one repeat within the tolerance is enough to doubt."""
    machine = make(weather=0.0, noise=0.005)
    machine.true_us["candidate"] = 1200.0
    assert _ask(machine, repeat_baseline=False).decision is Decision.WORSE
    machine.true_us["candidate"] = 1000.0
    assert _ask(machine, repeat_baseline=False).decision is Decision.OK
    assert "base" not in machine.order[-3:]


def test_a_profile_nobody_repeats_is_never_worse(make: Make) -> None:
    """It only looks worse."""
    machine = make(weather=0.0)
    machine.true_us["candidate"] = 2000.0
    baseline, candidate = machine.profile("base"), machine.profile("candidate")
    assert gate(candidate, baseline).decision is Decision.CANNOT_TELL
    assert gate(baseline, candidate).decision is Decision.OK


def test_estimates_are_held_against_estimates_and_never_measured_again(tmp_path: Path) -> None:
    """Turns would confirm the estimate, not the model; against a measurement it says nothing."""
    measured, one, other = (
        profile_run(tmp_path, name, [time_us], verdict=verdict)
        for name, time_us, verdict in (("m", 1000, "stable"), ("one", 1000, "estimated"), ("other", 1200, "estimated"))
    )

    def measure_again(run: Run) -> Run:
        raise AssertionError(run.id)

    for candidate, baseline, decision in ((other, one, Decision.WORSE), (one, other, Decision.OK)):
        result = gate(candidate, baseline, measure_again=measure_again)
        assert (result.decision, result.pairs) == (decision, ())
        assert "both numbers are estimated, nothing was measured" in result.reason
    for pair in ((one, measured), (measured, one)):
        with pytest.raises(ConfigError, match="run one are estimated and those of the other run are measured"):
            gate(*pair, measure_again=measure_again)


def test_what_is_no_measurement_counts_as_it_is() -> None:
    """An accuracy that dropped has dropped."""

    def evaluated(name: str, value: float) -> Run:
        return Run(name, "p", "EVAL", name, RunStatus.FINISHED, 0, 1, metrics=(LoggedMetric("cosine", value),))

    worse = gate(evaluated("b", 0.8), evaluated("a", 1.0), metric="cosine")
    assert worse.decision is Decision.WORSE
    assert gate(evaluated("b", 0.99), evaluated("a", 1.0), metric="cosine").decision is Decision.OK


def test_slips_are_answered(make: Make, tmp_path: Path) -> None:
    """A metric that is not there, a tolerance that is none."""
    machine = make()
    one, other = machine.profile("base"), machine.profile("candidate")
    with pytest.raises(ConfigError, match="has no metric 'speed'; it has: 'fps', 'latency'"):
        gate(one, other, metric="speed")
    with pytest.raises(ConfigError, match="tolerance"):
        gate(one, other, tolerance=-1)
    with pytest.raises(ConfigError, match="most_pairs"):
        gate(one, other, most_pairs=2)
    zero = profile_run(tmp_path, "z", samples(1000), metrics={"latency_median": 0.0})
    with pytest.raises(ConfigError, match="above zero"):
        gate(zero, other)


def test_the_report_is_junit(make: Make) -> None:
    """Worse is a failure, not knowing a skipped test; odd characters do not break it."""
    machine = make()
    fine = _ask(machine)
    machine.true_us["candidate"] = 1300.0
    worse = _ask(machine)
    suite = ET.fromstring(  # noqa: S314 - our own text
        junit_xml([fine, worse, _ask(make(noise=0.5), most_pairs=4)], seconds=3.0)
    )
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite.findall("testcase")[1].find("failure")
    assert failure is not None
    assert "worse by more than the tolerance" in (failure.get("message") or "")
