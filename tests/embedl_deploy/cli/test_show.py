"""``embedl-deploy show``: the graph of a file, of two files, and of a model in torch before and after its transform."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.models import residual_net, save
from support.qdq import tensorrt_residual

from embedl_deploy.cli.main import cli
from embedl_deploy.errors import DeployError

NET = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files and a module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show_net.py").write_text(NET)
    save(residual_net(), tmp_path / "float.onnx")
    save(tensorrt_residual(), tmp_path / "int8.onnx")
    return tmp_path


def call(*arguments: str) -> str:
    """Run the command and return what it prints."""
    result = CliRunner().invoke(cli, ["show", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return str(result.output)


def data_of(page: Path) -> dict[str, Any]:
    """Return what the script of a page draws."""
    found = re.search(r'id="graph-data">(.*?)</script>', page.read_text())
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def keys(graph: dict[str, Any]) -> list[str]:
    return [coloring["key"] for coloring in graph["colorings"]]


def test_a_file_becomes_a_page(place: Path) -> None:
    """Beside it, under its name; what it needs is inside."""
    assert call("float.onnx") == "float.onnx.html: float.onnx has 10 nodes\n"
    page = place / "float.onnx.html"
    (graph,) = data_of(page)["graphs"]
    assert len(graph["nodes"]) == 10
    assert not re.search(r'(src|href)="', page.read_text())


def test_two_files_stand_side_by_side(place: Path) -> None:
    """With what differs, as the first thing to color by."""
    facts = json.loads(call("float.onnx", "--against", "int8.onnx", "--html", "both.html", "--json"))
    assert [graph["title"] for graph in facts["graphs"]] == ["float.onnx", "int8.onnx"]
    for graph in data_of(place / "both.html")["graphs"]:
        assert keys(graph)[:2] == ["difference", "precision"]


def test_a_model_in_torch_is_shown_before_and_after(place: Path) -> None:
    """The fused layer keeps the names of its modules, and both sides are colored by the step that did it."""
    call("show_net:small", "--shape", "1x3x8x8", "--backend", "tensorrt")
    before, after = data_of(place / "show_net.small.html")["graphs"]
    assert [node[1] for node in before["nodes"]][:3] == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert len(after["nodes"]) < len(before["nodes"])
    assert "step" in keys(before)
    assert "step 1" in before["colorings"][-1]["values"]
    assert [before["tensors"][place][1] for place in before["inputs"]] == ["float32 [1, 3, 8, 8]"]


def test_a_profile_and_a_verification_color_the_nodes(place: Path) -> None:
    """Time, placement and error come before precision; a node leads to its layer."""
    rows = [{"name": "l", "time_ms": 1.5, "compute_unit": "CPU", "source_nodes": ["conv/0"]}]
    (place / "profile.json").write_text(json.dumps({"layers": {"rows": rows}}))
    (place / "verify.json").write_text(json.dumps({"boundaries": [{"tensor": "c0", "simulated_lsb": 2}]}))
    call("float.onnx", "--profile", "profile.json", "--verification", "verify.json")
    (graph,) = data_of(place / "float.onnx.html")["graphs"]
    assert keys(graph) == ["time", "placement", "error", "precision"]
    assert [coloring["values"][0] for coloring in graph["colorings"][:3]] == [1.5, "CPU", 2.0]
    assert graph["nodes"][0][8] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx"], "cannot be read: No such file"),
        (["show_net.py"], "is not an ONNX model"),
        (["float.onnx", "--profile", "none.json"], "cannot be read as JSON"),
        (["float.onnx", "--profile", "list.json"], "is no document"),
        (["float.onnx", "--profile", "empty.json"], "no layer that names a node of 'float.onnx'"),
        (["float.onnx", "--verification", "empty.json"], "tells errors when it is given --model and --calibration"),
        (["float.onnx", "--html", "no/such/folder.html"], "cannot be written"),
        (["show_net:small", "--shape", "1x3x8x8", "--against", "float.onnx"], "are for ONNX and TFLite files"),
    ],
)
def test_what_cannot_be_shown_is_said(place: Path, arguments: list[str], message: str) -> None:
    (place / "empty.json").write_text("{}")
    (place / "list.json").write_text("[]")
    with pytest.raises(DeployError, match=message):
        call(*arguments)


def test_a_browser_is_opened_only_on_request(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("embedl_deploy.cli.show.webbrowser.open", opened.append)
    call("float.onnx")
    assert opened == []
    call("float.onnx", "--open")
    assert opened == [(place / "float.onnx.html").as_uri()]
