"""Learning: from answers to rules, going on after a kill, and beginning with another version's rules."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import onnx
import pytest

from embedl_deploy.dialect import RuleTable, read_table
from embedl_deploy.dialect._facts import facts_of
from embedl_deploy.dialect._model import read
from embedl_deploy.errors import DialectError
from embedl_deploy.rules import Case, Journal, Learner, Placement, learn, open_probe
from embedl_deploy.rules._cases import CENTER, build, plain_cases, random_case, space_of
from embedl_deploy.rules._environment import python_with
from embedl_deploy.rules._tree import Sample, grow, outcome_by


class Runtime:
    """A runtime whose one rule is known: Sigmoid is an integer kernel between uint8, and from 2 on of int8 too."""

    runtime = "made-up"

    def __init__(self, version: str = "1", stop_after: int | None = None) -> None:
        self.version = version
        self.asked = 0
        self.stop_after = stop_after

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        for model in models:
            self.asked += 1
            if self.stop_after is not None and self.asked > self.stop_after:
                raise KeyboardInterrupt
            kinds = ("uint8",) if self.version == "1" else ("uint8", "int8")
            nodes = facts_of(read(model))
            placed = dict.fromkeys((node.name for node in nodes), "float")
            for facts in (node.facts for node in nodes if node.name == CENTER):
                if facts["operator"] == "Sigmoid" and facts["input 0"] in kinds and facts["output"] in kinds:
                    placed[CENTER] = "integer QSigmoid"
            yield placed


def test_the_rule_of_a_runtime_is_found() -> None:
    """A rule with two conditions is learned and holds on graphs that were not asked."""
    learner = Learner(Runtime())
    table, (lesson,) = learner.run(["Sigmoid"])
    assert lesson.is_settled
    draw = Random(99)  # noqa: S311 - nothing is kept secret by it
    fresh = [case for case in (random_case("Sigmoid", draw) for _ in range(150)) if learner._facts_of(case)]
    assert len(fresh) > 50
    wrong = [case for case in fresh if _predicted(table, case) != _answer(Runtime(), case)]
    assert not wrong
    integer = [rule for rule in table.rules if rule.operator == "Sigmoid" and rule.outcome.startswith("integer")]
    assert min(len(Case.parse(rule.example).settings) for rule in integer) == 0  # the plain graph shows it


def _answer(runtime: Runtime, case: Case) -> str:
    return next(runtime.ask([build(case)]))[CENTER]


def _predicted(table: RuleTable, case: Case) -> str:
    return table.placement(facts_of(read(build(case))))[CENTER]


def test_learning_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Nothing that was answered is asked again, not even when the last line was cut off."""
    path = tmp_path / "made-up-1.jsonl"
    with pytest.raises(KeyboardInterrupt):
        Learner(Runtime(stop_after=30), Journal.open(path)).run(["Sigmoid"])
    whole = Runtime()
    reference, _ = Learner(whole).run(["Sigmoid"])
    with path.open("a") as file:
        file.write('["Sigmoid; input=in')
    journal = Journal.open(path)
    assert (len(journal.answers), journal.damaged) == (30, 1)
    rest = Runtime()
    table, _ = Learner(rest, journal).run(["Sigmoid"])
    assert rest.asked == whole.asked - 30
    assert table.rules == reference.rules
    again = Journal.open(path)
    assert again.answers == journal.answers
    assert again.damaged == 1


@pytest.mark.slow
def test_a_second_version_asks_less_and_finds_the_change() -> None:
    """Rules of another version are checked by their graphs; an operator that changed is learned anew."""
    first = Journal()
    Learner(Runtime("1"), first).run(["Sigmoid", "Tanh"])
    same = Runtime("1")
    _, lessons = Learner(same, prior=first).run(["Sigmoid", "Tanh"])
    assert all(lesson.is_known for lesson in lessons)
    assert same.asked < len(first.answers)
    table, lessons = Learner(Runtime("2"), prior=first).run(["Sigmoid", "Tanh"])
    assert [lesson.is_known for lesson in lessons] == [False, True]
    signed = Case.parse("Sigmoid; input=int8; output=int8")
    assert _predicted(table, signed) == "integer QSigmoid"


@pytest.mark.parametrize(
    "line",
    [
        "no JSON", "[]", "[1, 2]", '["Conv", {}]', '["Conv", {"center": "<script>"}]', '["Conv", {"center": 3}]',
        '["Nothing", {"center": "float"}]', '["Conv; input=int99", {"center": "float"}]', "[" * 10_000,
        json.dumps(["Conv", {"center": "float", **{str(n): "float" for n in range(100)}}]),
    ],
)  # fmt: skip
def test_a_journal_of_a_stranger_is_data(tmp_path: Path, line: str) -> None:
    """A line that is no answer is counted and asked again."""
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{line}\n["Conv", {{"center": "float"}}]\n')
    journal = Journal.open(path)
    assert journal.answers == {Case("Conv"): {"center": "float"}}
    assert journal.damaged == 1


def test_a_journal_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder in the journal's place is told with its path."""
    with pytest.raises(DialectError, match="cannot be read"):
        Journal.open(tmp_path)


def test_a_damaged_table_is_told(tmp_path: Path) -> None:
    """A file that is no table, or of another format, is one error with the next step."""
    path = tmp_path / "table.json"
    for text, words in (("{", "cannot be read"), ("[]", "no rule table"), ('{"format": 99}', "format 99")):
        path.write_text(text)
        with pytest.raises(DialectError, match=words):
            read_table(path)
    table, _ = Learner(Runtime()).run(["Sigmoid"])
    table.save(path)
    assert read_table(path) == table


def test_cases_are_read_as_they_are_written() -> None:
    """The text of a case is the case; plain settings are left out."""
    for operator in ("Conv", "MatMul", "Resize"):
        for case in plain_cases(operator):
            assert Case.parse(str(case)) == case
    assert str(Case.of("Conv", {"input": "uint8", "after": "Relu"})) == "Conv; after=Relu"
    with pytest.raises(DialectError, match="no graphs of 'Nothing'"):
        space_of("Nothing")


def test_a_tree_holds_every_sample() -> None:
    """Samples without contradiction are all predicted, and a contradiction is told."""
    samples = [Sample({"a": a, "b": b}, str(a == b), f"{a}{b}", 1) for a in "xyz" for b in "xyz"]
    leaves = grow(samples)
    assert all(outcome_by(leaves, sample.facts) == sample.outcome for sample in samples)
    assert not any(leaf.mixed for leaf in leaves)
    assert grow([Sample({"a": "x"}, "one", "", 1), Sample({"a": "x"}, "two", "", 1)])[0].mixed
    assert grow([]) == []


def test_one_operator_of_the_installed_runtime(tmp_path: Path) -> None:
    """The real ONNX Runtime is learned into a table, and a second call asks it nothing."""
    (first,) = learn("onnxruntime", tmp_path, operators=["LeakyRelu"])
    assert first.table is not None
    assert first.table.newest_opset >= 20
    assert any(rule.outcome == "integer QLinearLeakyRelu" for rule in first.table.rules)
    before = (tmp_path / f"onnxruntime-{first.version}.jsonl").read_bytes()
    (second,) = learn("onnxruntime", tmp_path, operators=["LeakyRelu"])
    assert (tmp_path / f"onnxruntime-{first.version}.jsonl").read_bytes().startswith(before)
    assert second.path == tmp_path / f"onnxruntime-{first.version}.json"


def test_unknown_runtimes_and_versions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors list what is known; one version that fails does not stop the others."""
    with pytest.raises(DialectError, match=r"can ask 'nothing'; known are.*'onnxruntime'"):
        open_probe("nothing")
    with pytest.raises(DialectError, match="write it in whole"):
        python_with("onnxruntime", "1.18; rm")
    with pytest.raises(DialectError, match="--version is for 'onnxruntime'"):
        python_with("openvino", "2026.4.1")
    monkeypatch.setenv("EMBEDL_DEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EMBEDL_DEPLOY_OFFLINE", "1")
    (failed,) = learn("onnxruntime", tmp_path, versions=["1.18.1"])
    assert "EMBEDL_DEPLOY_OFFLINE forbids it" in failed.failed
    assert str(failed).startswith("onnxruntime 1.18.1: FAILED")
