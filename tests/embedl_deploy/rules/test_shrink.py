"""Small graphs of what changed: versions are asked about smaller graphs than those that showed a change."""

from collections.abc import Iterator, Sequence

import onnx

from embedl_deploy.dialect import Rule, RuleTable
from embedl_deploy.dialect._facts import facts_of
from embedl_deploy.dialect._model import read
from embedl_deploy.rules import Case, Journal, Placement
from embedl_deploy.rules._cases import CENTER
from embedl_deploy.rules._diff import MOST_NODES, changes_in, observed_in
from embedl_deploy.rules._shrink import shrink

LARGE = "Sigmoid; before=Transpose; read by=more; output read by=more"


class Runtime:
    """A runtime that has an integer kernel for Sigmoid from version 2 on, or only where its input is moved."""

    runtime = "made-up"

    def __init__(self, version: str, *, moved: bool = False) -> None:
        self.version, self.moved = version, moved

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        for model in models:
            center = next(node for node in facts_of(read(model)) if node.name == CENTER)
            is_new = self.version == "2" and (not self.moved or center.facts["readers of input 0"] == "more")
            yield {CENTER: "integer QSigmoid" if is_new else "float"}


def _found(*, moved: bool) -> list[int]:
    """Return the nodes of each change's graph after only a large graph was known."""
    probes = [Runtime("1"), Runtime("2", moved=moved)]
    journals = {probe.version: Journal() for probe in probes}
    rule = Rule("Sigmoid", (), "float", LARGE, 1)
    tables = {each.version: RuleTable("made-up", each.version, "x86_64", 20, (rule,), 1, {}) for each in probes}
    assert shrink(probes, journals, tables) > 0
    assert Case.parse(LARGE) in journals["1"].answers
    return [each.nodes for each in changes_in(observed_in("made-up", journals), "1", "2")]


def test_a_change_is_shown_by_a_smaller_graph() -> None:
    """Of a graph with many settings the plain one shows the same change."""
    assert max(_found(moved=False)) <= MOST_NODES


def test_what_a_change_depends_on_stays_in_its_graph() -> None:
    """The setting without which nothing changed is kept, the others go."""
    assert min(_found(moved=True)) <= MOST_NODES
