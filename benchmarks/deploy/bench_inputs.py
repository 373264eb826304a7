"""Is there an input on which a portable INT8 file answers otherwise on another x86 processor?

Ten small networks, each as a portable file and, for comparison, as one that uses all 8 bits of its weights. Inputs are
extremes beyond the input's format both ways, matched filters of every channel of the first layer, what a random climb
towards the largest pair of products of each layer finds, and noise of all strengths. All boundaries of all runs are
compared: between families where every kernel is an integer one, else kernel by kernel with integer arithmetic.

    python benchmarks/deploy/bench_inputs.py [--only NET ...] [--inputs 200] [--json FILE]
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import numpy as np
import onnx
import onnxruntime
import report
import torch
from deploy import masked, nets
from figures import Figure, declared
from onnx import helper
from report import print_table
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import set_backend
from embedl_deploy.dialect._portable import is_paired, to_matrix
from embedl_deploy.export import export_onnx
from embedl_deploy.integer import IntegerModel
from embedl_deploy.quantize import quantize
from embedl_kernels import can_saturate

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedl_deploy.dialect._fuse import Kernel

FAMILIES = ("x86-avx512", "x86-avx2", "x86-sse")
PORTABLE, WHOLE = "onnxruntime-x86", "onnxruntime-x86-vnni"
SIZE, INPUT, MARGIN = 32, "x", 3.0
CLIMBS, STEPS = 12, 12
COMPUTED = 12
HIGHEST = 32767
PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")


def _cnn(*widths: int, kernel: int = 3, groups: int = 1) -> nn.Module:
    """Build convolutions with batch norm and ReLU, each halving the picture but the first."""
    layers: list[nn.Module] = []
    before = 3
    for index, width in enumerate(widths):
        layers += [nets._conv_bn(before, width, kernel, 2 if index else 1, groups if index else 1), nn.ReLU()]  # noqa: SLF001
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class _Next(nn.Module):
    """ConvNeXt's block with batch norm for its layer norm: depthwise 7×7, wide, narrow, and the input added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nets._conv_bn(width, width, 7, groups=width)  # noqa: SLF001
        self.wide, self.act, self.narrow = nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(self.depthwise(x))))  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": nets.ResNet20,
    "mobilenet": nets.MobileNet,
    "vit": lambda: nets.ViT(32, 4, 96, 3, 3, 10),
    "unet": lambda: nets.UNet(8, 2, 5),
    "convnext": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), _Next(32), _Next(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    ),
    "cnn": lambda: _cnn(16, 32, 64),
    "cnn 5x5": lambda: _cnn(12, 24, 48, kernel=5),
    "cnn 1x1": lambda: _cnn(32, 64, 64, kernel=1),
    "cnn grouped": lambda: _cnn(32, 64, 64, groups=4),
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
}


def written(name: str, folder: Path) -> dict[str, Path]:
    """Quantize a network with random weights and write it in both dialects."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = NETS[name]()
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        nets.settle(model, SIZE)
    model.eval()
    pictures = nets.pictures(8, SIZE)
    example = (pictures[:1],)
    set_backend("onnxruntime")
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fused = transform(model, example).model
        quantized = quantize(fused, example, None, [(picture[None],) for picture in pictures])
        for dialect in (PORTABLE, WHOLE):
            found[dialect] = folder / f"{dialect}.onnx"
            export_onnx(quantized, example, str(found[dialect]), dialect=dialect, input_names=[INPUT])
    return found


class File:
    """A file whose every boundary can be looked at, here."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        self.integer = IntegerModel(model)
        self.names = self.integer.qdq.integers
        outputs = [value.name for value in model.graph.output]
        known = set(outputs)
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in self.names.values() if name not in known
        )
        self.tapped = path.with_suffix(".tapped.onnx")
        onnx.save(model, self.tapped)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(self.tapped, options, providers=["CPUExecutionProvider"])
        qdq = self.integer.qdq
        self.paired = [kernel for kernel in self.integer.kernels if is_paired(kernel, qdq)]
        self.is_whole = all(kernel.integer for kernel in self.integer.kernels if kernel.node.op_type != "Identity")

    def codes(self, kernel: Kernel) -> np.ndarray:
        """Return a layer's weights as (groups, channels, K)."""
        return to_matrix(kernel.node, self.integer.qdq.weights[kernel.node.input[1]].values)

    def levels(self, kernel: Kernel) -> int:
        """Return the largest integer that a layer's input can have: less than 255 behind a Clip that says so."""
        qdq = self.integer.qdq
        boundary = qdq.edges[kernel.node.name, 0]
        tensor, params = qdq.tensor_of[boundary], qdq.params[boundary]
        makers = {output: node for node in qdq.graph.node for output in node.output}
        maker = makers.get(tensor)
        if maker is None or maker.op_type != "Clip":
            return 255
        high = float(onnx.numpy_helper.to_array(qdq.constants()[maker.input[2]]))
        return min(255, int(np.rint(high / float(params.scale))) + int(params.zero_point))

    def largest_pair(self, kernel: Kernel, feed: np.ndarray) -> int:
        """Return the largest sum of two neighboring products, either sign, that a layer adds up for an input."""
        name = self.names[self.integer.qdq.edges[kernel.node.name, 0]]
        values = torch.from_numpy(self.session.run([name], {INPUT: feed})[0].astype(np.float32))
        codes = self.codes(kernel).astype(np.float32)
        groups, _, length = codes.shape
        if kernel.node.op_type == "Conv":
            attributes = {one.name: helper.get_attribute_value(one) for one in kernel.node.attribute}
            shape = self.integer.qdq.weights[kernel.node.input[1]].values.shape[2:]
            pads = list(attributes.get("pads", [0, 0, 0, 0]))
            zero = float(self.integer.qdq.params[self.integer.qdq.edges[kernel.node.name, 0]].zero_point)
            values = nn.functional.pad(values, (pads[1], pads[3], pads[0], pads[2]), value=zero)
            columns = nn.functional.unfold(values, shape, stride=tuple(attributes.get("strides", [1, 1])))
            places = int(np.prod(shape))
            rows = columns[0].reshape(groups, -1, places, columns.shape[-1]).permute(0, 3, 2, 1)
            rows = rows.reshape(groups, columns.shape[-1], length)
        else:
            rows = values.reshape(1, -1, length)
        found = 0
        for group in range(groups):
            even = length - length % 2
            x = rows[group][:, :even].reshape(rows.shape[1], -1, 2).permute(1, 0, 2)
            w = torch.from_numpy(codes[group][:, :even]).reshape(codes.shape[1], -1, 2).permute(1, 2, 0)
            found = max(found, int(torch.bmm(x, w).abs().max()) if even else 0)
        return found


def inputs_for(file: File, count: int, random: np.random.Generator) -> tuple[np.ndarray, int]:
    """Return inputs that try to break a file, and the largest pair of products that was found on the way."""
    boundary = next(name for name, tensor in file.integer.qdq.tensor_of.items() if tensor == INPUT)
    params = file.integer.qdq.params[boundary]
    low = -float(params.zero_point) * float(params.scale)
    high = (255 - float(params.zero_point)) * float(params.scale)
    shape = (3, SIZE, SIZE)
    checks = (np.indices(shape).sum(0) % 2).astype(np.float32)
    made: list[np.ndarray] = [np.full(shape, MARGIN * end, np.float32) for end in (low, high)]
    made += [np.where(np.roll(checks, shift, 2), MARGIN * high, MARGIN * low) for shift in (0, 1)]
    for tiled in _filters(file):
        made += [np.where(tiled > 0, high, low), np.where(tiled < 0, high, low)]
    largest = 0
    picked = random.permutation(len(file.paired))[:CLIMBS]
    for kernel in (file.paired[index] for index in picked):
        best = np.where(random.random(shape) < 0.5, high, low).astype(np.float32)
        reached = file.largest_pair(kernel, best[None])
        for _ in range(STEPS):
            trial = best.copy()
            top, left, size = (int(random.integers(least, SIZE)) for least in (0, 0, 2))
            block = trial[:, top : top + size, left : left + size]
            block[...] = np.where(random.random(block.shape) < random.random(), high, low)
            if (found := file.largest_pair(kernel, trial[None])) > reached:
                best, reached = trial, found
        made.append(best)
        largest = max(largest, reached)
    while len(made) < count:
        strength = float(np.exp(random.uniform(np.log(0.05), np.log(20))))
        made.append(random.normal(size=shape) * strength * (high - low) / 4)
    return np.stack(made[:count]).astype(np.float32), largest


def _filters(file: File) -> list[np.ndarray]:
    """Return the weights of every channel of the first layer over the whole picture."""
    if not file.paired:
        return []
    first = file.paired[0]
    values = file.integer.qdq.weights[first.node.input[1]].values
    if values.ndim == 4 and values.shape[1] == 3:
        tall, wide = (-(-SIZE // size) for size in values.shape[2:])
        return [np.tile(channel, (1, tall, wide))[:, :SIZE, :SIZE] for channel in values]
    codes = file.codes(first)[0]
    return [row.reshape(3, SIZE, SIZE) for row in codes] if codes.shape[-1] == 3 * SIZE * SIZE else []


_WORKER = """
import hashlib, json, sys
import numpy, onnxruntime
job = json.loads(open(sys.argv[1]).read())
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
inputs, answers = numpy.load(job["inputs"]), {}
for path in job["files"]:
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    rows, kept, results = [], [], []
    for number, picture in enumerate(inputs):
        found = session.run(None, {"x": picture[None]})
        rows.append([hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in found])
        results.append(found[0])
        if number % job["every"] == 0:
            kept.append(dict(zip(names, found)))
    numpy.savez(path + "." + job["family"] + ".npz", results=numpy.stack(results), **{
        "%d|%s" % (number, name): array for number, one in enumerate(kept) for name, array in one.items()})
    answers[path] = {"names": names, "rows": rows}
print(json.dumps(answers))
"""


def asked(family: str, paths: list[Path], inputs: Path, folder: Path, every: int) -> dict[str, Any]:
    """Run files on a family; returns the digest of every tensor of every run."""
    job = folder / f"job-{family}.json"
    words = {"files": [str(path) for path in paths], "inputs": str(inputs), "family": family, "every": every}
    job.write_text(json.dumps(words))
    done = masked.run(
        [sys.executable, "-c", _WORKER, str(job)], family, stdout=subprocess.PIPE, text=True, timeout=1800
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def kernels_off(file: File, stored: Path, inputs: np.ndarray, every: int) -> tuple[int, int]:
    """Return how many integer kernels were checked with integer arithmetic, run by run, and how many differed."""
    integers = {kernel.boundary for kernel in file.integer.kernels if kernel.integer}
    checked = off = 0
    with np.load(stored) as held:
        for number, picture in enumerate(inputs[::every]):
            given = {boundary: held[f"{number}|{tensor}"] for boundary, tensor in file.names.items()}
            made = file.integer.run({INPUT: picture[None]}, given)
            for boundary, values in given.items():
                if boundary in made.boundaries and boundary in integers:
                    checked += 1
                    off += not np.array_equal(values, made.boundaries[boundary])
    return checked, off


def judge(name: str, count: int) -> dict[str, Any]:
    """Return what one network's files gave on all families."""
    folder = cache.folder("inputs", name.replace(" ", "-"))
    opened = {dialect: File(path) for dialect, path in written(name, folder).items()}
    portable, whole = opened[PORTABLE], opened[WHOLE]
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    inputs, largest = inputs_for(portable, count, np.random.default_rng(seed))
    _, largest_whole = inputs_for(whole, 1, np.random.default_rng(seed))
    np.save(folder / "inputs.npy", inputs)
    every = max(1, len(inputs) // COMPUTED)
    paths = [file.tapped for file in opened.values()]
    said = {family: asked(family, paths, folder / "inputs.npy", folder, every) for family in ("host", *FAMILIES)}
    row: dict[str, Any] = {
        "inputs": len(inputs),
        "paired_layers": len(portable.paired),
        "pairs_that_can_saturate": int(
            sum(can_saturate(portable.codes(one), portable.levels(one)).sum() for one in portable.paired)
        ),
        "largest_pair": largest,
        "largest_pair_8_bits": largest_whole,
        "all_integer": portable.is_whole,
        "families": {},
    }
    for family in FAMILIES:
        differ = {}
        for dialect, file in opened.items():
            here, there = (said[one][str(file.tapped)]["rows"] for one in ("host", family))
            differ[dialect] = sum(one != other for one, other in zip(here, there, strict=True))
        stored = [Path(f"{portable.tapped}.{one}.npz") for one in ("host", family)]
        with np.load(stored[0]) as here_held, np.load(stored[1]) as there_held:
            results = here_held["results"], there_held["results"]
        checked, off = kernels_off(portable, stored[1], inputs, every)
        row["families"][family] = {
            "runs_that_differ": differ[PORTABLE],
            "runs_that_differ_8_bits": differ[WHOLE],
            "largest_difference": float(np.abs(results[0] - results[1]).max()),
            "largest_output": float(np.abs(results[0]).max()),
            "kernels_checked": checked,
            "kernels_off": off,
        }
    return row


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: all of it must be 0, but what the 8-bit files do."""
    rows = data["nets"].values()
    families = [found for row in rows for found in row["families"].values()]
    whole = [found for row in rows if row["all_integer"] for found in row["families"].values()]
    runs = sum(row["inputs"] * len(row["families"]) for row in rows)
    cut = sum(found["runs_that_differ_8_bits"] for row in rows for found in row["families"].values())
    return [
        declared("pairs of a portable file that some input saturates", "", _sum(rows, "pairs_that_can_saturate"), 0.0)
        .at_most(0),
        declared("integer kernels that differ from integer arithmetic", "", _sum(families, "kernels_off"), 0.0)
        .at_most(0),
        declared("runs of integer networks that differ between families", "", _sum(whole, "runs_that_differ"), 0.0)
        .at_most(0),
        declared("largest pair of products found by a climb", "", max(row["largest_pair"] for row in rows), 0.0)
        .at_most(HIGHEST),
        declared("the same with all 8 bits", "", max(row["largest_pair_8_bits"] for row in rows), 0.1),
        declared(f"runs of 8-bit files that differ between families, of {runs:,}", "", cut, 0.1),
    ]  # fmt: skip


def _sum(rows: Any, key: str) -> int:  # noqa: ANN401
    return int(sum(row[key] for row in rows))


TITLES = (
    "net", "inputs", "layers", "can saturate", "largest pair", "8 bits", "family", "runs off", "8 bits", "largest off",
    "kernels off",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--inputs", type=int, default=200, help="inputs of each network")
    options = parser.parse_args()
    session = report.Session("inputs", parser, options)
    data: dict[str, Any] = {"inputs": options.inputs, "nets": {}}
    lines = []
    for name in options.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        row = data["nets"][name] = judge(name, options.inputs)
        for family, found in row["families"].items():
            lines.append([
                name + ("" if row["all_integer"] else " (float between)"), str(row["inputs"]),
                str(row["paired_layers"]), str(row["pairs_that_can_saturate"]), str(row["largest_pair"]),
                str(row["largest_pair_8_bits"]), family, str(found["runs_that_differ"]),
                str(found["runs_that_differ_8_bits"]),
                f"{found['largest_difference']:.2g} of {found['largest_output']:.2g}",
                f"{found['kernels_off']}/{found['kernels_checked']}",
            ])  # fmt: skip
    print_table(TITLES, lines)
    session.finish(data, figures(data), packages=PACKAGES)


if __name__ == "__main__":
    main()
