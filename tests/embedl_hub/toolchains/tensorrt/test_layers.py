"""Layers of an engine and the nodes they stand for."""

from __future__ import annotations

import pytest
from support.models import residual_net

from embedl_hub.toolchains.tensorrt.layers import LayerInfo, LayerProfile, LayerTime, Origins, join_layers, uncovered

SOURCE = residual_net()


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("conv/0 + norm/0 + relu/0", ["conv/0", "norm/0", "relu/0"]),
        ("PWN(PWN(add/1), relu/1)", ["add/1", "relu/1"]),
        ("{ForeignNode[pool...bias]}", ["pool", "flat", "fc", "bias"]),
        ("{ForeignNode[(Unnamed Layer* 3) [Shuffle]...conv/1]}", ["conv/0", "norm/0", "relu/0", "conv/1"]),
        ("Reformatting CopyNode for Input Tensor 0 to conv/0 + norm/0", []),
        ("conv/1 [profile 1]", ["conv/1"]),
        ("conv/10", []),
        ("my_fc", []),
        ("fc", ["fc"]),
        ("[HostToDeviceCopy]", []),
    ],
)
def test_names_tell_where_a_layer_comes_from(name: str, nodes: list[str]) -> None:
    """Fused, pointwise, foreign, copied; a name inside a longer one does not count."""
    assert Origins(SOURCE).of(name, "") == nodes


@pytest.mark.parametrize(
    ("metadata", "nodes"),
    [
        ("[ONNX Layer: relu/0]\x1e[ONNX Layer: conv/0]", ["conv/0", "relu/0"]),
        ("[ONNX Layer: conv/0]\x1f[ONNX Layer: conv/0]", ["conv/0"]),
        ("[ONNX Layer: conv/0][ONNX Layer: relu/0]", ["conv/0", "relu/0"]),
        ("[ONNX Layer: elsewhere]", []),
    ],
)
def test_metadata_goes_before_the_name(metadata: str, nodes: list[str]) -> None:
    """The engine's own word; a node that is not the user's was added."""
    assert Origins(SOURCE).of("__myl_Fused_myl0_1 fc", metadata) == nodes


def test_without_a_source_the_engines_word_is_all() -> None:
    """Names of nodes as it has them."""
    assert Origins(None).of("x", "[ONNX Layer: b]\x1e[ONNX Layer: a]") == ["b", "a"]
    assert Origins(None).of("conv/0", "") == []


def test_rows_have_times_shares_and_kinds() -> None:
    """Names that repeat are taken in their order; a layer that is not described still has its time."""
    profile = LayerProfile(
        10, (LayerTime("same", 1.0), LayerTime("same", 2.0), LayerTime("conv/1", 1.0), LayerTime("idle", None))
    )
    infos = [
        LayerInfo("same", "Convolution", "[ONNX Layer: conv/0]"),
        LayerInfo("same", "DLA", "[ONNX Layer: fc]", ("Int8",), "tactic"),
    ]
    rows = join_layers(profile, infos, SOURCE)
    assert [row.source_nodes for row in rows] == [("conv/0",), ("fc",), ("conv/1",), ()]
    assert [row.compute_unit for row in rows] == ["GPU", "DLA", "GPU", "GPU"]
    assert [row.share for row in rows] == [0.25, 0.5, 0.25, None]
    assert rows[1].extra["formats"] == ["Int8"]
    assert uncovered(rows, SOURCE) == ["norm/0", "relu/0", "add/1", "relu/1", "pool", "flat", "bias"]
