"""A .pt2 file is data: none that was tampered with runs code, and what torch writes itself still loads."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from embedl_deploy._trace.archive import load_exported
from embedl_deploy.errors import TraceError

Edit = Callable[[bytes], bytes]
COMMAND = "touch ran"


class Planted:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (COMMAND,)  # noqa: TID251 - what a stranger would do


class Net(nn.Module):
    """Has parameters, a buffer, open sizes and a tree of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.conv(x).mean((2, 3)) + self.shift, "z": torch.zeros(x.shape[0] * 2 + 1)}


@pytest.fixture(scope="module")
def saved() -> bytes:
    sizes = {0: torch.export.Dim("batch", min=2, max=9), 2: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Net().eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=(sizes,))
    target = io.BytesIO()
    torch.export.save(program, target)
    return target.getvalue()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edited(saved: bytes, edits: dict[str, Edit]) -> Path:
    """Write an archive with some of its records changed; a name with a plus is a new one."""
    target = Path("tampered.pt2")
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        root = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            content = old.read(name)
            for end, edit in edits.items():
                content = edit(content) if name.endswith(end) else content
            new.writestr(name, content)
        for name, edit in edits.items():
            if name.startswith("+"):
                new.writestr(f"{root}/{name[1:]}", edit(b""))
    return target


def document(change: Callable[[Any], object]) -> Edit:
    def edit(content: bytes) -> bytes:
        found = json.loads(content)
        change(found)
        return json.dumps(found).encode()

    return edit


def text(old: str, new: str) -> Edit:
    def edit(content: bytes) -> bytes:
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return edit


def torch_pickle(_: bytes) -> bytes:
    target = io.BytesIO()
    torch.save(Planted(), target)
    return target.getvalue()


def pickled_weight(found: dict[str, Any]) -> None:
    next(iter(found["config"].values())).update(use_pickle=True, path_name="planted")


def opaque(found: dict[str, Any]) -> None:
    found["config"]["x"] = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}


def hidden_size(found: dict[str, Any]) -> None:
    """A tensor that is called like a field of remarks."""
    size = {"as_expr": {"expr_str": f"__import__('os').system('{COMMAND}')", "hint": None}}
    values = found["graph_module"]["graph"]["tensor_values"]
    values["metadata"] = {**next(iter(values.values())), "sizes": [size]}


def calls(target: str) -> Callable[[Any], object]:
    def change(found: dict[str, Any]) -> None:
        found["graph_module"]["graph"]["nodes"][-1]["target"] = target

    return change


def spec(context: object) -> Callable[[Any], object]:
    tree = {"type": "builtins.dict", "context": json.dumps(context), "children_spec": []}

    def change(found: dict[str, Any]) -> None:
        found["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, tree])

    return change


MODEL = "models/model.json"
RUNS = f"__import__('os').system('{COMMAND}')"


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"sample_inputs/model.pt": torch_pickle}, "pickled objects"),
        ({"weights_config.json": document(pickled_weight), "+data/weights/planted": torch_pickle}, "pickled objects"),
        (
            {"constants_config.json": document(opaque),
             "+data/constants/opaque_obj_0": lambda _: pickle.dumps(Planted())},
            "constant 'x' is a pickled object",
        ),
        ({"+data/weights/model.pt": torch_pickle}, "pickled objects"),
        ({MODEL: text("Symbol('", f"{RUNS} or Symbol('")}, "no arithmetic"),
        ({MODEL: text("Symbol('", "Symbol(S.eval, '")}, "no arithmetic"),
        ({MODEL: text("Integer(2)", "Pow(Integer(10), Integer(1000000000))")}, "power too large"),
        ({MODEL: document(hidden_size)}, "no arithmetic"),
        ({MODEL: document(calls("torch.os.system"))}, "calls 'torch.os.system'"),
        ({MODEL: document(calls("torch.ops.load_library"))}, "calls 'torch.ops.load_library'"),
        ({MODEL: document(calls("torch.ops.higher_order.aoti_call_delegate"))}, "aoti_call_delegate"),
        ({MODEL: document(calls("torch.ops.aten.from_file.default"))}, "from_file"),
        ({MODEL: document(calls("_operator.methodcaller"))}, "methodcaller"),
        ({MODEL: text('"x"', f'"x={RUNS}"')}, "no name"),
        ({MODEL: text('"x"', '"x\\nimport os"')}, "no name"),
        ({MODEL: document(spec({"default_factory_module": "planted"}))}, "module to import"),
        ({MODEL: document(spec([{"__enum__": True, "fqn": "planted:X", "name": "y"}]))}, "module to import"),
        ({"+data/aotinductor/model/x.so": lambda _: b"\x7fELF"}, "no part of one exported program"),
        ({"+models/other.json": lambda _: b"{}"}, "no part of one exported program"),
        ({MODEL: lambda _: b"[" * 100_000}, "cannot be loaded as an exported program: RecursionError"),
        ({MODEL: lambda _: b"{}"}, "cannot be loaded as an exported program: KeyError"),
        ({"archive_version": lambda _: b"99"}, "cannot be loaded as an exported program"),
    ],
)  # fmt: skip
def test_a_planted_file_is_refused_and_runs_nothing(saved: bytes, edits: dict[str, Edit], words: str) -> None:
    """Pickles, expressions, operators, names that become source, imports and libraries."""
    path = edited(saved, edits)
    Path("planted.py").write_text("open('ran', 'w')\n")
    with pytest.raises(TraceError, match=words) as caught:
        load_exported(path)
    assert not Path("ran").exists()
    assert "\n" not in str(caught.value)
    assert "torch.export.save" in str(caught.value)


def test_an_archive_made_to_burst_is_refused(saved: bytes) -> None:
    """What torch writes is stored: what is larger inside than outside is no file of its own."""
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile("big.pt2", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(50 << 20) if name.endswith("weight_0") else old.read(name))
    with pytest.raises(TraceError, match="it says that it holds 5244"):
        load_exported(Path("big.pt2"))


def test_a_shape_without_numbers_is_refused(saved: bytes) -> None:
    """The tensor would be made up, of any size."""

    def grow(found: dict[str, Any]) -> None:
        for payload in found["config"].values():
            payload["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}]

    path = edited(saved, {"weights_config.json": document(grow), "weights/weight_0": lambda _: b""})
    with pytest.raises(TraceError, match="a shape and no numbers"):
        load_exported(path)


def test_what_torch_writes_loads(saved: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With open sizes and trees, also where the environment asks for all pickles; it is as before afterwards."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    Path("net.pt2").write_bytes(saved)
    found = load_exported(Path("net.pt2")).module()(torch.ones(3, 3, 9, 8))
    assert found["y"].shape == (3, 4)
    assert os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD") == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
