"""Write a network as every candidate wants it, and collect the candidates' quantized files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cache
import numpy as np
import torch
from deploy import data, nets, peers

if TYPE_CHECKING:
    from torch import nn

TIMED_PICTURES = 16
TRAINED_PICTURES = 128
INPUT = "x"


def build(name: str, *, rescaled: bool = False) -> nn.Module:
    """Build a network: random weights for the timed ones, stored weights for the trained ones."""
    if name not in nets.TRAINED:
        return nets.timed(name)
    model = nets.TRAINED[name]()
    model.load_state_dict(torch.load(weights_of(name), weights_only=True))
    return nets.rescaled(model.eval()) if rescaled else model.eval()


def weights_of(name: str) -> Path:
    """Return a trained network's weights, training it first if they are not here: minutes on a GPU or on cores."""
    weights = cache.folder("weights") / f"{name}.pt"
    if not weights.exists():
        print(f"{name}: training, about ten minutes, once ...", file=sys.stderr, flush=True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        script = Path(__file__).with_name("train.py")
        subprocess.run([sys.executable, str(script), "--only", name, "--device", device], check=True, timeout=3600)
    return weights


def digest_of(name: str) -> str:
    """Return what tells a trained network's weights from others."""
    return hashlib.sha256(weights_of(name).read_bytes()).hexdigest()[:16]


def calibration_pictures(name: str, count: int | None = None) -> torch.Tensor:
    """Return what a network is calibrated on: made-up pictures for the timed ones, training pictures for the others."""
    if name not in nets.TRAINED:
        return nets.inputs_for(name, count or TIMED_PICTURES)
    count = count or TRAINED_PICTURES
    sheets = data.fetch(cache.folder("cifar10"))
    pictures = data.normalize(torch.from_numpy(data.sheet(sheets / "data_batch_1.png")[:count]))
    if name == "segmentation":
        return data.segmented(pictures, torch.Generator().manual_seed(2))[0]
    return pictures


def test_pictures(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pictures a trained network is judged on, and their classes."""
    pictures, classes = data.test_set(data.fetch(cache.folder("cifar10")))
    if name != "segmentation":
        return data.normalize(pictures), classes
    return data.segmented(data.normalize(pictures[:1000]), torch.Generator().manual_seed(3))


def save(path: Path, pictures: torch.Tensor) -> None:
    """Store pictures under the name of the network's input."""
    named: dict[str, Any] = {INPUT: pictures.numpy()}
    np.savez(path, **named)


def write(name: str, folder: Path, *, rescaled: bool = False, count: int | None = None) -> dict[str, str]:
    """Write the float ONNX file, the exported program and the calibration pictures; trained ones take any batch."""
    model = build(name, rescaled=rescaled)
    pictures = calibration_pictures(name, count)
    dynamic = name in nets.TRAINED
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    paths = {"float_onnx": folder / "float.onnx", "program": folder / "float.pt2", "calibration": folder / "in.npz"}
    save(paths["calibration"], pictures)
    example = (pictures[: 2 if dynamic else 1],)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, example, dynamic_shapes=shapes)
        torch.export.save(program, paths["program"])
        torch.onnx.export(
            model, example, paths["float_onnx"], dynamo=True, input_names=[INPUT], external_data=False, verbose=False,
            dynamic_shapes=shapes,
        )  # fmt: skip
    return {key: str(path) for key, path in paths.items()}


def candidates(
    name: str,
    folder: Path,
    chosen: list[peers.Peer],
    *,
    rescaled: bool = False,
    keep: bool = True,
    **options: Any,  # noqa: ANN401
) -> dict[str, dict[str, Any]]:
    """Let every candidate quantize a network; peers' files are kept from run to run, ours is always made anew."""
    sources = {key: str(folder / file) for key, file in _FILES.items()}
    if not (keep and all((folder / file).exists() for file in _FILES.values())):
        sources = write(name, folder, rescaled=rescaled)
    found: dict[str, dict[str, Any]] = {}
    for peer in chosen:
        out = folder / f"{_stem(peer)}.onnx"
        stored = folder / f"{_stem(peer)}.figures.json"
        if keep and peer.environment.packages and stored.exists():
            found[peer.name] = json.loads(stored.read_text())
            continue
        print(f"{name}: {peer.name} quantizes ...", file=sys.stderr, flush=True)
        settings = {
            "net": name,
            "rescaled": rescaled,
            "dynamic": name in nets.TRAINED,
            "transformer": name.startswith(("vit", "text")),
        }
        found[peer.name] = peers.quantize(peer, sources, out, **settings, **options) | {"file": str(out)}
        if "failed" not in found[peer.name]:
            stored.write_text(json.dumps(found[peer.name]))
    return found


def told(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows as a result file keeps them: without where the files were."""
    return {name: {key: value for key, value in row.items() if key != "file"} for name, row in rows.items()}


def _stem(peer: peers.Peer) -> str:
    """Return a candidate's name as it is in file names."""
    return peer.name.replace(",", "").replace(" ", "-")


_FILES = {"float_onnx": "float.onnx", "program": "float.pt2", "calibration": "in.npz"}
