"""The LiteRT program on its own: one JSON object, errors in words, layers or the reason why there are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import embedl_litert
from embedl_litert.profiler import Event, NoLayersError, as_rows, without_doubles


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A TFLite model written by hand: y = x + x."""
    import flatbuffers  # type: ignore[import-untyped]

    def tensor(name: str) -> Any:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name, [1, 4], schema.TensorType.FLOAT32, 0
        return made

    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0, 0], [1]
    operator.builtinOptionsType = schema.BuiltinOptions.AddOptions
    operator.builtinOptions = schema.AddOptionsT()
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor("x"), tensor("y")], [0], [1], [operator]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    whole = schema.ModelT()
    whole.version, whole.subgraphs, whole.operatorCodes, whole.buffers = 3, [graph], [code], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    path = tmp_path / "add.tflite"
    path.write_bytes(bytes(builder.Output()))
    return path


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    argv = [sys.executable, "-m", "embedl_litert", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_models_are_measured_in_turns(model: Path) -> None:
    """One document for all of them."""
    done = call(
        "pair", "--model", model, "--model", model, "--iterations", 20, "--min-seconds", 0, "--max-warmup-seconds", 0.1
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "paired"
    assert document["tool"]["name"] == "embedl-litert"
    assert [len(row["samples_us"]) for row in document["models"]] == [20, 20]
    assert document["loaded_at"] == list(range(0, 20, 2))
    assert document["models"][0]["data"]["inputs"]["x"]["shape"] == [1, 4]
    assert "Give two models or more" in call("pair", "--model", model).stderr


def test_a_profile_is_one_json_object(model: Path) -> None:
    """With everything that explains the number."""
    done = call("profile", "--model", model, "--iterations", 10, "--min-seconds", 0.01, "--max-warmup-seconds", 0.1)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["format"] == 1
    assert document["tool"] == {"name": "embedl-litert", "version": embedl_litert.__version__}
    assert document["runtime"]["name"] == "litert"
    assert len(document["samples_us"]) == document["iterations"] >= 10
    assert document["layers"]["rows"] or document["layers"]["missing_because"]


def test_layers_are_the_runtimes_own(model: Path) -> None:
    """Without the delegate they are the model's operators by their index."""
    done = call("profile", "--model", model, "--iterations", 3, "--min-seconds", 0, "--no-xnnpack", "--layer-runs", 4)
    layers = json.loads(done.stdout)["layers"]
    assert layers["runs"] == 4
    assert [(row["name"], row["provider"], row["node"]) for row in layers["rows"]] == [("ADD:0", "builtin", 0)]


def test_run_inference_answers(model: Path, tmp_path: Path) -> None:
    """In pieces when there is more than the model takes."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    done = call("run-inference", "--model", model, "--input-dir", tmp_path / "in", "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), 2 * np.arange(12).reshape(3, 4))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["profile", "--model", "/nowhere.tflite"], "There is no model /nowhere.tflite"),
        (["profile", "--model", __file__], "cannot load"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], says: str) -> None:
    """On stderr, with exit code 1 and nothing on stdout."""
    done = call(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "embedl-litert: error: " in done.stderr
    assert says in done.stderr


def test_doctor_tells_what_there_is() -> None:
    """The version, and whether layers can be had."""
    answer = json.loads(call("doctor").stdout)
    assert answer["litert"]
    assert answer["layers"] is True


def test_a_delegate_is_shown_once() -> None:
    """Its own operators stand for it; without them it stands for itself."""
    whole, inner = Event("TfLiteXNNPackDelegate", False, 9.0, 3), Event("Convolution", True, 9.0, 0)
    softmax = Event("SOFTMAX", False, 1.0, 2)
    assert without_doubles([whole, inner, softmax]) == [inner, softmax]
    assert without_doubles([whole, softmax]) == [whole, softmax]


def test_runs_that_differ_give_no_layers() -> None:
    """A mean of different things would be none."""
    with pytest.raises(NoLayersError, match="not alike"):
        as_rows([[Event("A", False, 1.0, 0)], [Event("B", False, 1.0, 0)]])


def test_one_slow_run_does_not_change_the_layers() -> None:
    """The table has medians; the mean of the runs still counts it."""
    runs = [[Event("CONV", False, 9000.0 if at == 3 else 10.0, 0), Event("ADD", False, 30.0, 1)] for at in range(5)]
    table = as_rows(runs)
    assert [(row["time_ms"], row["share"]) for row in table["rows"]] == [(0.01, 0.25), (0.03, 0.75)]
    assert table["mean_run_ms"] == (9000 + 4 * 10 + 5 * 30) / 5 / 1e3


def test_an_unknown_version_gives_a_reason(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a wrong number from another layout."""
    from embedl_litert import profiler
    from embedl_litert.session import Settings

    monkeypatch.setattr(profiler, "runtime_version", lambda: "9.9")
    with pytest.raises(NoLayersError, match=r"LiteRT 9\.9 is not known; it is for 2\.3\.0"):
        profiler.profile_layers(model, Settings(), {}, 1)
