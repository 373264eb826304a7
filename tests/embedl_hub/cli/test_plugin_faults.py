"""Mistakes in what others wrote: one message that says where, and the traceback on request."""

from __future__ import annotations

from pathlib import Path

import onnx
from support.cli import hub
from support.models import residual_net

PROVIDER = """
from embedl_hub.core.compile import ONNXRuntimeCompiler

@ONNXRuntimeCompiler.provider("broken")
def compile_broken(ctx, onnx_path, **options):
    raise KeyError("weights")
"""


def test_an_exception_of_a_provider_is_one_message(tmp_path: Path) -> None:
    """With the function, its file and line; -vv has the traceback."""
    package = tmp_path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    kind = "from embedl_hub.core.device import DeviceKind\nKIND = DeviceKind('broken', 'A broken one.')\n"
    (tmp_path / "broken_kind.py").write_text(kind)
    (tmp_path / "broken_provider.py").write_text(PROVIDER)
    (package / "entry_points.txt").write_text(
        "[embedl_hub.providers]\nbroken = broken_provider\n[embedl_hub.device_kinds]\nbroken = broken_kind:KIND\n"
    )
    onnx.save(residual_net(), tmp_path / "net.onnx")
    outside = {"PYTHONPATH": str(tmp_path), "EMBEDL_HUB_HOME": str(tmp_path / "home")}
    assert hub("device", "add", "desk", "--type", "broken", "--runner", "local", **outside).returncode == 0
    done = hub("compile", "onnxruntime", tmp_path / "net.onnx", "--device", "desk", **outside)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"KeyError in compile_broken ({tmp_path / 'broken_provider.py'}:6): 'weights'" in done.stderr
    done = hub("-vv", "compile", "onnxruntime", tmp_path / "net.onnx", "--device", "desk", **outside)
    assert "Traceback" in done.stderr


def test_weights_beside_a_model_go_with_it(tmp_path: Path) -> None:
    """A file that PyTorch exported is profiled as it is, without compiling it first."""
    onnx.save(
        residual_net(), tmp_path / "net.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0
    )
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    done = hub("profile", "onnxruntime", tmp_path / "net.onnx", **home)
    assert done.returncode == 0, done.stderr
    (tmp_path / "text.onnx").write_text("no model")
    done = hub("profile", "onnxruntime", tmp_path / "text.onnx", **home)
    assert f"{tmp_path / 'text.onnx'} is not an ONNX model" in done.stderr


def test_this_machine_never_stands_in_for_the_devices_there_are(tmp_path: Path) -> None:
    """A step that none of them serves is refused; --here, or --device local, means this machine."""
    onnx.save(residual_net(), tmp_path / "net.onnx")
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    added = hub("device", "add", "jet", "--type", "trtexec", "--host", "board.example", **home)
    assert added.returncode == 0, added.stderr
    done = hub("compile", "onnxruntime", tmp_path / "net.onnx", **home)
    assert done.returncode == 1
    assert "Devices on the context: 'jet' (trtexec)" in done.stderr
    assert "(--here)" in done.stderr
    assert hub("compile", "onnxruntime", tmp_path / "net.onnx", "--here", **home).returncode == 0
    assert hub("compile", "onnxruntime", tmp_path / "net.onnx", "--device", "local", **home).returncode == 0
