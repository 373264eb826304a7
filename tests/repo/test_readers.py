"""Files that strangers made are read by the readers that have bounds; any other place says why it may."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
READERS = {"embedl_device/readers.py", "embedl_hub/toml.py", "embedl_device/exported.py"}
BOUNDED = {
    "np.load", "numpy.load", "tomllib.load", "tomllib.loads", "torch.load", "torch.jit.load", "torch.export.load",
    "pickle.load", "pickle.loads", "zipfile.ZipFile", "json.load", "json.loads", "yaml.load", "onnx.load", "eval",
    "exec",
}  # fmt: skip
# By file and call: what it reads is our own, or is written here.
OURS = {
    "embedl_deploy/dialect/_check.py onnx.load": "what ONNX Runtime wrote a moment ago",
    "embedl_deploy/dialect/_build.py json.loads": "the answer of our own process",
    "embedl_deploy/dialect/_files.py onnx.load": "the reader of models; weights come by the bounded reader",
    "embedl_deploy/dialect/_model.py json.loads": "a default in the source",
    "embedl_deploy/dialect/_tables.py json.loads": "a table that ships",
    "embedl_deploy/quantize/_histogram.py torch.load": "weights only",
    "embedl_deploy/quantize/_sharded.py torch.load": "bytes that this program made, between its own processes",
    "embedl_deploy/rules/_diff.py json.loads": "observations that ship",
    "embedl_deploy/rules/_probe.py onnx.load": "what ONNX Runtime wrote a moment ago",
    "embedl_device/arrays.py zipfile.ZipFile": "written",
    "embedl_hub/cli/auth.py json.loads": "the answer of the user's own server, bounded by the connection",
    "embedl_hub/comparison/_compare.py json.loads": "what was dumped on the same line",
    "embedl_hub/core/component/_output.py eval": "the class author's own text",
    "embedl_hub/core/component/_output.py json.loads": "a value of the store",
    "embedl_hub/core/component/_signature.py eval": "the class author's own text",
    "embedl_hub/machine/machine.py zipfile.ZipFile": "written",
    "embedl_hub/machine/worker.py json.loads": "the request and the answer of our own process",
    "embedl_hub/models/calibration.py zipfile.ZipFile": "written",
    "embedl_hub/models/onnx_file.py onnx.load": "the reader of models; weights come by the bounded reader",
    "embedl_hub/toolchains/onnxruntime/probes.py onnx.load": "a model that we made",
    "embedl_hub/quantization/quantize.py onnx.load": "a model that we prepared",
    "embedl_hub/toolchains/onnxruntime/workload.py json.loads": "the runtime's own trace, in a process of its own",
    "embedl_hub/toolchains/onnxruntime/workload.py onnx.load": "a model that we prepared",
    "embedl_hub/toolchains/tflite/compile.py json.loads": "the answer of our converter",
    "embedl_hub/toolchains/tflite/converter.py json.loads": "our request, and reports of the converter's own process",
    "embedl_hub/toolchains/tflite/converter.py np.load": "batches that we wrote",
    "embedl_hub/toolchains/tflite/converter.py onnx.load": "a model that we prepared",
    "embedl_executorch/compiler/graph.py onnx.load": "a model that the hub prepared",
    "embedl_hub/machine/environment.py json.loads": "our own note",
    "embedl_hub/machine/variants.py zipfile.ZipFile": "the device program, packed by us right above",
    "embedl_onnxruntime/costs.py zipfile.ZipFile": "probes that the hub sent",
    "embedl_onnxruntime/profile.py json.loads": "one name between quotation marks",
}
# Their formats have readers of their own, with checks of their own.
OTHERS = ("embedl_hub/tracking/", "embedl_hub/server/", "embedl_hub/page/")


def dotted(node: ast.expr) -> str:
    """Return the name of what is called; ``ast.unparse`` would write all that stands before it."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def test_files_of_strangers_are_read_within_bounds() -> None:
    """By the table above, which has no line too many."""
    found = set()
    for path in sorted(SRC.rglob("*.py")):
        name = path.relative_to(SRC).as_posix()
        if name in READERS or name.startswith(OTHERS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (called := dotted(node.func)) in BOUNDED:
                found.add(f"{name} {called}")
    assert found == set(OURS), "use embedl_device.readers, embedl_hub.toml or embedl_device.exported"


def test_torch_unpickles_weights_alone() -> None:
    """But for what goes between processes of one program."""
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and dotted(node.func) == "torch.load" and path.name != "_sharded.py":
                assert "weights_only=True" in ast.unparse(node), path
