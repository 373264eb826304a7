"""What changed between two versions: from answers, with the smallest graph, as text, page and files."""

import itertools
import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from embedl_deploy.cli.main import cli
from embedl_deploy.dialect import known_versions
from embedl_deploy.dialect._tables import Condition, words
from embedl_deploy.errors import DialectError
from embedl_deploy.rules import Case, DialectDiff, Journal, OnnxRuntimeProbe, diff, example_graph
from embedl_deploy.rules._cases import CENTER, plain_cases
from embedl_deploy.rules._diff import observed_in

MOST_NODES = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Journals of two versions, of which the second has an integer kernel for Tanh between uint8."""
    for version in ("1.0.0", "1.1.0"):
        journal = Journal(tmp_path / f"made-up-{version}.jsonl")
        for case in plain_cases("Tanh"):
            new = version == "1.1.0" and case.value("input") == case.value("output") == "uint8"
            journal.add(case, {CENTER: "integer QTanh" if new else "float"})
        journal.add(Case("Sigmoid"), {CENTER: "float"})
    return tmp_path


def test_a_change_has_its_conditions_and_its_smallest_graph(folder: Path) -> None:
    """The plain graph shows it, and what did not change is no change."""
    found = diff("made-up", "1.0", "1.1", folder=folder)
    assert {(each.operator, each.before, each.after) for each in found.changes} == {("Tanh", "float", "integer QTanh")}
    smallest = min(found.changes, key=lambda each: each.nodes)
    assert smallest.example == "Tanh"
    assert smallest.nodes <= 3
    assert "1.0.0 to 1.1.0" in str(found).splitlines()[-1]
    back = diff("made-up", "1.1", "1.0", folder=folder)
    assert {each.after for each in back.changes} == {"float"}


def test_a_version_is_not_compared_with_itself(folder: Path) -> None:
    """Nor is a beginning of several versions taken for one of them; versions that are alike say so in one line."""
    with pytest.raises(DialectError, match=r"Both are made-up 1\.0\.0; known are '1\.0\.0', '1\.1\.0'"):
        diff("made-up", "1.0", "1.0.0", folder=folder)
    with pytest.raises(DialectError, match=r"made-up 1 may be '1\.0\.0', '1\.1\.0'; name one"):
        diff("made-up", "1", "1.0", folder=folder)
    assert "made the same of every graph" in str(DialectDiff("made-up", "1.0.0", "1.1.0", (), 0))


def test_the_example_is_a_graph_that_runs(folder: Path) -> None:
    """The smallest form is valid, takes and gives integers, and ONNX Runtime takes it."""
    model = example_graph(Case("Conv"))
    onnx.checker.check_model(model, full_check=True)
    assert [value.type.tensor_type.elem_type for value in model.graph.input] == [onnx.TensorProto.UINT8]
    assert len(model.graph.node) <= MOST_NODES
    with OnnxRuntimeProbe() as probe:
        assert next(iter(probe.ask([model])))[CENTER] == "integer QLinearConv"


def test_the_page_holds_every_change_and_no_markup_of_others(folder: Path) -> None:
    """Text from a journal is escaped, and the graph of each change is there."""
    found = diff("made-up", "1.0", "1.1", folder=folder)
    page = found.to_html()
    assert page.count("<article>") == len(found.changes)
    assert "Tanh(" in page
    assert "<script" not in DialectDiff("<script>", "1", "2", (), 0).to_html()


def test_a_change_that_only_a_large_graph_shows_is_listed(folder: Path) -> None:
    """One that a small graph shows too is only counted there; nothing that changed goes untold."""
    large = Case.parse("Tanh; read by=more; output=float and Q; after=Sigmoid; before=Transpose")
    assert len(example_graph(large).graph.node) > MOST_NODES
    for version, outcome in (("1.0.0", "float"), ("1.1.0", "refused")):
        Journal.open(folder / f"made-up-{version}.jsonl").add(large, {CENTER: outcome})
    found = diff("made-up", "1.0", "1.1", folder=folder)
    assert {each.after: each.nodes > MOST_NODES for each in found.changes} == {"integer QTanh": False, "refused": True}


def test_what_was_lost_comes_first() -> None:
    """That is why one asks; then what was gained, then what is refused or read in another opset."""
    found = diff("onnxruntime", "1.18", "1.31")
    kinds = [0 if each.is_loss else 1 if each.is_gain else 2 for each in found.changes]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}
    one = found.of("Conv")
    assert {each.operator for each in one.changes} == {"Conv"}
    assert one.changes == tuple(each for each in found.changes if each.operator == "Conv")
    with pytest.raises(DialectError, match=r"asked about no graph of .Conf.\. Did you mean .Conv."):
        found.of("Conf")


def test_unknown_versions_and_runtimes_are_told(folder: Path, tmp_path: Path) -> None:
    """With those that are known, and what observes another."""
    with pytest.raises(DialectError, match=r"9\.9 was not observed; known are '1\.0\.0', '1\.1\.0'.*learn"):
        diff("made-up", "9.9", "1.0", folder=folder)
    with pytest.raises(DialectError, match="No two versions of 'made-up' were observed; known are"):
        diff("made-up", "1.0", "1.1")
    with pytest.raises(DialectError, match="0 journals of nothing"):
        diff("nothing", "1", "2", folder=folder)


def test_observations_are_kept_small(folder: Path, tmp_path: Path) -> None:
    """Only graphs on which versions differ are written, one a line."""
    journals = {version: Journal.open(folder / f"made-up-{version}.jsonl") for version in ("1.0.0", "1.1.0")}
    observed = observed_in("made-up", journals)
    observed.save(tmp_path / "observed.json")
    data = json.loads((tmp_path / "observed.json").read_text())
    assert data["versions"] == ["1.0.0", "1.1.0"]
    assert "Sigmoid" not in data["cases"]
    assert len(data["cases"]) == len(observed.outcomes) > 0


def test_the_command_writes_page_and_graphs(folder: Path, tmp_path: Path) -> None:
    """Every change is a file that can be loaded."""
    argv = ["dialect", "diff", "made-up", "1.0", "1.1", "--folder", str(folder), "--html", str(tmp_path / "d.html")]
    done = CliRunner().invoke(cli, [*argv, "--graphs", str(tmp_path / "graphs")])
    assert done.exit_code == 0, done.output
    assert "integer QTanh" in done.output
    graphs = list((tmp_path / "graphs").glob("*-Tanh.onnx"))
    assert graphs
    for path in graphs:
        onnx.checker.check_model(onnx.load(path))
    assert (tmp_path / "d.html").read_text().startswith("<!doctype html>")


def test_every_change_that_ships_has_a_small_graph() -> None:
    """Between the oldest and the newest of the versions that were learned."""
    versions = known_versions("onnxruntime")
    found = diff("onnxruntime", versions[0], versions[-1])
    assert found.changes
    assert max(change.nodes for change in found.changes) <= MOST_NODES


@pytest.mark.slow
def test_every_change_between_neighbors_has_a_small_graph() -> None:
    versions = known_versions("onnxruntime")
    found = [diff("onnxruntime", *pair) for pair in itertools.pairwise(versions)]
    large = [change for each in found for change in each.changes if change.nodes > MOST_NODES]
    # No smaller graph shows these: a product with bias, Relu and rounding, in float from 1.19 on, has seven nodes.
    assert {(each.operator, each.before, each.after) for each in large} <= {
        ("Conv", "refused", "float"), ("MatMul", "refused", "integer QGemm"), ("LeakyRelu", "float", "refused"),
        ("MatMul", "integer QGemm", "float"),
    }  # fmt: skip


def test_conditions_read_as_a_sentence() -> None:
    """Each once, joined by "and"; a fact that is missing is not called a dash."""
    parts = (
        Condition("opset 22 or newer", "yes", False), Condition("moved to input 0", "-", False),
        Condition("after, output", "int8", True), Condition("after", "-", True), Condition("after", "-", True),
        Condition("input 2", "-", True),
    )  # fmt: skip
    assert words(parts) == (
        "opset older than 22 and something moved to input 0 and after's output is int8 and nothing after and no input 2"
    )
    assert words(()) == "always"
