"""Runs side by side: what differs first, then ratios that do not promise more than the samples hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.runs import document, layer, profile_run, samples

from embedl_hub.comparison import compare
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import LoggedMetric, LoggedParam, Run, RunStatus


def test_two_alike_show_no_difference(tmp_path: Path) -> None:
    """And nothing that was measured on differs."""
    comparison = compare([profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1000, seed=1))])
    assert comparison.differences == ()
    rows = {row.name: row for row in comparison.metrics}
    assert rows["latency_median"].conclusion(1) == "no difference shown"
    assert rows["fps"].conclusion(1) == "no difference shown"
    assert rows["latency_min"].conclusion(1) == "no uncertainty known"
    assert "no difference shown" in comparison.headline()[0]


def test_a_slower_run_is_called_slower(tmp_path: Path) -> None:
    """With its interval; the first run is what others are held against."""
    comparison = compare([profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1200, seed=1))])
    rows = {row.name: row for row in comparison.metrics}
    assert rows["latency_median"].conclusion(1) == "slower"
    assert rows["fps"].conclusion(1) == "slower"
    assert comparison.metrics[0].name == "latency_median"
    assert comparison.headline()[0].endswith("): slower")


def test_bounds_get_no_verdict(tmp_path: Path) -> None:
    """The end of an interval has its uncertainty in it; what was measured is judged."""
    runs = [profile_run(tmp_path, name, samples(size)) for name, size in (("a", 1000), ("b", 1200))]
    both = [
        dataclasses.replace(run, metrics=(*run.metrics, LoggedMetric("latency_p90_high", 2.0 + place)))
        for place, run in enumerate(runs)
    ]
    rows = {row.name: row for row in compare(both).metrics}
    ratio = rows["latency_p90_high"].ratios[1]
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (1.5, None, None)
    assert rows["latency_p90_high"].conclusion(1) == "a bound, not judged"
    assert rows["latency_median"].conclusion(1) == "slower"


def test_what_differs_comes_first(tmp_path: Path) -> None:
    """Model, precision, runtime, device, threads, power and batch, in words."""
    content = document([])
    other = profile_run(
        tmp_path, "b", samples(500), model="b" * 64,
        rows=[layer("q", 0.1, "conv", op_type="QLinearConv")],
        runtime={"name": "onnxruntime", "version": "1.20.0"},
        settings={**content["settings"], "threads": 4},
        data={"source": "made up", "inputs": {"x": {"shape": [8, 3, 8, 8]}}},
        environment={"board": {"system": "Linux-5.10", "cpu": "B CPU"}, "before": {"governor": "powersave"}},
    )  # fmt: skip
    first = profile_run(tmp_path, "a", samples(1000), rows=[layer("c", 0.2, "conv")])
    differing = {row.name: row.values for row in compare([first, other]).differences}
    assert differing["precision"] == ("float", "int8")
    assert differing["runtime"] == ("onnxruntime 1.31.1", "onnxruntime 1.20.0")
    assert differing["threads"] == ("1", "4")
    assert differing["power"] == ("performance, at most 2400 MHz", "powersave")
    assert differing["batch"] == ("x 1×3×8×8", "x 8×3×8×8")
    assert set(differing) == {"model", "precision", "runtime", "device", "system", "threads", "power", "batch"}


def test_one_machine_by_two_names_is_no_difference(tmp_path: Path) -> None:
    """What one command calls ``here`` and another does not name."""
    runs = [
        dataclasses.replace(profile_run(tmp_path, name, samples(1000)), device=device, provider="local")
        for name, device in (("a", "here"), ("b", "this machine"))
    ]
    assert "device" not in {row.name for row in compare(runs).differences}


def test_a_verdict_that_is_not_stable_is_a_caution(tmp_path: Path) -> None:
    """Before anybody believes a ratio."""
    runs = [profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1200), verdict="throttled")]
    assert any("throttled" in caution for caution in compare(runs).cautions)


def test_an_estimate_is_never_called_a_measurement(tmp_path: Path) -> None:
    """Nobody is told to measure it again: it was not measured before."""
    runs = [profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1200), verdict="estimated")]
    compared = compare(runs)
    assert [run.is_estimated for run in compared.runs] == [False, True]
    said = [text for text in compared.cautions if "run b" in text.lower()]
    assert len(said) == 1
    assert not any("measure in turns" in text for text in compared.cautions)
    assert said[0].startswith("The numbers of run b are estimated, not measured (as the test says): no ratio of them")


def test_failed_runs_and_missing_documents_are_said(tmp_path: Path) -> None:
    """What is there is compared all the same."""
    good, gone = profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1000))
    (tmp_path / "b.json").unlink()
    failed = Run("c", "shapes", "PROFILE", "profile", RunStatus.FAILED, 0, 1, error="ProfileError: no")
    comparison = compare([good, gone, failed])
    assert [run.status for run in comparison.runs] == ["FINISHED", "FINISHED", "FAILED"]
    assert any("cannot be read" in caution for caution in comparison.cautions)
    assert any("ProfileError: no" in caution for caution in comparison.cautions)
    latency = next(row for row in comparison.metrics if row.name == "latency_median")
    assert latency.ratios[2] is None
    assert latency.conclusion(1) == "the same"
    assert latency.conclusion(2) == "not known"


@pytest.mark.parametrize("content", ["", "[1]", '{"samples_us": "no", "layers": {"rows": [1, {}]}}', "nan"])
def test_a_damaged_document_is_no_crash(tmp_path: Path, content: str) -> None:
    """The run's own metrics remain."""
    runs = [profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1100))]
    (tmp_path / "b.json").write_text(content)
    row = compare(runs).metrics[0]
    assert row.ratios[1] is not None
    assert row.ratios[1].low is None


def test_runs_that_are_no_profiles_differ_in_their_parameters() -> None:
    """And their metrics have ratios without an interval."""
    runs = [
        Run(
            name, "shapes", "COMPILE", name, RunStatus.FINISHED, 0, 1,
            params={
                "level": LoggedParam("level", level),
                "same": LoggedParam("same", [1]),
                "precision": LoggedParam("precision", f"int{level}"),  # stands among the facts, once
            },
            metrics=(LoggedMetric("model_size_mb", size), LoggedMetric("odd", float("nan")), LoggedMetric("zero", 0.0)),
        )
        for name, level, size in (("a", 1, 2.0), ("b", 2, 3.0))
    ]  # fmt: skip
    comparison = compare(runs)
    assert [(row.name, row.values) for row in comparison.params] == [("level", ("1", "2"))]
    size, odd, zero = comparison.metrics
    assert size.ratios[1] is not None
    assert size.ratios[1].value == 1.5
    assert odd.values == (None, None)
    assert zero.ratios == (None, None)
    assert comparison.cautions == ()


def test_it_is_plain_data(tmp_path: Path) -> None:
    """For the page and for programs: frozen, and JSON."""
    comparison = compare([profile_run(tmp_path, "a", samples(1000)), profile_run(tmp_path, "b", samples(1000))])
    plain = json.loads(json.dumps(comparison.as_dict()))
    assert plain == comparison.as_dict()
    assert plain["metrics"][0]["conclusions"] == ["not known", "no difference shown"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        comparison.runs = ()  # type: ignore[misc]


def test_one_run_is_no_comparison(tmp_path: Path) -> None:
    """Nor is one run twice."""
    run = profile_run(tmp_path, "a", samples(1000))
    with pytest.raises(ConfigError, match="two runs or more"):
        compare([run])
    with pytest.raises(ConfigError, match="given twice"):
        compare([run, run])
