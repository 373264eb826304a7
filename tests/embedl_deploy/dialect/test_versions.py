"""The version of the runtime that will read a file: what is judged by it, and what is written for it."""

import onnx
import pytest
from support.qdq import tensorrt_residual

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


def test_check_tells_what_an_old_version_makes_of_a_file() -> None:
    """By its table, with the version's name; no runtime is asked that is another version."""
    oldest = known_versions("onnxruntime")[0]
    written = lower(tensorrt_residual(), "onnxruntime-x86", runtime_version=oldest)
    contract = check(written, "onnxruntime-x86", runtime_version=oldest)
    assert f"learned from onnxruntime {oldest}" in contract.confirmed
    states = {row.node: row.state for row in contract.rows if row.operator == "Conv"}
    assert set(states.values()) == {"integer"}
