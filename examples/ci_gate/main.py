"""A gate for builds: three commits as a build server sees them, the last of which makes the model slower.

    python examples/ci_gate/main.py

`check.sh` beside this file is what the build calls; `github-actions.yml` and `gitlab-ci.yml` call it for you.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHECK = Path(__file__).with_name("check.sh")


def make_model(path: Path, layers: int) -> Path:
    """Write a stack of convolutions with random weights."""
    kernel = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32) / 12
    nodes = [
        helper.make_node("Conv", [f"x{at}", "kernel"], [f"x{at + 1}"], name=f"conv{at}", pads=[1] * 4)
        for at in range(layers)
    ]
    shape = [1, 16, 32, 32]
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(kernel, "kernel")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def main() -> None:
    """Play a build server in the current folder."""
    # Few turns and a wide tolerance, so that the example is short; leave both out in earnest.
    home = Path(".embedl").resolve()
    settings = {"EMBEDL_HUB_HOME": str(home), "TOLERANCE": "50%", "MOST_PAIRS": "4"}
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **settings}
    if not (home / "devices.toml").exists():
        measuring = ["--set", "threads=1", "--set", "min_seconds=0.2"]
        device = ["embedl-hub", "device", "add", "here", "--type", "local", *measuring]
        subprocess.run(device, env=environment, check=True, timeout=60)
    codes = []
    for branch, layers in (("main", 4), ("same-speed", 4), ("slower", 16)):
        print(f"--- a commit on {branch}", flush=True)
        model = make_model(Path("model.onnx"), layers)
        variables = {**environment, "BRANCH": branch}
        done = subprocess.run(["/bin/sh", CHECK, model], env=variables, check=False, timeout=300)
        codes.append(done.returncode)
        print(f"exit code {done.returncode}", flush=True)
    assert codes == [0, 0, 1], "only the slower model may fail the build"
    print("runs stored in", home)


if __name__ == "__main__":
    main()
