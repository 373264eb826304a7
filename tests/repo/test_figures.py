"""Tables with figures say what the result files say, and results are compared as they state."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import comparing
import environments
import figures
import pytest
import report
import tables
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]

LISTED = tomllib.loads((ROOT / "benchmarks/benchmarks.toml").read_text())
ENVELOPE = {
    "format", "name", "quick", "date", "seconds", "command", "commit", "uncommitted_changes", "machine", "versions",
    "peers", "figures", "data",
}  # fmt: skip
times = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize("page", tables.pages(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_is_stale(page: Path) -> None:
    """What stands between the markers is what the results give."""
    text = page.read_text()
    assert tables.fill(text, tables.read_results()) == text, f"{page.name} is stale: run ./bench --tables"


def test_the_readme_has_its_tables() -> None:
    """The page that people read first is among those that are checked."""
    assert ROOT / "README.md" in tables.pages(ROOT)


@pytest.mark.parametrize("name", LISTED)
def test_every_benchmark_has_a_script_and_a_full_result(name: str) -> None:
    """One shape for all, none of them quick, and every figure states what a repeat may give."""
    assert (ROOT / "benchmarks" / LISTED[name]["script"]).exists()
    assert set(LISTED[name].get("opponents", ())) <= set(environments.ALL)
    result = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    assert (set(result), result["name"], result["quick"]) == (ENVELOPE, name, False)
    for figure in figures.read(result["figures"]).values():
        assert figure.low <= figure.value <= figure.high, figure.what
        assert figure.spread, figure.what


@pytest.mark.parametrize("name", [name for name, facts in LISTED.items() if facts["script"].startswith("hub/")])
def test_figures_are_what_the_script_makes_of_the_numbers(name: str) -> None:
    """A change of how a figure is made reaches the results that are kept."""
    spec = importlib.util.spec_from_file_location(f"bench_of_{name}", ROOT / "benchmarks" / LISTED[name]["script"])
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    result = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    assert [figure.as_dict() for figure in script.figures(result["data"])] == result["figures"]


def test_every_script_is_listed() -> None:
    """A benchmark that ./bench does not know is measured by nobody."""
    scripts = {path.relative_to(ROOT / "benchmarks").as_posix() for path in ROOT.glob("benchmarks/*/bench_*.py")}
    assert scripts <= {facts["script"] for facts in LISTED.values()}


def test_an_unknown_table_names_those_there_are() -> None:
    """A slip in a marker is answered with the names."""
    with pytest.raises(KeyError, match=r"'stroe'; there are: .*store-all"):
        tables.fill("<!-- figures:stroe -->\n<!-- /figures -->", tables.read_results())


@given(times, st.floats(0.1, 10))
def test_a_figure_lies_in_its_spread(theirs: list[float], factor: float) -> None:
    """The middle is between the ends, and a side that is some times the other has that ratio."""
    one = figures.against("what", "ms", [factor * value for value in theirs], "them", theirs)
    assert one.ratio == pytest.approx(factor)
    assert one.low <= one.value <= one.high
    assert figures.read([one.as_dict()]) == {"what": one}


@given(times)
def test_the_same_result_is_within(values: list[float]) -> None:
    """A figure agrees with itself, and not with one far outside both spreads."""
    one = figures.alone("what", "ms", values)
    assert comparing.verdict(one, one) == "within"
    far = replace(one, ours=one.high * 3, low=one.high * 2, high=one.high * 4)
    assert comparing.verdict(one, far).startswith("outside")


def test_what_must_repeat_may_not_move() -> None:
    """Lost records are lost records."""
    none, some = figures.declared("lost", "", 0, 0), figures.declared("lost", "", 1, 0)
    assert comparing.verdict(none, none) == "within"
    assert comparing.verdict(none, some) == "outside"
    assert figures.read([none.as_dict()])["lost"].ours == 0


def _result(**facts: Any) -> dict[str, Any]:
    made = {"figures": [figures.alone("one", "ms", [1.0, 2.0]).as_dict()], "data": {}}
    return made | facts


def test_other_weights_are_not_compared() -> None:
    """Accuracy of another training is another figure."""
    old, new = (_result(data={"weights": {"net": digest}}) for digest in ("a", "b"))
    assert [row.verdict for row in comparing.compared(old, new)] == ["not comparable: other weights"]


def test_a_missing_opponent_says_why() -> None:
    """It has a row, without a ratio, and the comparison gives the reason."""
    there = figures.against("run", "ms", [1.0], "MLflow", [2.0])
    gone = figures.against("run", "ms", [1.0], "MLflow", None, why="missing: no such version")
    assert gone.failed == "no such version"
    assert comparing.verdict(there, gone) == "not comparable: no such version"
    result = {"name": "x", "quick": False, "date": "2026-01-01", "machine": {}, "versions": {}, "data": {}}
    text = tables.render("x", {"x": {**result, "peers": {}, "figures": [gone.as_dict()]}})
    assert "MLflow: none, no such version" in text


def test_a_table_names_what_was_required_and_missed() -> None:
    """A row alone does not show it; what holds is not named."""
    made = [figures.declared(what, "s", 3.0, 0.1).at_most(limit) for what, limit in (("slow", 2.0), ("fine", 4.0))]
    result = {"name": "x", "quick": False, "date": "2026-01-01", "machine": {}, "versions": {}, "data": {}, "peers": {}}
    text = tables.render("x", {"x": {**result, "figures": [figure.as_dict() for figure in made]}})
    assert "\nRequired and missed: slow (at most 2).\n" in text


def test_an_opponent_that_does_not_install_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is pip's own last word."""
    monkeypatch.setenv("EDGEPROOF_BENCH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    python, said = environments.find(environments.Environment("nobody", ("edgeproof-no-such-thing==1",)))
    assert python is None
    assert said.startswith("missing: nobody: ERROR: No matching distribution")


def _session(path: Path, *words: str) -> report.Session:
    options = report.parser("question")
    options.add_argument("--rounds", type=int, default=9)
    arguments: argparse.Namespace = options.parse_args(["--json", str(path), *words])
    return report.Session("x", options, arguments)


def test_a_quick_result_never_takes_the_place_of_a_full_one(tmp_path: Path) -> None:
    """It is marked, and refused before anything is measured."""
    path = tmp_path / "x.json"
    _session(path, "--rounds", "2").finish({}, [])
    assert json.loads(path.read_text())["quick"] is True
    _session(path).finish({}, [])
    written = json.loads(path.read_text())
    assert (set(written), written["quick"]) == (ENVELOPE, False)
    with pytest.raises(SystemExit, match="holds a full result"):
        _session(path, "--rounds", "2")


def test_the_list_and_an_unknown_name() -> None:
    """./bench --list names everything; a wrong name is answered with the right ones."""
    argv = [sys.executable, str(ROOT / "tools/bench.py")]
    listed = subprocess.run([*argv, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(f"| {name} " in listed for name in LISTED)
    wrong = subprocess.run([*argv, "stroe"], capture_output=True, text=True, check=False, timeout=60)
    assert wrong.returncode == 1
    assert "No such benchmark: stroe. There are: dispatch, cli, store" in wrong.stderr


def test_a_benchmark_runs_through(tmp_path: Path) -> None:
    """One of ours, as short as it goes, into the one shape."""
    path = tmp_path / "dispatch.json"
    script = ROOT / "benchmarks/hub/bench_dispatch.py"
    subprocess.run(
        [sys.executable, str(script), "--rounds", "3", "--json", str(path)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    result = json.loads(path.read_text())
    assert (set(result), result["quick"]) == (ENVELOPE, True)
    assert result["machine"]["cores"] >= 1
    assert "a component that does nothing, not recorded" in figures.read(result["figures"])
