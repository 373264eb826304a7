"""The file does what was simulated: to the bit where ONNX Runtime is told not to optimize, closely where it is."""

import importlib.util
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from support.families import Emulated
from support.quantized_nets import Mixer, Residual, ratio_db, residual, settled
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend
from embedl_deploy.dialect import dialects, relower
from embedl_deploy.errors import DialectError, ExportError
from embedl_deploy.export import export_onnx
from embedl_deploy.nn import QuantStub
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Precision,
    QuantConfig,
    TensorQuantConfig,
    insert_qdq,
    learn_ranges,
    plan_qdq,
    quantize,
)
from embedl_deploy.tensorrt import TENSORRT

Shared = Callable[[Backend], tuple[nn.Module, nn.Module, torch.Tensor, Path]]
BACKENDS = pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)
PRECISIONS = {
    "int8": (QuantConfig(), {"INT8"}),
    "int4": (QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True)), {"INT4"}),
    "int4 blocks": (
        QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True, block_size=16)),
        {"INT4"},
    ),
    "int16": (QuantConfig(activation=TensorQuantConfig(Precision.INT16)), {"INT16", "UINT16"}),
    "fp8": (
        QuantConfig(TensorQuantConfig(Precision.FP8), TensorQuantConfig(Precision.FP8, per_channel=True)),
        {"FLOAT8E4M3FN"},
    ),
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Return a function that gives a backend's float net, quantized net, batch and canonical file, each made once."""

    @cache
    def make(backend: Backend) -> tuple[nn.Module, nn.Module, torch.Tensor, Path]:
        model, value = residual(backend)
        quantized = quantize(model, (value,), None, [value], backend=backend)
        folder = tmp_path_factory.mktemp(backend.name)
        return model, quantized, value, export_onnx(quantized, (value,), folder / "net.onnx", dynamic_batch=True)

    return make


def run(path: Path, value: torch.Tensor, *, optimize: bool = False) -> torch.Tensor:
    """Run a file in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: value.numpy()})
    return torch.from_numpy(found)


def graph_of(path: Path) -> Any:
    """Check a file and return its graph."""
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(path).graph


@pytest.mark.parametrize(
    ("name", "backend", "least_db"),
    [
        pytest.param("int8", TENSORRT, 60, marks=pytest.mark.slow),
        ("int8", ONNXRUNTIME, 50),
        pytest.param("int4", TENSORRT, 60, marks=pytest.mark.slow),
        ("int4 blocks", ONNXRUNTIME, 50),
        pytest.param("int16", ONNXRUNTIME, 80, marks=pytest.mark.slow),
        ("fp8", TENSORRT, 40),
    ],
)
def test_the_file_does_what_was_simulated(name: str, backend: Backend, least_db: float, tmp_path: Path) -> None:
    """Every precision: the types are in the file, and the outputs agree, with another batch too."""
    config, wanted = PRECISIONS[name]
    model, value = residual(backend)
    quantized = quantize(model, (value,), config, [value], backend=backend)
    path = export_onnx(quantized, (value,), tmp_path / "net.onnx", dynamic_batch=True)
    types = {onnx.TensorProto.DataType.Name(one.data_type) for one in graph_of(path).initializer}
    assert types & wanted
    for batch in (value, torch.randn(3, 3, 16, 16)):
        with torch.no_grad():
            assert ratio_db(quantized(batch), run(path, batch)) > least_db


@BACKENDS
def test_batch_norm_is_folded_and_scales_are_initializers(backend: Backend, shared: Shared) -> None:
    """No BatchNormalization is left; every Q and DQ reads scales from the file; weights are stored as integers."""
    graph = graph_of(shared(backend)[-1])
    kinds = Counter(node.op_type for node in graph.node)
    assert "BatchNormalization" not in kinds
    assert kinds["Conv"] == (6 if backend is TENSORRT else 5)
    constants = {one.name for one in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert set(node.input[1:]) <= constants
    weights = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in constants]
    assert len(weights) == 6


def test_names_and_ranges(shared: Shared) -> None:
    """Nodes are called after the user's modules; ranges are told for what is quantized and what is only watched."""
    loaded = onnx.load(shared(TENSORRT)[-1])
    told = {one.key: json.loads(one.value) for one in loaded.metadata_props if one.value[0] in "[{"}
    assert "conv1/Conv" in {node.name for node in loaded.graph.node}
    assert told["edgeproof.modules"]["conv1/Conv"] == ["conv1", "bn1", "relu"]
    tensors = {name for node in loaded.graph.node for name in (*node.input, *node.output)}
    assert set(told["edgeproof.ranges"]) <= tensors
    quantized = {node.input[0] for node in loaded.graph.node if node.op_type == "QuantizeLinear"}
    assert quantized < set(told["edgeproof.ranges"])
    assert all(low <= 0 <= high for low, high in told["edgeproof.ranges"].values())
    conv2 = next(node.output[0] for node in loaded.graph.node if node.name == "conv2/Conv")
    assert conv2 in told["edgeproof.ranges"]


class Windows(nn.Module):
    """Attention over the pixels of a picture, with grouped heads and a mask, put back into a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.both, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.mask = nn.Parameter(torch.randn(1, 4, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend twice: with a bias, and causally with half of the heads for keys and values."""
        query = self.query(x).reshape(1, 16, 4, 4).permute(0, 2, 1, 3)
        key, value = self.both(x).reshape(1, 16, 2, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        attend = nn.functional.scaled_dot_product_attention
        x = attend(query, key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1), attn_mask=self.mask)
        x = x + attend(query, key, value, is_causal=True, enable_gqa=True)
        x = x.reshape(1, 4, 4, 4, 4).permute(0, 2, 3, 1, 4).reshape(1, 4, 4, 16)
        out: torch.Tensor = self.out(x)
        return out


def test_attention_that_torch_itself_does_not_export(tmp_path: Path) -> None:
    """A reshape after attention makes torch's own exporter fail; here it is written by products."""
    torch.manual_seed(0)
    net, value = Windows().eval(), torch.randn(1, 16, 16)
    with pytest.raises(torch.onnx.OnnxExporterError, match="decompose"):
        torch.onnx.export(net, (value,), dynamo=True, verbose=False)
    model = transform(net, (value,), ONNXRUNTIME).model
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    with torch.no_grad():
        wanted = quantized(value)
    assert ratio_db(wanted, run(export_onnx(quantized, (value,), tmp_path / "net.onnx"), value)) > 45


def test_one_operator_per_quantizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exporter of torch is given one operator for each quantizer and none of its scales."""
    seen: list[nn.Module] = []
    export = torch.onnx.export

    def spy(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(model)
        return export(model, *args, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", spy)
    torch.manual_seed(0)
    value = torch.randn(2, 32)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    quantized = quantize(transform(net, (value,), ONNXRUNTIME).model, (value,), None, [value], backend=ONNXRUNTIME)
    graph = graph_of(export_onnx(quantized, (value,), tmp_path / "net.onnx"))
    program = torch.export.export(seen[0], (value,))
    ours = [node for node in program.graph.nodes if "edgeproof" in str(node.target)]
    stubs = [part for part in quantized.modules() if isinstance(part, QuantStub)]
    assert len(ours) == len(stubs) + 2
    assert not [name for name in program.state_dict if "scale" in name or "zero_point" in name]
    pairs = Counter(node.op_type for node in graph.node)
    quantizes = sum(stub.quantizes for stub in stubs)
    assert (pairs["QuantizeLinear"], pairs["DequantizeLinear"]) == (quantizes, quantizes + 2)


class Casts(nn.Module):
    """Calls methods of tensors that modules have too, and owns the names under which the exporter files them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.steps = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cast back and forth."""
        x = self.first(x.to(torch.float32)).cpu().double().float() * self.steps
        x = self.last(x.type(torch.float64).to(torch.float32))
        return x.half().bfloat16().float().to(torch.float32)


def test_methods_that_modules_have_too(tmp_path: Path) -> None:
    """`x.to(...)`, `.cpu()`, `.double()`, `.half()`, `.type(...)`, `.float()` are exported like other methods."""
    torch.manual_seed(0)
    value = torch.randn(4, 8)
    model = transform(Casts().eval(), (value,), ONNXRUNTIME).model
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    with torch.no_grad():
        wanted = quantized(value)
    assert ratio_db(wanted, run(export_onnx(quantized, (value,), tmp_path / "net.onnx"), value)) > 45


def test_one_calibration_for_every_dialect(shared: Shared, tmp_path: Path) -> None:
    """Loaded in ONNX Runtime, outputs of each dialect's file are within 25 dB of the float model."""
    model, _, value, canonical = shared(TENSORRT)
    with torch.no_grad():
        expected = model(value)
    for dialect in dialects():
        path = tmp_path / f"{dialect.name}.onnx"
        relower(canonical, path, dialect=dialect.name)
        found = run(path, value.half() if _half(path) else value)
        assert ratio_db(expected, found.float()) > 25, dialect.name


def _half(path: Path) -> bool:
    """Say whether a file takes half precision."""
    return bool(onnx.load(path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16)


def test_every_kernel_is_an_integer_one(tmp_path: Path) -> None:
    """ONNX Runtime's own optimized graph: nothing but integer kernels between the ends."""
    model, value = residual(ONNXRUNTIME)
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    path = export_onnx(quantized, (value,), tmp_path / "net.onnx", dialect="onnxruntime-x86")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert kinds["QLinearConv"] == 5
    assert kinds["QLinearAdd"] == 2
    assert kinds["QGemm"] == 1
    assert kinds["QuantizeLinear"] == 1
    assert not {"Conv", "Gemm", "MatMul", "Relu", "DequantizeLinear"} & set(kinds)


def test_a_transformer_block(tmp_path: Path) -> None:
    """Normalization and GELU stay one node each; the matrix products become integer ones."""
    model, value = Mixer().eval(), torch.randn(4, 6, 32)
    quantized = quantize(transform(model, (value,), ONNXRUNTIME).model, (value,), None, [value], backend=ONNXRUNTIME)
    kinds = Counter(node.op_type for node in graph_of(export_onnx(quantized, (value,), tmp_path / "net.onnx")).node)
    assert (kinds["LayerNormalization"], kinds["Gelu"], kinds["MatMul"]) == (1, 1, 2)


def test_a_float_model_exports_too(tmp_path: Path) -> None:
    """Without pairs: the file is the float model."""
    model = settled(Residual(), 8, 3, 16, 16)
    value = torch.randn(2, 3, 16, 16)
    path = export_onnx(transform(model, (value,), ONNXRUNTIME).model, (value,), tmp_path / "net.onnx")
    with torch.no_grad():
        assert ratio_db(model(value), run(path, value, optimize=True)) > 80


def test_a_model_trained_with_learned_ranges(tmp_path: Path) -> None:
    """Scales that moved are the scales of the file."""
    model, value = residual(ONNXRUNTIME)
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    learn_ranges(quantized, weights=True)
    optimizer = torch.optim.SGD(quantized.parameters(), lr=1e-3)
    quantized.train()
    for _ in range(3):
        optimizer.zero_grad()
        quantized(value).pow(2).mean().backward()
        optimizer.step()
    quantized.eval()
    path = export_onnx(quantized, (value,), tmp_path / "net.onnx")
    with torch.no_grad():
        assert ratio_db(quantized(value), run(path, value)) > 50


def test_bad_exports(tmp_path: Path) -> None:
    """Not calibrated, an unknown dialect, a model torch cannot export."""
    model, value = residual(TENSORRT)
    bare = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    with pytest.raises(ExportError, match=r"'x' has no scale; call calibrate"):
        export_onnx(bare, (value,), tmp_path / "net.onnx")
    with pytest.raises(DialectError, match="onnxruntime-x86"):
        export_onnx(model, (value,), tmp_path / "net.onnx", dialect="onnxruntime_x86")

    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool(x.sum() > 0) else -x

    with pytest.raises(ExportError, match="torch cannot export this model"):
        export_onnx(Branch(), (value,), tmp_path / "net.onnx")


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    """It is named before any work is done."""
    model, value = residual(TENSORRT)
    with pytest.raises(ExportError, match=r"there is no folder '.*none' to write 'a.onnx' to; make it first"):
        export_onnx(model, (value,), tmp_path / "none" / "a.onnx")


def test_what_a_dialect_lacks_is_left_float_on_request(tmp_path: Path) -> None:
    """The error says how, and it works."""
    model, value = residual(ONNXRUNTIME)
    quantized = quantize(model, (value,), PRECISIONS["int4"][0], forward_loop=[value], backend=ONNXRUNTIME)
    with pytest.raises(DialectError, match="fallback=True"):
        export_onnx(quantized, (value,), tmp_path / "a.onnx", dialect="litert")
    found = onnx.load(export_onnx(quantized, (value,), tmp_path / "a.onnx", dialect="litert", fallback=True))
    assert onnx.TensorProto.INT4 not in {one.data_type for one in found.graph.initializer}


def test_torchs_remarks_about_torchvision_are_kept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever does not have it did not ask for it; what others log at that level still comes through afterwards."""
    find = importlib.util.find_spec

    def find_others(name: str, package: str | None = None) -> Any:
        return None if name == "torchvision" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    monkeypatch.setattr(logger, "propagate", True)
    logger.addHandler(caplog.handler)
    try:
        export_onnx(nn.Linear(3, 2).eval(), (torch.zeros(1, 3),), tmp_path / "linear.onnx")
        assert "torchvision" not in caplog.text
        logger.warning("after")
        assert "after" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


def test_a_weight_that_a_dialect_leaves_in_float_has_no_stale_type(tmp_path: Path) -> None:
    """A transposed convolution is quantized for TensorRT, float in ONNX Runtime: shapes behind it are known."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 32, 3), nn.ConvTranspose2d(32, 32, 2, 2), nn.ReLU(), nn.Flatten(2), nn.Linear(784, 32)]
    value = torch.randn(2, 3, 16, 16)
    network = transform(nn.Sequential(*parts).eval(), (value,), TENSORRT).model
    model = quantize(network, (value,), None, [value], backend=TENSORRT)
    path = export_onnx(model, (value,), tmp_path / "net.onnx", dialect="onnxruntime-x86")
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"Conv", "ConvTranspose", "MatMul"}


def test_an_invalid_file_is_not_written(tmp_path: Path) -> None:
    """A model that was made half after it was quantized: one error that names the operator, and the old file stays."""
    torch.manual_seed(0)
    value = torch.randn(2, 8)
    model = transform(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (value,), ONNXRUNTIME).model
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    path = tmp_path / "net.onnx"
    path.write_text("what was there")
    with pytest.raises(ExportError, match=r"not be valid at '.*/QuantizeLinear'.*float16.*model\.float\(\)"):
        export_onnx(quantized.half(), (value.half(),), path)
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]
    assert path.read_text() == "what was there"


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime-arm"])
def test_files_with_signed_activations_load_with_default_optimization(
    target: str, tmp_path: Path, emulated: Callable[[str], Emulated]
) -> None:
    """ONNX Runtime gives pairs of opset 21 a type that it forgets to change, and refuses them: files say 20.

    Values are those of an ARM processor: an x86 without VNNI saturates where both operands are signed.
    """
    torch.manual_seed(0)
    value = torch.randn(1, 16, 16)
    model = transform(Windows().eval(), (value,), target=target).model
    quantized = quantize(model, (value,), None, [value], target=target)
    path = export_onnx(quantized, (value,), tmp_path / "net.onnx", target=target)
    assert run(path, value, optimize=True).shape == quantized(value).shape
    name = graph_of(path).input[0].name
    ((found,),) = emulated("cortex-a72").run(path.read_bytes(), [{name: value.numpy()}])
    assert ratio_db(quantized(value).detach(), torch.from_numpy(found)) > 25
