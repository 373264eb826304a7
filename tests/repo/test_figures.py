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

from embedl_kernels import FAMILIES

ROOT = Path(__file__).resolve().parents[2]

LISTED = tomllib.loads((ROOT / "benchmarks/benchmarks.toml").read_text())
KEPT = {f"{family}/{name}": result for name, kept in report.read_results().items() for family, result in kept.items()}
ENVELOPE = {
    "format", "name", "quick", "date", "seconds", "command", "commit", "uncommitted_changes", "machine", "versions",
    "peers", "figures", "data",
}  # fmt: skip


def _loaded(name: str, path: str) -> Any:
    """Return a script of this tree as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    return script


bench = _loaded("bench_tool", "tools/bench.py")
times = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize("page", tables.pages(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_is_stale(page: Path) -> None:
    """What stands between the markers is what the results give."""
    text = page.read_text()
    assert tables.fill(text, report.read_results()) == text, f"{page.name} is stale: run ./bench --tables"


def test_the_readme_has_its_tables() -> None:
    """The page that people read first is among those that are checked."""
    assert ROOT / "README.md" in tables.pages(ROOT)


@pytest.mark.parametrize("name", LISTED)
def test_every_benchmark_has_a_script_and_a_result(name: str) -> None:
    """What is listed can be run, and was."""
    assert (ROOT / "benchmarks" / LISTED[name]["script"]).exists()
    assert set(LISTED[name].get("opponents", ())) <= set(environments.ALL)
    assert any(kept.endswith(f"/{name}") for kept in KEPT)


@pytest.mark.parametrize("kept", KEPT)
def test_every_result_is_a_full_one_of_its_family(kept: str) -> None:
    """One shape for all, none of them quick, and every figure states what a repeat may give."""
    result, (family, name) = KEPT[kept], kept.split("/")
    assert (set(result), result["name"], result["quick"]) == (ENVELOPE, name, False)
    assert report.family_of(result) == family
    assert (family in {each.name for each in FAMILIES}) is not LISTED[name].get("gpu", False)
    for figure in figures.read(result["figures"]).values():
        assert figure.low <= figure.value <= figure.high, figure.what
        assert figure.spread, figure.what


@pytest.mark.parametrize("kept", [kept for kept in KEPT if LISTED[kept.split("/")[1]]["script"].startswith("hub/")])
def test_figures_are_what_the_script_makes_of_the_numbers(kept: str) -> None:
    """A change of how a figure is made reaches the results that are kept."""
    name = kept.split("/")[1]
    script = _loaded(f"bench_of_{name}", f"benchmarks/{LISTED[name]['script']}")
    result = KEPT[kept]
    assert [figure.as_dict() for figure in script.figures(result["data"])] == result["figures"]


def test_every_script_is_listed() -> None:
    """A benchmark that ./bench does not know is measured by nobody."""
    scripts = {path.relative_to(ROOT / "benchmarks").as_posix() for path in ROOT.glob("benchmarks/*/bench_*.py")}
    assert scripts <= {facts["script"] for facts in LISTED.values()}


def test_an_unknown_table_names_those_there_are() -> None:
    """A slip in a marker is answered with the names."""
    with pytest.raises(KeyError, match=r"'stroe'; there are: .*store-all"):
        tables.fill("<!-- figures:stroe -->\n<!-- /figures -->", report.read_results())


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


def _measured(family: str, *made: figures.Figure, **machine: Any) -> dict[str, Any]:
    """A whole result of a family."""
    return {
        "name": "x", "quick": False, "date": "2026-01-01T00:00:00+00:00", "commit": None, "versions": {}, "data": {},
        "peers": {}, "machine": {"family": family, "cores": 2, "cpu": "a Xeon", **machine},
        "figures": [figure.as_dict() for figure in made],
    }  # fmt: skip


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
    text = tables.render("x", {"x": {"x86-vnni": _measured("x86-vnni", gone)}})
    assert "MLflow: none, no such version" in text


def test_a_table_names_what_was_required_and_missed() -> None:
    """A row alone does not show it; what holds is not named."""
    made = [figures.declared(what, "s", 3.0, 0.1).at_most(limit) for what, limit in (("slow", 2.0), ("fine", 4.0))]
    text = tables.render("x", {"x": {"x86-vnni": _measured("x86-vnni", *made)}})
    assert "\nRequired and missed: slow (at most 2).\n" in text


def test_every_family_has_a_table_of_its_own() -> None:
    """In the product's order, GPUs last, each with the line it comes from; one alone needs no heading."""
    one = figures.alone("run", "ms", [1.0, 2.0])
    kept = {name: _measured(name, one) for name in ("nvidia-h200", "x86-avx2", "x86-vnni")}
    text = tables.render("x", {"x": kept})
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        "**x86-vnni**", "**x86-avx2**", "**nvidia-h200**",
    ]  # fmt: skip
    assert text.count("| run | 1.50 ms |") == 3
    assert "`./bench x`: 2026-01-01, 2 cores of a Xeon (x86-avx2)." in text
    assert "**" not in tables.render("x", {"x": {"x86-vnni": kept["x86-vnni"]}})


def test_the_table_of_families_names_the_kernels_of_its_machine() -> None:
    """On a processor without VNNI nothing is called "with VNNI"."""
    ran = {"speed_up": 2.0, "sqnr_db": 30.0}
    nets = {"resnet50": {"simulated": {"sqnr_db": 30.0}, "portable": {"families": {"host": ran}}}}
    result = _measured("x86-avx2") | {"data": {"families": {"host": 0}, "nets": nets}}
    text = tables.render("families", {"families": {"x86-avx2": result}})
    assert "| ResNet-50 | without VNNI | 30.0 dB | **2.00×, 30.0 dB** |" in text
    assert "with VNNI" not in text


@pytest.mark.parametrize(("load", "said"), [(0.5, "load 0.5"), (2.0, "load 2"), (9.01, "load 9.01: busy machine")])
def test_a_busy_machine_is_said(load: float, said: str) -> None:
    """More than one process a core is told below the table."""
    result = _measured("x86-vnni", load_before=load)
    assert report.load_of(result["machine"]) == said
    assert f"(x86-vnni), {said}." in tables.render("x", {"x": {"x86-vnni": result}})
    assert report.load_of({}) == ""


@pytest.mark.slow
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


def test_a_result_never_takes_the_place_of_another_familys(tmp_path: Path) -> None:
    """It is refused before anything is measured."""
    path = tmp_path / "x.json"
    _session(path).finish({}, [])
    written = json.loads(path.read_text())
    assert report.family_of(written) == report.family_here()
    written["machine"]["family"] = "arm-neon"
    path.write_text(json.dumps(written))
    with pytest.raises(SystemExit, match="holds a result of arm-neon, and this is "):
        _session(path)


def _kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str) -> None:
    """Results of our own, on a machine of a family."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "family_here", lambda *, gpu=False: "nvidia-h200" if gpu else family)
    path = report.path_of("store", "x86-vnni", tmp_path)
    path.parent.mkdir()
    path.write_text(json.dumps(_measured("x86-vnni") | {"name": "store"}))


def test_what_is_missing_is_missing_of_this_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A result of another family, or one that is older than asked for, is measured again."""
    benches = bench.chosen(["store", "query"], gpu=False)
    _kept(monkeypatch, tmp_path, "x86-vnni")
    assert [each.name for each in bench.missing(benches, None)] == ["query"]
    assert [each.name for each in bench.missing(benches, bench.moment("2026-01-01"))] == ["query"]
    assert [each.name for each in bench.missing(benches, bench.moment("2026-01-02"))] == ["store", "query"]
    monkeypatch.setattr(bench, "family_here", lambda *, gpu=False: "x86-avx2")
    assert [each.name for each in bench.missing(benches, None)] == ["store", "query"]


@pytest.mark.parametrize("name", LISTED)
def test_how_long_a_benchmark_takes_is_known(name: str) -> None:
    """Its results say so, or the list does while none can."""
    assert bench.quoted_list()[name].minutes > 0


@pytest.mark.parametrize(
    ("seconds", "options", "minutes"),
    [(90.0, "", 1.5), (None, "", None), (0.0, "--folder kept ", None), (90.0, "--only itself ", None)],
)
def test_a_result_made_of_parts_does_not_say_how_long_it_takes(
    seconds: float | None, options: str, minutes: float | None
) -> None:
    """What lay in a folder already, or was left out, was not measured in that time."""
    result = {"seconds": seconds, "command": f"python benchmarks/hub/bench_x.py {options}--json x.json"}
    assert bench.minutes_of(result) == minutes


def test_a_time_is_a_date_or_a_commit() -> None:
    """Anything else is refused with what would do."""
    assert bench.moment("2026-11-18").isoformat() == "2026-11-18T00:00:00+00:00"
    with pytest.raises(argparse.ArgumentTypeError, match=r"'tomorrow' is neither a date \(2026-11-18\) nor a commit"):
        bench.moment("tomorrow")


def test_a_family_is_compared_with_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a committed result of it that is said, and no other family's is taken."""
    path = report.path_of("store", "arm-neon", tmp_path)
    path.parent.mkdir()
    path.write_text(json.dumps(_measured("arm-neon") | {"name": "store"}))
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    assert bench.compare(bench.lying(bench.chosen(["store", "query"], gpu=False), quick=False)) == 0
    said = capsys.readouterr().err
    assert "store: nothing to compare with: no committed result of arm-neon; there is one of " in said
    assert "query: nothing to compare: no result lies here" in said


def test_the_list_and_an_unknown_name() -> None:
    """./bench --list names everything; a wrong name is answered with the right ones."""
    argv = [sys.executable, str(ROOT / "tools/bench.py")]
    listed = subprocess.run([*argv, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(f"| {name} " in listed for name in LISTED)
    assert "x86-vnni 20" in listed
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
