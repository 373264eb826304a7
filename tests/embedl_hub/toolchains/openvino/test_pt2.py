"""A .pt2 file becomes OpenVINO's model by way of ONNX, and nothing in it is run."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from embedl_hub.core.compile import CompileError, OpenVINOCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.invoke import OpenVINOInvoker
from embedl_hub.core.profile import OpenVINOProfiler
from embedl_hub.testing import temporary_context


class Net(nn.Module):
    """A small network with a name for each part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify."""
        scores: torch.Tensor = self.head(torch.relu(self.conv(x)).mean((2, 3)))
        return scores


def saved(path: Path, *, is_open: bool) -> tuple[Path, Net]:
    """Save a network, with an open batch if asked to."""
    torch.manual_seed(0)
    network = Net().eval()
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}} if is_open else None
    torch.export.save(torch.export.export(network, (torch.zeros(2, 3, 12, 12),), dynamic_shapes=shapes), path)
    return path, network


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True])
def test_an_exported_program(is_open: bool, here: Device, tmp_path: Path) -> None:
    """The same answers as torch, and layers led back to modules; an open batch stays open."""
    path, network = saved(tmp_path / "net.pt2", is_open=is_open)
    data = torch.randn(4 if is_open else 2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    with temporary_context([here]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, path)
        (name,) = [tensor["name"] for tensor in _inputs(ctx, compiled)]
        answer = OpenVINOInvoker().run(ctx, compiled, {name: data.numpy()})
        result = OpenVINOProfiler().run(ctx, compiled, input_data={name: data.numpy()})
    with torch.no_grad():
        wanted = network(data).numpy()
    assert np.abs(next(iter(answer.output.values())) - wanted).max() < 1e-5
    assert {"conv", "head"} <= {name for layer in result.layers for name in layer.modules}


def _inputs(ctx: Any, compiled: Any) -> list[dict[str, Any]]:
    run = ctx.client.store.run(compiled.path.run_id)
    assert run.artifacts["exported_program"].file_name == "net.pt2"
    value: list[dict[str, Any]] = run.params["inputs"].value
    return value


class Evil:
    """Would write a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_what_is_in_a_file_is_not_run(here: Device, tmp_path: Path) -> None:
    """A pickled constant is refused by who reads the file, and the refusal is ours."""
    path, _ = saved(tmp_path / "net.pt2", is_open=False)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    config = next(name for name in entries if name.endswith("model_constants_config.json"))
    payload = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    entries[config] = json.dumps({"config": {"lifted": payload}}).encode()
    kept = io.BytesIO()
    pickle.dump(Evil(tmp_path / "ran"), kept)
    entries[config.replace("model_constants_config.json", "custom_obj_0")] = kept.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with temporary_context([here]) as ctx, pytest.raises(CompileError, match=r"cannot become ONNX: .*refused"):
        OpenVINOCompiler().run(ctx, path)
    assert not (tmp_path / "ran").exists()


def test_without_embedl_deploy(here: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the line to type, and the way without."""
    path, _ = saved(tmp_path / "net.pt2", is_open=False)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "embedl_deploy" else find(name))
    words = r"pip install edgeproof-deploy edgeproof-deploy-onnxruntime; or .*torch.onnx.export"
    with temporary_context([here]) as ctx, pytest.raises(CompileError, match=words):
        OpenVINOCompiler().run(ctx, path)


@pytest.mark.parametrize("content", [b"hello", None, {"a/models/model.json": "{}"}, {"a/models/model.json": "["}])
def test_what_is_no_exported_program(content: bytes | dict[str, str] | None, here: Device, tmp_path: Path) -> None:
    """Is told apart from one before anything is started."""
    path = tmp_path / "net.pt2"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    words = "There is no model" if content is None else "is no file of torch.export.save"
    with temporary_context([here]) as ctx, pytest.raises(CompileError, match=words):
        OpenVINOCompiler().run(ctx, path)
