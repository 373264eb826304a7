"""Files of other tools in another dialect, and every kind of bad file."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.deploy_zoo import hugging_face
from support.models import images, residual_net
from support.qdq import Graph, sample, scales, tensorrt_residual

from embedl_deploy.dialect import check, input_names, lower, relower
from embedl_deploy.dialect._model import read
from embedl_deploy.errors import DeployError, InputError, ModelFileError


def by_onnxruntime(folder: Path, kind: str, *, symmetric: bool) -> Path:
    """Quantize a residual net with ONNX Runtime's own tool."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(range(8))

        def get_next(self) -> dict[str, np.ndarray] | None:
            seed = next(self.left, None)
            return None if seed is None else {"x": images(1, seed=seed)}

    onnx.save(residual_net(), folder / "float.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quant_pre_process(str(folder / "float.onnx"), str(folder / "ready.onnx"))
        quantize_static(
            str(folder / "ready.onnx"), str(folder / f"{kind}.onnx"), Reader(), quant_format=QuantFormat.QDQ,
            per_channel=True, activation_type=QuantType.QInt8 if kind == "int8" else QuantType.QUInt8,
            weight_type=QuantType.QInt8, extra_options={"ActivationSymmetric": symmetric},
        )  # fmt: skip
    return folder / f"{kind}.onnx"


@pytest.mark.parametrize(("kind", "symmetric"), [("int8", True), ("int8", False), ("uint8", False)])
def test_files_of_onnxruntimes_own_tool(tmp_path: Path, kind: str, *, symmetric: bool) -> None:
    """Whatever format it was asked for, the x86 dialect fuses everything and the way over TensorRT keeps the scales."""
    source = by_onnxruntime(tmp_path, kind, symmetric=symmetric)
    done = relower(source, tmp_path / "x86.onnx", dialect="onnxruntime-x86")
    assert done.notes == ()
    contract = check(done.path, "onnxruntime-x86")
    assert contract.coverage == (3, 3)
    assert contract.left == (1, 1)
    assert not contract.disagreements
    relower(done.path, tmp_path / "trt.onnx", dialect="tensorrt")
    assert not check(tmp_path / "trt.onnx", "tensorrt").refused
    relower(tmp_path / "trt.onnx", tmp_path / "again.onnx", dialect="onnxruntime-x86")
    assert scales(onnx.load(done.path)) == scales(onnx.load(tmp_path / "again.onnx"))
    assert "7 quantized activations, 5 weights" in str(done)


def test_samples_give_the_ranges_a_file_lacks(tmp_path: Path) -> None:
    """A TensorRT file without ranges becomes fully integer once it may be run."""
    onnx.save(tensorrt_residual(ranges=False), tmp_path / "trt.onnx")
    bare = relower(tmp_path / "trt.onnx", tmp_path / "bare.onnx", dialect="onnxruntime-x86")
    assert any("no range was observed for it; relower with samples" in note for note in bare.notes)
    full = relower(
        tmp_path / "trt.onnx", tmp_path / "full.onnx", dialect="onnxruntime-x86", samples=[sample(n) for n in range(4)]
    )
    assert full.notes == ()
    assert check(full.path, "onnxruntime-x86").coverage == (3, 3)
    assert full.boundaries == 6


def test_samples_that_do_not_fit(tmp_path: Path) -> None:
    """None, other names, another shape, not finite: one error each."""
    path = tmp_path / "trt.onnx"
    onnx.save(tensorrt_residual(ranges=False), path)
    for samples, words in (
        ([], "no samples"),
        ([{"y": np.zeros(1)}], r"has the inputs \['y'\]; the model wants \['x'\]"),
        ([{"x": np.zeros((1, 3), np.float32)}], "does not fit the model"),
        ([{"x": np.full((1, 8, 12, 12), np.nan, np.float32)}], "NaN or infinity in 'x'"),
    ):
        with pytest.raises(InputError, match=words):
            relower(path, tmp_path / "out.onnx", dialect="onnxruntime-x86", samples=samples)
    assert not (tmp_path / "out.onnx").exists()


def test_bad_places(tmp_path: Path) -> None:
    """No file, no Q/DQ in it, no folder to write to; a target may be the source."""
    with pytest.raises(ModelFileError, match="no file"):
        relower(tmp_path / "none.onnx", tmp_path / "out.onnx", dialect="litert")
    onnx.save(residual_net(), tmp_path / "float.onnx")
    with pytest.raises(ModelFileError, match="has no Q/DQ"):
        relower(tmp_path / "float.onnx", tmp_path / "out.onnx", dialect="litert")
    path = tmp_path / "trt.onnx"
    onnx.save(tensorrt_residual(), path)
    with pytest.raises(ModelFileError, match="no folder"):
        relower(path, tmp_path / "no" / "out.onnx", dialect="litert")
    relower(path, path, dialect="onnxruntime-arm")
    assert read(onnx.load(path)).params["x"].type == "int8"
    assert input_names(path) == ["x"]
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The error says so, and nothing half-written stays."""
    path = tmp_path / "trt.onnx"
    onnx.save(tensorrt_residual(), path)
    (tmp_path / "out.onnx").mkdir()
    with pytest.raises(ModelFileError, match="cannot be written"):
        relower(path, tmp_path / "out.onnx", dialect="litert")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.onnx", "trt.onnx"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_work(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes cut, changed or made up: a clear error or a result, never a crash or another exception."""
    good = tensorrt_residual().SerializeToString()
    kind = data.draw(st.sampled_from(["cut", "flip", "made up"]))
    if kind == "cut":
        content = good[: data.draw(st.integers(0, len(good)))]
    elif kind == "flip":
        place = data.draw(st.integers(0, len(good) - 1))
        content = good[:place] + data.draw(st.binary(min_size=1, max_size=4)) + good[place + 1 :]
    else:
        content = data.draw(st.binary(max_size=200))
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with contextlib.suppress(DeployError):
        relower(path, tmp_path / "out.onnx", dialect="onnxruntime-x86")
        check(tmp_path / "out.onnx", "litert")


def rewired() -> Iterator[onnx.ModelProto]:
    """Yield a good file with one fault each: inputs renamed, dropped, doubled; other operators; other constants."""
    good = tensorrt_residual()
    operators = ("Identity", "QuantizeLinear", "DequantizeLinear", "Conv", "ConvTranspose", "Gemm", "MatMul", "Relu")
    for at, node in enumerate(good.graph.node):
        for place in range(len(node.input)):
            for name in ("x", "y", "nothing", ""):
                bad = tensorrt_residual()
                bad.graph.node[at].input[place] = name
                yield bad
            bad = tensorrt_residual()
            del bad.graph.node[at].input[place]
            yield bad
        bad = tensorrt_residual()
        bad.graph.node[at].input.extend(list(node.input))
        yield bad
        for operator in operators:
            bad = tensorrt_residual()
            bad.graph.node[at].op_type = operator
            yield bad
    for at, value in enumerate(good.graph.initializer):
        for number in (0.0, -1.0, np.inf):
            for rank in range(2):
                bad = tensorrt_residual()
                content = np.full((1,) * rank, number, np.float32)
                bad.graph.initializer[at].CopyFrom(onnx.numpy_helper.from_array(content, value.name))
                yield bad


@pytest.mark.parametrize("dialect", ["tensorrt", "onnxruntime-x86", "litert"])
def test_rewired_graphs_are_refused_or_work(dialect: str) -> None:
    """Every one of them, since a fault that few draws meet was found by none for long: a clear error or a result."""
    results = []
    for bad in rewired():
        with contextlib.suppress(DeployError):
            results.append(lower(bad, dialect))
    assert results


def test_a_file_in_half_precision_is_refused(tmp_path: Path) -> None:
    """Its scales were rounded to half: one error that says which file to take instead."""
    onnx.save(lower(tensorrt_residual(), "tensorrt", float_type="float16"), tmp_path / "half.onnx")
    with pytest.raises(ModelFileError, match=r"half precision .* lower the float32 file it was made of"):
        relower(tmp_path / "half.onnx", tmp_path / "out.onnx", dialect="onnxruntime-x86")


def test_samples_in_every_form(tmp_path: Path) -> None:
    """Tensors, arrays, tuples and dictionaries are observed alike; what is not finite is refused."""
    onnx.save(tensorrt_residual(ranges=False), tmp_path / "bare.onnx")
    values = sample(1)["x"]
    made = []
    for number, one in enumerate((torch.from_numpy(values), values, (values,), {"x": torch.from_numpy(values)})):
        done = relower(tmp_path / "bare.onnx", tmp_path / f"{number}.onnx", dialect="onnxruntime-x86", samples=[one])
        made.append(done.path.read_bytes())
    assert len(set(made)) == 1


def test_a_cut_that_was_given_up_before_is_not_told_again(tmp_path: Path) -> None:
    """Unsigned data loses its floor on the way to TensorRT; from there to TensorRT nothing changes."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02, 0, "uint8")
    net.node("Conv", [x, net.weight("w", (8, 8, 1, 1))], "y")
    onnx.save(net.model("y"), tmp_path / "unsigned.onnx")
    first = relower(tmp_path / "unsigned.onnx", tmp_path / "first.onnx", dialect="tensorrt")
    assert any("values below 0 were cut off" in note for note in first.notes)
    second = relower(first.path, tmp_path / "second.onnx", dialect="tensorrt")
    assert second.notes == ()
    assert scales(onnx.load(first.path)) == scales(onnx.load(second.path))


class _FirstAnswer(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.model(input_ids=input_ids, return_dict=False)[0]
        return answer


def test_names_that_onnxruntime_gave_before_do_not_stop_it(tmp_path: Path) -> None:
    """A file of its quantizer was optimized before; optimizing it once more with every tensor asked for fails there."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter([{"x": ids.numpy()}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    model, inputs = hugging_face("electra")
    ids = inputs["input_ids"]
    plain, prepared, source = (str(tmp_path / f"{name}.onnx") for name in ("plain", "prepared", "source"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_FirstAnswer(model).eval(), (ids,), plain, opset_version=17, input_names=["x"], dynamo=False)
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantize_static(prepared, source, Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    relower(source, tmp_path / "lowered.onnx", dialect="litert", samples=[ids.numpy()])
    assert any(row.is_integer for row in check(tmp_path / "lowered.onnx", "litert").rows)
