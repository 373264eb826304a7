"""A runtime that an installed package drives is asked what it made of a file."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.qdq import tensorrt_residual

from embedl_deploy.dialect import OPENVINO, check, lower

# Says of a file's operators what it is told to: `RAN` is integer or not by node.
RUNTIME = """
from dataclasses import dataclass

import onnx


@dataclass(frozen=True)
class Layer:
    op_type: str
    source_nodes: tuple[str, ...]
    integer: bool | None


def layers_of(path):
    names = [node.name for node in onnx.load(path).graph.node if "Linear" not in node.op_type]
    integer, in_float = Layer("kernel_i8", tuple(names[:2]), True), Layer("kernel_f32", (names[2],), False)
    moves = Layer("pad", tuple(names[:3]), None)
    return [moves, integer, in_float, Layer("copy", (), None)]


def half(path):
    names = [node.name for node in onnx.load(path).graph.node if "Linear" not in node.op_type]
    return [Layer("pad", (names[0],), None), Layer("kernel_i8", (names[0],), True), Layer("rest", (names[0],), False)]


def refuses(path):
    raise RuntimeError(f"operator Conv is not known\\nstack ... {path}")


def is_missing(path):
    raise ModuleNotFoundError("No module named 'ownruntime'")
"""
ASKED = replace(OPENVINO, name="asked", runtime="ownruntime")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that installs a package, as pip would, whose function of this name asks the runtime."""

    def write(function: str) -> None:
        (tmp_path / "own_asking.py").write_text(RUNTIME)
        info = tmp_path / "own-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[embedl_deploy.runtimes]\nownruntime = own_asking:{function}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    monkeypatch.delitem(sys.modules, "own_asking", raising=False)


def test_what_ran_is_held_against_the_prediction(install: Callable[[str], None]) -> None:
    """An operator that ran in float against the prediction is a disagreement; what is not there by name is counted."""
    install("layers_of")
    contract = check(lower(tensorrt_residual(), "openvino"), ASKED)
    rows = {row.node: row for row in contract.rows}
    first = next(row for row in contract.rows if row.found)
    assert (first.found, first.in_integers, first.state, first.agrees) == ("kernel_i8", True, "integer", True)
    wrong = [row for row in contract.rows if row.found == "kernel_f32"]
    assert [row.agrees for row in wrong] == [row.state != "integer" for row in wrong]
    assert contract.disagreements == tuple(row for row in wrong if row.state == "integer")
    assert "Contradicted by the layers that ownruntime ran:" in contract.confirmed
    assert "weighted ones it tells nothing" in contract.confirmed
    assert contract.coverage == (sum(row.is_integer for row in rows.values() if row.operator in {"Conv", "Gemm"}), 3)
    assert all(not row.found for row in rows.values() if row.state == "taken")


def test_an_operator_of_which_a_part_ran_in_float_is_float(install: Callable[[str], None]) -> None:
    """What moved data for it says nothing, and neither the count nor the demand goes by the prediction any more."""
    install("half")
    contract = check(lower(tensorrt_residual(), "openvino"), ASKED)
    (wrong,) = contract.disagreements
    assert (wrong.operator, wrong.state, wrong.is_integer) == ("Conv", "integer", False)
    assert contract.coverage == (2, 3)
    assert contract.failures("float") == (wrong,)
    assert "PREDICTION WRONG: the runtime chose rest, in float." in str(contract)


def test_what_the_runtime_says_of_a_file_it_refuses_is_told(install: Callable[[str], None]) -> None:
    """Its first line, as the reason."""
    install("refuses")
    contract = check(lower(tensorrt_residual(), "openvino"), ASKED)
    assert contract.refused == "operator Conv is not known"
    assert "REFUSED: operator Conv is not known" in str(contract)


def test_a_runtime_that_is_not_there_leaves_the_prediction(install: Callable[[str], None]) -> None:
    """Not installed, or installed without its packages: said, and no refusal."""
    model = lower(tensorrt_residual(), "openvino")
    alone = check(model, replace(ASKED, runtime="nobody"))
    assert alone.confirmed.startswith("Predicted from rules; nobody was not asked: no installed package can")
    assert not alone.refused
    install("is_missing")
    missing = check(model, ASKED)
    assert missing.confirmed == "Predicted from rules; ownruntime was not asked: No module named 'ownruntime'."
    assert not missing.refused
    assert all(row.in_integers is None for row in missing.rows)
