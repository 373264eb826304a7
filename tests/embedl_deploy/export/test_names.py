"""The names of the user's modules, in every file that comes from a model."""

import json
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from support.named_net import NamedNet
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)

from embedl_deploy import transform
from embedl_deploy.dialect import dialects, relower
from embedl_deploy.dialect._names import read_modules
from embedl_deploy.errors import ExportError
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    LayerCost,
    MaxDrop,
    ModulesToSkip,
    QuantConfig,
    Sensitivity,
    quantization_of,
    quantize,
    sensitivity,
)
from embedl_deploy.tensorrt import TENSORRT

VALUE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
CASES = pytest.mark.parametrize("kind", ["fx", "export"])


def net(kind: str) -> NamedNet:
    """Return a network that torch.fx can follow, or one that only torch.export can."""
    torch.manual_seed(0)
    return NamedNet(loops=kind == "export").eval()


def told(path: Path, key: str) -> dict[str, object]:
    """Return one of the file's remarks."""
    props = {one.key: one.value for one in onnx.load(path).metadata_props}
    found: dict[str, object] = json.loads(props[f"edgeproof.{key}"])
    return found


def check_names(path: Path, model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Every node of a file has modules, and all of them are the user's."""
    loaded = onnx.load(path)
    found = read_modules(loaded)
    assert set(found) == {node.name for node in loaded.graph.node}
    assert {name for names in found.values() for name in names} <= set(dict(model.named_modules()))
    return found


@CASES
def test_a_float_file_names_the_users_modules(kind: str, tmp_path: Path) -> None:
    """Fused modules are all told, the one with weights first; functions belong to the module whose code calls them."""
    model = net(kind)
    result = transform(model, (VALUE,), ONNXRUNTIME.patterns)
    path = export_onnx(result.model, (VALUE,), tmp_path / "float.onnx")
    nodes = {node.name: node for node in onnx.load(path).graph.node}
    found = check_names(path, model)
    by_op: dict[str, set[tuple[str, ...]]] = {}
    for name, modules in found.items():
        by_op.setdefault(nodes[name].op_type, set()).add(modules)
    assert ("features.0.conv", "features.0.bn", "features.0.act") in by_op["Conv"]
    assert by_op["Add"] >= {("features.0",), ("features.1",)}
    assert by_op["Gelu"] == by_op["Sub"] == {("",)}
    shared = [name for name, modules in found.items() if modules[0] == "shared" and nodes[name].op_type == "Conv"]
    assert len(shared) == 2, "called twice, once under its other name"
    if kind == "export":
        assert ("odd.inner",) in by_op["Conv"]
    assert set(told(path, "precisions").values()) == {"float32"}


def test_a_model_that_was_not_transformed_has_names_too(tmp_path: Path) -> None:
    """The scopes of torch's exporter are the user's names then."""
    model = net("fx")
    found = check_names(export_onnx(model, (VALUE,), tmp_path / "plain.onnx"), model)
    assert ("features.1.conv", "features.1.bn") in found.values()
    assert ("features.1",) in found.values()
    assert ("shared",) in found.values()


@CASES
def test_names_survive_every_dialect_and_relowering(kind: str, tmp_path: Path) -> None:
    """Pairs belong to the module of their tensor, in the canonical file and in all that are made from it."""
    model = net(kind)
    result = transform(model, (VALUE,), ONNXRUNTIME.patterns)
    skip = QuantConfig(skip=ModulesToSkip.layers("features.1.conv"))
    quantized = quantize(result.model, (VALUE,), skip, [VALUE], backend=ONNXRUNTIME)
    path = export_onnx(quantized, (VALUE,), tmp_path / "canonical.onnx")
    for dialect in (one.name for one in dialects()):
        target = tmp_path / f"{dialect}.onnx"
        relower(path, target, dialect=dialect)
        found = check_names(target, model)
        _check_pairs(target, found)
        precisions = told(target, "precisions")
        assert precisions["features.0.conv"] == precisions["shared"] == "int8"
        assert precisions["features.1.conv"] == "float32"
    again = tmp_path / "again.onnx"
    relower(tmp_path / "tensorrt.onnx", again, dialect="onnxruntime-x86")
    assert check_names(again, model) == read_modules(onnx.load(tmp_path / "onnxruntime-x86.onnx"))


def _check_pairs(path: Path, found: dict[str, tuple[str, ...]]) -> None:
    graph = onnx.load(path).graph
    makers = {name: node for node in graph.node for name in node.output}
    inputs = {value.name for value in graph.input}
    seen = 0
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in makers:
            assert found[node.name] == found[makers[node.input[0]].name]
            seen += 1
        elif node.op_type == "QuantizeLinear" and node.input[0] in inputs:
            assert found[node.name] == ("",)
        for name in node.input:
            maker = makers.get(name)
            if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] not in makers:
                assert found[maker.name][0] == found[node.name][0], "a weight belongs to its reader"
    assert seen > 4


def test_what_quantizing_costs_is_in_the_file(tmp_path: Path) -> None:
    """Per module of the user's, with unit and method; two calls of a shared module add up."""
    model = net("fx")
    result = transform(model, (VALUE,), ONNXRUNTIME.patterns)
    quantized = quantize(result.model, (VALUE,), None, [VALUE], backend=ONNXRUNTIME)
    costs = sensitivity(quantized, (VALUE,))
    path = export_onnx(quantized, (VALUE,), tmp_path / "net.onnx", dialect="onnxruntime-x86", sensitivity=costs)
    found = told(path, "sensitivity")
    modules = found["modules"]
    assert isinstance(modules, dict)
    assert found["unit"] == "noise power / output power"
    assert "first-order" in str(found["method"])
    assert set(modules) <= set(dict(model.named_modules()))
    noise = {one.place: one.noise for one in costs.layers}
    assert modules["head"] == pytest.approx(noise["head"])
    assert sum(modules.values()) == pytest.approx(sum(noise.values()))
    shared = [value for place, value in noise.items() if place.startswith("shared")]
    assert len(shared) == 2
    assert modules["shared"] == pytest.approx(sum(shared))


def test_costs_of_another_model_are_refused(tmp_path: Path) -> None:
    """Silence would put numbers beside the wrong layers."""
    result = transform(net("fx"), (VALUE,), ONNXRUNTIME.patterns)
    wrong = Sensitivity((LayerCost("backbone.conv", 0.1, 1.0),))
    with pytest.raises(ExportError, match=r"no layer 'backbone.conv', it has: .*head"):
        export_onnx(result.model, (VALUE,), tmp_path / "net.onnx", sensitivity=wrong)


def test_a_goal_leaves_its_costs_with_the_model(tmp_path: Path) -> None:
    """The search ranks layers anyway; what it knows travels into the file, float islands included."""
    model = net("fx")
    result = transform(model, (VALUE,), ONNXRUNTIME.patterns)
    with torch.no_grad():
        wanted = model(VALUE)

    def closeness(candidate: nn.Module) -> float:
        with torch.no_grad():
            return -float(F.mse_loss(candidate(VALUE), wanted) / wanted.var())

    quantized = quantize(
        result.model,
        (VALUE,),
        None,
        [VALUE],
        backend=ONNXRUNTIME,
        corrections=(),
        goal=MaxDrop(closeness, 0.0, most_islands=1),
    )
    report = quantization_of(quantized)
    assert report.search is not None
    assert report.sensitivity is not None
    (island,) = report.search.islands
    path = export_onnx(quantized, (VALUE,), tmp_path / "net.onnx")
    modules = told(path, "sensitivity")["modules"]
    assert isinstance(modules, dict)
    assert island in modules
    assert told(path, "precisions")[island] == "float32"


def test_unreadable_names_do_not_stop_a_lowering(tmp_path: Path) -> None:
    """They are remarks: a file with bad ones is lowered like one that has none."""
    result = transform(net("fx"), (VALUE,), TENSORRT.patterns)
    quantized = quantize(result.model, (VALUE,), None, [VALUE], backend=TENSORRT)
    path = export_onnx(quantized, (VALUE,), tmp_path / "net.onnx")
    for text in ("no JSON", "[1]", '{"a": 3, "b": [], "c": [1]}'):
        model = onnx.load(path)
        props = {one.key: one.value for one in model.metadata_props}
        del model.metadata_props[:]
        helper.set_model_props(model, {**props, "edgeproof.modules": text})
        bad = tmp_path / "bad.onnx"
        onnx.save(model, bad)
        assert not read_modules(onnx.load(bad))
        relower(bad, tmp_path / "out.onnx", dialect="tensorrt")
