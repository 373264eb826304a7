"""Asking ONNX Runtime: known answers, and what becomes of graphs and interpreters that do not answer."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import helper

from embedl_deploy.errors import DialectError
from embedl_deploy.rules import Case, OnnxRuntimeProbe
from embedl_deploy.rules._cases import CENTER, build
from embedl_deploy.rules._probe import placement_by


@pytest.fixture(scope="module")
def probe() -> Iterator[OnnxRuntimeProbe]:
    with OnnxRuntimeProbe() as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Conv", "integer QLinearConv"),
        ("Conv; output=model", "float"),
        ("Conv; input=float", "float"),
        ("Gemm; output=float", "integer QGemm"),
        ("MatMul", "integer QLinearMatMul"),
        ("MatMul; output=float", "integer MatMulIntegerToFloat"),
        ("Add; second=float", "float"),
        ("Tanh", "float"),
        ("Softmax", "integer QLinearSoftmax"),
    ],
)
def test_known_answers(probe: OnnxRuntimeProbe, text: str, outcome: str) -> None:
    """ONNX Runtime's own graph tells which kernel an operator got."""
    assert next(iter(probe.ask([build(Case.parse(text))])))[CENTER] == outcome


def test_a_product_that_took_its_bias_in_is_found_by_its_place() -> None:
    """ONNX Runtime before 1.19 calls it ``gemm``: in integers or in float, as its kernel is."""
    model = build(Case.parse("MatMul; bias=int32; output=model"))
    result = model.graph.output[0].name
    for kernel, outcome in (("QGemm", "integer QGemm"), ("Gemm", "float")):
        node = helper.make_node(kernel, ["x", "w"], [result], name="gemm", domain="com.microsoft")
        optimized = helper.make_model(helper.make_graph([node], "optimized", [], []))
        assert placement_by(model, optimized)[CENTER] == outcome


def test_a_relu_is_taken_in(probe: OnnxRuntimeProbe) -> None:
    """A Relu that the rounding does anyway is done by the convolution's kernel, another is not."""
    taken = build(Case.parse("Conv; output zero=minimum; after=Relu"))
    alone = build(Case.parse("Conv; after=Relu"))
    first, second = probe.ask([taken, alone])
    assert first["y/after"] == "taken"
    assert second["y/after"] == "float"


def test_what_is_refused_is_said_of_every_node(probe: OnnxRuntimeProbe) -> None:
    """A graph that does not load has no placement, and the next one is asked all the same."""
    broken = build(Case("Conv"))
    broken.opset_import[0].version = 999
    first, second = probe.ask([broken, build(Case("Conv"))])
    assert set(first.values()) == {"refused"}
    assert second[CENTER] == "integer QLinearConv"


def _worker(folder: Path, body: str) -> Path:
    file = folder / "worker.py"
    file.write_text(f"import sys, time, os\n{body}\n", encoding="utf-8")
    return file


_HELLO = 'print(\'{"version": "0.1"}\', flush=True)\n'


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("for line in sys.stdin: time.sleep(60)", "timed out"),
        ("for line in sys.stdin: os._exit(3)", "crashed"),
        ("for line in sys.stdin: print('no JSON', flush=True)", "crashed"),
        # More than a pipe holds: it must not stop the worker.
        ("for line in sys.stdin:\n  sys.stderr.write('x' * 1000000); print('[]', flush=True)", "crashed"),
    ],
)
def test_a_worker_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, outcome: str
) -> None:  # fmt: skip
    """A graph that hangs or crashes the runtime is an outcome, and the next one finds a new process."""
    monkeypatch.setattr("embedl_deploy.rules._probe._WORKER", _worker(tmp_path, _HELLO + body))
    with OnnxRuntimeProbe(answer_s=1.0) as asked:
        answers = list(asked.ask([build(Case("Conv"))] * 2))
    assert [each[CENTER] for each in answers] == [outcome] * 2


def test_an_interpreter_without_onnxruntime_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the interpreter, what it said, and what to give instead."""
    monkeypatch.setattr("embedl_deploy.rules._probe._WORKER", _worker(tmp_path, "import no_such_runtime"))
    with pytest.raises(DialectError, match=r"no_such_runtime.*--python") as raised:
        OnnxRuntimeProbe(sys.executable)
    assert sys.executable in str(raised.value)


def test_an_interpreter_that_says_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that hangs ends within its limit."""
    monkeypatch.setattr("embedl_deploy.rules._probe._WORKER", _worker(tmp_path, "time.sleep(60)"))
    with pytest.raises(DialectError, match=r"did not answer within 0\.5 s"):
        OnnxRuntimeProbe(start_s=0.5)
