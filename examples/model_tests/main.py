"""Tests of a model in a build: three commits as a build server sees them, the last of which makes the model slower.

    python examples/model_tests/main.py

`test_model.py` beside this file is what pytest runs; `github-actions.yml` and `gitlab-ci.yml` run it for you.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TESTS = Path(__file__).with_name("test_model.py")
CHANNELS, CLASSES, SAMPLES = 16, 10, 64


def make_model(path: Path, layers: int) -> Path:
    """Write a classifier; all but the first of its convolutions change nothing and cost time."""
    random = np.random.default_rng(0)
    first = random.normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 12
    same = np.zeros_like(first)
    same[range(CHANNELS), range(CHANNELS), 1, 1] = 1
    nodes = [
        helper.make_node("Conv", [f"x{at}", "same" if at else "first"], [f"x{at + 1}"], name=f"conv{at}", pads=[1] * 4)
        for at in range(layers)
    ]
    nodes += [
        helper.make_node("GlobalMaxPool", [f"x{layers}"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flat"),
        helper.make_node("MatMul", ["flat", "weight"], ["scores"], name="classes"),
    ]
    classes = random.normal(size=(CHANNELS, CLASSES)).astype(np.float32)
    weights: dict[str, np.ndarray] = {"first": first, "same": same, "weight": classes}
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, CHANNELS, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def make_data(model: Path) -> None:
    """Write samples, and as their labels what the model says of them."""
    import onnxruntime  # noqa: PLC0415 - only here

    samples = np.random.default_rng(1).normal(size=(SAMPLES, CHANNELS, 32, 32)).astype(np.float32)
    session = onnxruntime.InferenceSession(model)
    scores = [session.run(None, {"x0": sample[None]})[0] for sample in samples]
    np.savez("data.npz", x0=samples)
    np.save("labels.npy", np.concatenate(scores).argmax(axis=-1))


def main() -> None:
    """Play a build server in the current folder."""
    home = Path(".embedl").resolve()
    # One thread and short measurements, so that the example is short; leave the device out in earnest.
    home.mkdir(exist_ok=True)
    quick = "threads = 1, iterations = 20, min_seconds = 0.1"
    (home / "devices.toml").write_text(f'[devices.here]\ntype = "local"\nlease_dir = ""\nconfig = {{ {quick} }}\n')
    shutil.copy(TESTS, ".")
    make_data(make_model(Path("model.onnx"), 4))
    codes = []
    for branch, layers in (("main", 4), ("same-speed", 4), ("slower", 16)):
        print(f"--- a commit on {branch}", flush=True)
        make_model(Path("model.onnx"), layers)
        record = ["--hub-record", "stage=main"] if branch == "main" else []
        reports = ["--junitxml", f"{branch}.xml", "--hub-summary", "summary.md"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_model.py"]
        options = ["--hub-home", str(home), *record, *reports]
        done = subprocess.run([*command, *options], env=os.environ, check=False, timeout=300)
        codes.append(done.returncode)
        print(f"exit code {done.returncode}", flush=True)
    assert codes == [0, 0, 1], "only the slower model may fail the build"
    print("runs stored in", home)


if __name__ == "__main__":
    main()
