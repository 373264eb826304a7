"""The program as a board runs it: JSON on stdout, words on stderr, exit codes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import embedl_onnxruntime
from embedl_device.arrays import load_npz, save_npz


def board(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "embedl_onnxruntime", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return done


def result(*arguments: object) -> Any:
    return json.loads(board(*arguments).stdout)


def refusal(*arguments: object) -> str:
    """Return the one message of a failed call."""
    done = board(*arguments, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    return line


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with one sample."""
    folder = tmp_path / "in"
    folder.mkdir()
    save_npz(folder / "data.npz", {"x": np.ones((1, 3, 8, 8), np.float32)})
    return folder


def test_every_file_is_python_3_8() -> None:
    """Boards have old Pythons."""
    for path in sorted(Path(embedl_onnxruntime.__file__).parent.glob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_program_is_installed() -> None:
    """Under the name that devices are configured with."""
    program = Path(sys.executable).with_name("embedl-onnxruntime")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"embedl-onnxruntime {embedl_onnxruntime.__version__}\n"


def test_doctor_tells_what_the_board_has() -> None:
    """Runtimes, execution providers, processor, and what cannot be read."""
    answer = result("doctor")
    assert answer["onnxruntime"] == onnxruntime.__version__
    assert "CPUExecutionProvider" in answer["execution_providers"]
    assert answer["board"]["cores_online"] >= 1
    assert isinstance(answer["unreadable"], list)


def test_inference_gives_the_runtimes_own_outputs(make_model: Any, data: Path, tmp_path: Path) -> None:
    """As .npz with the names of the model, bit for bit."""
    model = make_model(1)
    answer = result(
        "run-inference", "--model", model, "--input-dir", data, "--output-dir", tmp_path / "out", "--use-npz"
    )
    expected = onnxruntime.InferenceSession(model).run(None, load_npz(data / "data.npz"))[0]
    outputs = load_npz(tmp_path / "out" / "data.npz")
    assert answer["files"] == ["data.npz"]
    assert answer["outputs"] == {"y/out": {"dtype": "float32", "shape": [1, 4]}}
    np.testing.assert_array_equal(outputs["y/out"], expected)


def test_a_larger_batch_goes_through_in_pieces(make_model: Any, tmp_path: Path) -> None:
    """And comes back in one, as from a model of any batch."""
    images = np.random.default_rng(1).normal(size=(6, 3, 8, 8)).astype(np.float32)
    (tmp_path / "in").mkdir()
    save_npz(tmp_path / "in" / "data.npz", {"x": images})
    for batch in (2, "n"):
        out = tmp_path / f"out-{batch}"
        result(
            "run-inference",
            "--model",
            make_model(batch),
            "--input-dir",
            tmp_path / "in",
            "--output-dir",
            out,
            "--use-npz",
        )
    np.testing.assert_allclose(
        load_npz(tmp_path / "out-2" / "data.npz")["y/out"],
        load_npz(tmp_path / "out-n" / "data.npz")["y/out"],
        rtol=1e-6,
        atol=1e-6,
    )


def test_one_npy_per_input_and_output(make_model: Any, tmp_path: Path) -> None:
    """The plain form; an output that cannot be a file name asks for --use-npz."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    model = make_model(1)
    assert "use --use-npz" in refusal(
        "run-inference", "--model", model, "--input-dir", tmp_path / "in", "--output-dir", tmp_path / "o"
    )
    proto = onnx.load(model)
    proto.graph.output[0].name = proto.graph.node[-1].output[0] = "y"
    onnx.save(proto, model)
    answer = result("run-inference", "--model", model, "--input-dir", tmp_path / "in", "--output-dir", tmp_path / "out")
    assert answer["files"] == ["y.npy"]
    assert np.load(tmp_path / "out" / "y.npy").shape == (1, 4)


def test_a_profile_holds_everything(make_model: Any, tmp_path: Path) -> None:
    """Headline numbers, raw samples, layers, placement, environment, method, verdict; the trace on wish."""
    trace = tmp_path / "trace.json"
    answer = result(
        "profile", "--model", make_model(1), "--min-seconds", 0.05, "--iterations", 120,
        "--threads", 1, "--keep-trace", trace,
    )  # fmt: skip
    assert len(answer["samples_us"]) == answer["iterations"] >= 120
    latency = answer["latency_ms"]
    assert (
        latency["min"]
        <= latency["median_low"]
        <= latency["median"]
        <= latency["median_high"]
        <= latency["p90"]
        <= latency["max"]
    )
    assert latency["p90_high"] is None or latency["p90_high"] >= latency["p90"]
    assert (latency["p90_high"] is None) == (answer["tails"]["p90"]["reason"] is not None)
    assert answer["verdict"] in {"stable", "drifting", "throttled", "noisy"}
    assert answer["verdict_reason"]
    assert answer["peak_memory_mb"] > 1
    assert answer["settings"]["threads"] == 1
    assert [node["name"] for node in answer["placement"]["CPUExecutionProvider"]] == [
        "conv/0",
        "relu/0",
        'po"ol\\q',
        "flat",
    ]
    rows = answer["layers"]["rows"]
    assert rows
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, abs=1e-9)
    assert {"board", "before", "after"} == set(answer["environment"])
    assert trace.read_bytes().startswith(b"[")


def test_optimizing_writes_a_model_that_gives_the_same(make_model: Any, data: Path, tmp_path: Path) -> None:
    """The optimized file runs, and agrees within rounding."""
    model, optimized = make_model(1), tmp_path / "deep" / "optimized.onnx"
    answer = result("compile", "--model", model, "--output", optimized, "--optimization-level", "extended")
    assert answer["size_bytes"] == optimized.stat().st_size
    assert answer["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 3, 8, 8]}]
    operators = {node.op_type for node in onnx.load(optimized).graph.node}
    assert "FusedConv" in operators or "Relu" not in operators
    feed = load_npz(data / "data.npz")
    np.testing.assert_allclose(
        onnxruntime.InferenceSession(optimized).run(None, feed)[0],
        onnxruntime.InferenceSession(model).run(None, feed)[0], rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    assert not list(optimized.parent.glob("*.part"))


@pytest.mark.parametrize("name", ["CUDA", "CUDAExecutionProvider"])
def test_a_required_provider_that_is_not_there_is_said(make_model: Any, name: str) -> None:
    """Misspelt or not installed: nothing fell back, there was nothing to fall from."""
    words = refusal("profile", "--model", make_model(1), "--require-provider", name)
    assert f"{name} was required, but it is not available here; available: " in words
    assert "CPUExecutionProvider" in words
    assert "fell back" not in words


def test_a_required_provider_that_nodes_fell_off_fails(make_model: Any) -> None:
    """The message counts and names the nodes."""
    words = refusal("profile", "--model", make_model(1), "--require-provider", "AzureExecutionProvider")
    assert "AzureExecutionProvider was required, but of 4 nodes 4 on CPUExecutionProvider: conv/0 (Conv)" in words
    assert "Only CPUExecutionProvider was asked for; ask for AzureExecutionProvider too." in words


def test_nodes_that_fell_off_a_provider_that_was_asked_for() -> None:
    """Only then they fell back."""
    from embedl_device.errors import BoardError
    from embedl_onnxruntime.profile import check_placement
    from embedl_onnxruntime.session import CPU, Settings

    name = "XNNPACKExecutionProvider"
    settings = Settings(providers=(name, CPU))
    with pytest.raises(BoardError, match=r"of 1 nodes 1 on CPUExecutionProvider: c .Conv.. They fell back to the CPU"):
        check_placement({CPU: [{"name": "c", "op_type": "Conv"}]}, settings, name)


QUICK = ("--iterations", 40, "--min-seconds", 0, "--max-warmup-seconds", 0.2, "--threads", 1)


def test_models_are_measured_in_turns(make_model: Any, tmp_path: Path) -> None:
    """One document: samples by round, the order of each round, when everything was loaded anew."""
    one = make_model(1).rename(tmp_path / "one.onnx")
    two = make_model(1, name="other").rename(tmp_path / "two.onnx")
    answer = result("pair", "--model", one, "--model", two, "--model", one, *QUICK)
    assert answer["kind"] == "paired"
    assert answer["format"] == 1
    assert [row["file_name"] for row in answer["models"]] == ["one.onnx", "two.onnx", "one.onnx"]
    assert [len(row["samples_us"]) for row in answer["models"]] == [40] * 3 == [answer["rounds"]] * 3
    assert all(min(row["samples_us"]) > 0 for row in answer["models"])
    assert {tuple(sorted(order)) for order in answer["order"]} == {(0, 1, 2)}
    assert answer["loaded_at"] == list(range(0, 40, 4))
    assert {"before", "after", "board"} == set(answer["environment"])
    assert answer["models"][1]["nodes_by_execution_provider"] == {"CPUExecutionProvider": 4}
    assert answer["settings"]["threads"] == 1
    assert answer["verdict"] in {"stable", "drifting", "noisy", "throttled"}


def test_waiting_for_a_processor_is_told_on_linux(make_model: Any) -> None:
    """Sample by sample, and never more than the sample, but for the instant between two clocks."""
    model = make_model(1)
    answer = result("pair", "--model", model, "--model", model, *QUICK)
    for row in answer["models"]:
        assert (row["waited_us"] is not None) == Path("/proc/thread-self/schedstat").exists()
        assert all(wait >= 0 for wait in row["waited_us"] or ())


def test_one_model_has_nothing_to_be_held_against(make_model: Any) -> None:
    """Nor may one of several be missing."""
    model = make_model(1)
    assert "Give two models or more" in refusal("pair", "--model", model)
    assert "There is no model nowhere.onnx" in refusal("pair", "--model", model, "--model", "nowhere.onnx")
    words = refusal("pair", "--model", model, "--model", model, "--require-provider", "AzureExecutionProvider")
    assert "AzureExecutionProvider was required, but of 4 nodes 4 on CPUExecutionProvider" in words


def test_a_provider_that_is_not_built_in_lists_those_that_are(make_model: Any) -> None:
    """No silent fallback."""
    words = refusal("profile", "--model", make_model(1), "--execution-provider", "CUDAExecutionProvider")
    assert "has no CUDAExecutionProvider; it has:" in words


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": np.ones((1, 3, 8, 8), np.float32)}, ["'z' is not an input", "'x' is missing", "x float32[1, 3, 8, 8]"]),
        ({"x": np.ones((1, 3, 8, 8), np.float64)}, ["'x' is float64, the model takes float32"]),
        ({"x": np.ones((1, 3, 9, 8), np.float32)}, ["'x' has shape [1, 3, 9, 8], the model takes [1, 3, 8, 8]"]),
        ({"x": np.ones((3, 8, 8), np.float32)}, ["'x' has shape [3, 8, 8]"]),
    ],
)
def test_data_that_does_not_fit_is_refused(
    arrays: dict[str, Any], words: list[str], make_model: Any, tmp_path: Path
) -> None:
    """All faults at once, with what the model takes."""
    (tmp_path / "in").mkdir()
    save_npz(tmp_path / "in" / "data.npz", arrays)
    text = refusal(
        "run-inference",
        "--model",
        make_model(1),
        "--input-dir",
        tmp_path / "in",
        "--output-dir",
        tmp_path / "out",
        "--use-npz",
    )
    for word in words:
        assert word in text


def test_bad_models_are_refused(make_model: Any, tmp_path: Path) -> None:
    """Missing, not ONNX, of an opset from the future, with external data that is not there."""
    assert "There is no model" in refusal("profile", "--model", tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("this is not a model")
    assert f"ONNX Runtime {onnxruntime.__version__} cannot load" in refusal(
        "profile", "--model", tmp_path / "text.onnx"
    )
    model = make_model(1)
    proto = onnx.load(model)
    proto.opset_import[0].version = 99
    onnx.save(proto, tmp_path / "future.onnx")
    assert "99" in refusal("profile", "--model", tmp_path / "future.onnx")
    onnx.save(onnx.load(model), tmp_path / "split.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert "w.bin" in refusal("profile", "--model", tmp_path / "split.onnx")


def test_a_shape_must_be_given_for_a_dynamic_input(make_model: Any) -> None:
    """The message has the very option to add; a wrong one is told too."""
    model = make_model("n")
    assert "--shape 'x=1,3,8,8'" in refusal("profile", "--model", model)
    assert "A shape is given for y" in refusal("profile", "--model", model, "--shape", "y=1")
    usage = board("profile", "--model", model, "--shape", "x=1,a", check=False)
    assert usage.returncode == 2
    assert "expected NAME=1,3,224,224" in usage.stderr


def test_integer_and_text_inputs_get_data_too(tmp_path: Path) -> None:
    """Ones for integers: a valid index of an embedding, mostly."""
    node = helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    answer = result(
        "profile", "--model", tmp_path / "m.onnx", "--min-seconds", 0.01, "--iterations", 5, "--layer-runs", 0
    )
    assert answer["data"]["inputs"] == {"ids": {"dtype": "int64", "shape": [2]}}
    assert answer["layers"] == {"rows": [], "runs": 0}
    assert answer["latency_ms"]["p99"] is None or answer["iterations"] >= 662


def test_an_empty_or_broken_input_folder_is_refused(make_model: Any, tmp_path: Path) -> None:
    """Before the model is loaded."""
    (tmp_path / "in").mkdir()
    call = (
        "run-inference",
        "--model",
        make_model(1),
        "--input-dir",
        tmp_path / "in",
        "--output-dir",
        tmp_path / "out",
        "--use-npz",
    )
    assert "holds no .npz or .npy" in refusal(*call)
    (tmp_path / "in" / "data.npz").write_bytes(b"PK broken")
    assert "cannot be read as .npz" in refusal(*call)


def test_nothing_is_unpickled(make_model: Any, tmp_path: Path) -> None:
    """An array of objects in a file is a way to run code; it is refused."""
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "data.npz", x=np.array([{"a": 1}], dtype=object))
    assert "cannot be read" in refusal(
        "run-inference", "--model", make_model(1), "--input-dir", tmp_path / "in",
        "--output-dir", tmp_path / "out", "--use-npz",
    )  # fmt: skip


def test_any_tensor_name_can_be_stored(tmp_path: Path) -> None:
    """The savez of numpy cannot hold an array called ``file``."""
    arrays: dict[str, Any] = {"file": np.arange(3), "a/b": np.zeros((2, 0)), "ü": np.float32(1.5)}
    save_npz(tmp_path / "x.npz", arrays)
    back = load_npz(tmp_path / "x.npz")
    assert set(back) == set(arrays)
    assert back["a/b"].shape == (2, 0)
