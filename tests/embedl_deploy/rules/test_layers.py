"""Asking a runtime by its layers: many graphs in one file, and what it refuses is found and left out."""

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from embedl_deploy.dialect import check
from embedl_deploy.rules import Case, Journal, Learner
from embedl_deploy.rules._cases import CENTER, build, few_twin_cases, plain_with
from embedl_deploy.rules._layers import LayersProbe


@dataclass(frozen=True)
class _Row:
    op_type: str
    source_nodes: tuple[str, ...]
    integer: bool | None


class _Compiler:
    """Takes files of small graphs; refuses one kind with the graph's name, another without."""

    def __init__(self) -> None:
        self.files = 0

    def __call__(self, path: Path) -> list[_Row]:
        self.files += 1
        nodes = onnx.load(path).graph.node
        for node in nodes:
            if node.op_type == "Softmax":
                raise RuntimeError(f"{node.input[0]}: no such axis")
            if node.op_type == "Erf":
                raise RuntimeError("internal error")
        return [_Row(node.op_type, (node.name,), node.op_type != "Tanh") for node in nodes if node.op_type != "Neg"]


@pytest.fixture
def probe() -> LayersProbe:
    asked = LayersProbe("openvino", "1")
    asked._layers_of = _Compiler()
    return asked


def test_refused_graphs_are_found_in_a_file_of_many(probe: LayersProbe) -> None:
    """One that is named costs one more file, another some halves; all others get their answer."""
    names = [*["Sigmoid"] * 20, "Softmax", "Tanh", *["Sigmoid"] * 20, "Erf", *["Sigmoid"] * 20]
    answers = list(probe.ask([build(Case(name)) for name in names]))
    found = [answer[CENTER] for answer in answers]
    wanted = {"Softmax": "refused", "Erf": "refused", "Tanh": "float", "Sigmoid": "integer Sigmoid"}
    assert found == [wanted[name] for name in names]
    assert probe._layers_of.files < 20


def test_what_is_not_told_teaches_nothing(probe: LayersProbe) -> None:
    """Of a Neg nothing is told: there is no rule for it, and no rule says that it is untold."""
    table, lessons = Learner(probe, Journal()).run(["Sigmoid", "Neg"])
    assert "Sigmoid" in table.operators
    assert "Neg" not in table.operators
    assert not [rule for rule in table.rules if rule.outcome == "untold"]
    assert [lesson.tested > 0 for lesson in lessons] == [True, False]


def test_graphs_between_kernels_are_asked_where_it_matters() -> None:
    """A runtime that looks behind the rounding is asked about graphs between convolutions, another is not."""
    between = [case for case in few_twin_cases("Add", beyond=True) if case.value("before") == "Conv"]
    assert any(case.value("goes to") == "Conv" and case.value("second before") == "Conv" for case in between)
    alone = few_twin_cases("Add", beyond=False)
    assert len(alone) < len(between)


def test_a_compiler_that_cannot_be_looked_into_teaches_what_it_takes() -> None:
    """TensorRT-RTX's builder, really asked: what it takes is built, what it refuses is named, as `check` has it."""
    cases = [
        plain_with("Conv", "int8"), Case("Conv"), plain_with("Add", "int8"), plain_with("MatMul", "int8"),
        plain_with("Gemm", "int8").with_setting("bias", "int32"), plain_with("Conv", "uint16"),
        plain_with("Softmax", "int8"), plain_with("Conv", "int8").with_setting("weight", "uint8"),
    ]  # fmt: skip
    models = [build(case) for case in cases]
    with LayersProbe("tensorrt", "1") as asked:
        found = [answer[CENTER] for answer in asked.ask(models)]
    by_hand = ["refused" if any(row.reason.startswith("refused") for row in check(each, "tensorrt").rows) else "built"
               for each in models]  # fmt: skip
    assert found == by_hand
    assert set(found) == {"built", "refused"}


def test_what_is_built_is_learned() -> None:
    """A rule says which type of activations is refused."""

    def layers_of(path: Path) -> None:
        for value in onnx.load(path).graph.initializer:
            if value.data_type == onnx.TensorProto.UINT8:
                raise RuntimeError(f"{value.name}: no uint8")

    asked = LayersProbe("tensorrt", "1")
    asked._layers_of = layers_of
    table, _ = Learner(asked, Journal()).run(["Sigmoid"])
    refused, _, _, _, sigmoid = table.rules
    assert (refused.outcome, str(refused)) == ("refused", "every operator: refused (input 0 is uint8)")
    assert (sigmoid.operator, sigmoid.outcome) == ("Sigmoid", "built")
