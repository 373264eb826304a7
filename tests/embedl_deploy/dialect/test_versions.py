"""The version of the runtime that will read a file: what is judged by it, and what is written for it."""

import importlib.metadata

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.qdq import Graph, tensorrt_residual

from embedl_deploy.dialect import Rule, RuleTable, check, known_versions, lower
from embedl_deploy.dialect._model import opset_of, read
from embedl_deploy.dialect._versions import Version, find_version, fit_version
from embedl_deploy.errors import DialectError


def test_the_nearest_older_table_is_said() -> None:
    """A version without a table is judged by the next older one, in one line; older than all, by the oldest."""
    known = known_versions("onnxruntime")
    exact = find_version("onnxruntime", known[-1])
    assert exact is not None
    assert exact.note == ""
    newer = find_version("onnxruntime", "99.0")
    assert newer is not None
    assert newer.note == f"onnxruntime 99.0 was not learned; the rules are those of {known[-1]}, the next older."
    older = find_version("onnxruntime", "1.2")
    assert older is not None
    assert older.table.version == known[0]
    assert "older than all" in older.note
    assert find_version("tensorrt", "10.3") is None
    with pytest.raises(DialectError, match="'new' is no version of onnxruntime; known are"):
        find_version("onnxruntime", "new")


def test_an_old_version_gets_an_opset_that_it_reads() -> None:
    """The file says the newest opset that the version takes, and check refuses the other file for it."""
    model = tensorrt_residual()
    oldest = known_versions("onnxruntime")[0]
    version = find_version("onnxruntime", oldest)
    assert version is not None
    written = lower(model, "onnxruntime-x86", runtime_version=oldest)
    assert opset_of(written) <= version.table.newest_opset
    onnx.checker.check_model(written)
    assert not check(written, "onnxruntime-x86", runtime_version=oldest).refused
    written.opset_import[0].version = version.table.newest_opset + 1
    assert "is newer than" in check(written, "onnxruntime-x86", runtime_version=oldest).refused


def _table(version: str, outcome: str) -> RuleTable:
    rules = tuple(Rule(name, (), outcome if name == "Add" else f"integer Q{name}", name, 1) for name in ("Add", "Conv"))
    return RuleTable("onnxruntime", version, "x86_64", 20, rules, 2, {})


def test_what_only_newer_versions_fuse_stays_float() -> None:
    """The Q/DQ before it go, with a note, unless the kernel before it needs them."""
    qdq = read(lower(tensorrt_residual(), "onnxruntime-x86"))
    (addition,) = [node for node in qdq.graph.node if node.op_type == "Add"]
    before = {edge for edge in qdq.edges if edge[0] == addition.name}
    assert before
    fit_version(qdq, Version(_table("1.0", "float"), _table("2.0", "integer QLinearAdd")))
    after = {edge for edge in qdq.edges if edge[0] == addition.name}
    assert after <= before
    assert qdq.notes[-1] == f"{addition.name}: onnxruntime 1.0 runs this Add in float, 2.0 not."
    # What a convolution writes is still rounded: without it the convolution would be float too.
    makers = {name: node for node in qdq.graph.node for name in node.output}
    for name, index in before - after:
        maker = makers.get(addition.input[index])
        others = [edge for edge, held in qdq.edges.items() if qdq.tensor_of[held] == addition.input[index]]
        assert maker is None or maker.op_type != "Conv" or others, (name, index)


def test_the_newest_version_changes_nothing() -> None:
    """A file for the newest version is the dialect's own, bit for bit."""
    model = tensorrt_residual()
    newest = known_versions("onnxruntime")[-1]
    plain, versioned = (lower(model, "onnxruntime-x86", runtime_version=each) for each in ("", newest))
    assert plain.SerializeToString(deterministic=True) == versioned.SerializeToString(deterministic=True)


def linear_head() -> onnx.ModelProto:
    """Return a mean, a Reshape and a product with its bias, which gives floats, in integers but for its end."""
    net = Graph(opset=17)
    value = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02, 10, "uint8")
    mean = net.qdq(net.node("GlobalAveragePool", [value], "mean"), 0.02, 10, "uint8")
    net.constant("shape", [1, 8], np.int64)
    flat = net.qdq(net.node("Reshape", [mean, "shape"], "flat"), 0.02, 10, "uint8")
    weight = net.weight("w", (8, 4), axis=None)
    scale = np.float32(0.02) * numpy_helper.to_array(next(each for each in net.constants if each.name == "w.s"))
    net.constant("b", net.random.integers(-500, 500, 4), np.int32)
    net.constant("b.s", scale)
    bias = net.node("DequantizeLinear", ["b", "b.s"], "b.d")
    return net.model(net.node("Add", [net.node("MatMul", [flat, weight], "product"), bias], "y"))


@pytest.mark.parametrize("version", known_versions("onnxruntime"))
def test_a_linear_head_is_one_kernel_in_every_version(version: str) -> None:
    """Older ones call it by another name, which was once read as a product in float."""
    rows = {row.operator: row for row in check(linear_head(), "onnxruntime-x86", runtime_version=version).rows}
    assert (rows["MatMul"].state, rows["MatMul"].kernel, rows["Add"].state) == ("integer", "QGemm", "taken")


@pytest.mark.parametrize("version", ["1.32", "99.0"])
def test_a_version_that_nobody_learned_is_not_confirmed_by_another(version: str) -> None:
    """Its prediction is that of the newest table, which says so, whatever is installed here."""
    contract = check(linear_head(), "onnxruntime-x86", runtime_version=version)
    assert contract.confirmed.startswith("Predicted from the rules learned from")
    assert f"onnxruntime {version} was not learned" in contract.confirmed


def test_a_runtime_without_learned_versions_says_who_was_asked() -> None:
    """The one that is installed here, which may be the one that is meant."""
    model = lower(tensorrt_residual(), "openvino")
    here = importlib.metadata.version("openvino")
    assert "versions of openvino were not learned" in check(model, "openvino", runtime_version="2021.4").confirmed
    assert "were not learned" not in check(model, "openvino", runtime_version=here).confirmed
    with pytest.raises(DialectError, match="'new' is no version of openvino"):
        check(model, "openvino", runtime_version="new")


def test_check_tells_what_an_old_version_makes_of_a_file() -> None:
    """By its table, with the version's name; no runtime is asked that is another version."""
    oldest = known_versions("onnxruntime")[0]
    written = lower(tensorrt_residual(), "onnxruntime-x86", runtime_version=oldest)
    contract = check(written, "onnxruntime-x86", runtime_version=oldest)
    assert f"learned from onnxruntime {oldest}" in contract.confirmed
    states = {row.node: row.state for row in contract.rows if row.operator == "Conv"}
    assert set(states.values()) == {"integer"}
