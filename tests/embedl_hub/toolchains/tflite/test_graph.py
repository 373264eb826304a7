"""A TFLite file that names the same parts again and again is refused before it bursts."""

from __future__ import annotations

from pathlib import Path

import flatbuffers  # type: ignore[import-untyped]
import pytest
from ai_edge_litert import schema_py_generated as schema
from support.fuzz import small_tflite

from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tflite.graph import read_graph


def repeated(count: int) -> bytes:
    """Return a model of one operator that stands there so often, and writes its one tensor so often."""
    builder = flatbuffers.Builder(1 << 20)

    def vector(items: list[int], *, offsets: bool) -> int:
        builder.StartVector(4, len(items), 4)
        for item in items:
            builder.PrependUOffsetTRelative(item) if offsets else builder.PrependInt32(item)
        return int(builder.EndVector())

    name, numbers = builder.CreateString("x" * 50), vector([0] * count, offsets=False)
    schema.TensorStart(builder)
    schema.TensorAddName(builder, name)
    tensors = vector([schema.TensorEnd(builder)], offsets=True)
    schema.OperatorStart(builder)
    schema.OperatorAddOutputs(builder, numbers)
    operators = vector([schema.OperatorEnd(builder)] * count, offsets=True)
    schema.OperatorCodeStart(builder)
    codes = vector([schema.OperatorCodeEnd(builder)], offsets=True)
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    schema.SubGraphAddOperators(builder, operators)
    graphs = vector([schema.SubGraphEnd(builder)], offsets=True)
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddOperatorCodes(builder, codes)
    schema.ModelAddSubgraphs(builder, graphs)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


def test_a_file_made_to_burst_is_refused(tmp_path: Path) -> None:
    """Its 160 kB would become four hundred million names."""
    (tmp_path / "m.tflite").write_bytes(repeated(20_000))
    with pytest.raises(RefusedError, match="so often that it would burst"):
        read_graph(tmp_path / "m.tflite")
    (tmp_path / "m.tflite").write_bytes(repeated(20))
    assert len(read_graph(tmp_path / "m.tflite").operators) == 20


def test_a_model_is_read(tmp_path: Path) -> None:
    """Names, types, shapes and the numbers of its ends."""
    (tmp_path / "m.tflite").write_bytes(small_tflite())
    graph = read_graph(tmp_path / "m.tflite")
    assert [str(tensor) for tensor in graph.inputs] == ["x int8[1, 4]"]
    assert [operator.op_type for operator in graph.operators] == ["ADD"]
    assert graph.numbers == {"x": (0.5, 0), "y": (0.5, 0)}
    assert graph.precision == "int8"
