"""Does a decoder in INT8 read and write as it does in float? One calibration, one file for prefill and steps.

A decoder of four layers (grouped-query attention, rotary embeddings, SwiGLU; its cache goes in and comes out) is
trained on Python's help texts and judged on topics that it has not seen: perplexity of the float model, of the
simulated one and of the files in ONNX Runtime; the tokens that simulated model and file write after the same prompts;
the time of a prefill and of a step, INT8 file and float file in turns.

    python benchmarks/deploy/bench_decoder.py [--prompts 8] [--rows 32] [--turns 20] [--json FILE]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from figures import Figure, against, declared
from support.decoder import (
    SHAPES,
    Decoder,
    Size,
    Step,
    call,
    generate,
    perplexity,
    session_step,
    train,
    windows,
)

from embedl_deploy import transform
from embedl_deploy.export import export_onnx, verify_shapes
from embedl_deploy.quantize import quantize

if TYPE_CHECKING:
    from torch import fx

DIALECTS = ("onnxruntime-x86", "onnxruntime-x86-vnni")
PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
TRAINED = 400  # steps: three minutes on one core
WRITTEN = 64
LENGTH = 96
PROOFS = ((1, 1, 0), (1, 64, 0), (1, 1, 31), (1, 1, 128), (4, 16, 16))


def trained() -> Decoder:
    """Return the trained decoder; its weights are kept."""
    torch.manual_seed(0)
    model = Decoder(Size(width=128, layers=4, hidden=352))
    weights = cache.folder("weights") / "decoder.pt"
    if weights.exists():
        model.load_state_dict(torch.load(weights, weights_only=True))
        return model.eval().requires_grad_(False)
    print("decoder: training, three minutes, once ...", file=sys.stderr, flush=True)
    train(model, TRAINED, length=LENGTH, batch=16)
    torch.save(model.state_dict(), weights)
    return model.requires_grad_(False)


def quantized(model: Decoder) -> tuple[fx.GraphModule, fx.GraphModule, tuple[torch.Tensor, ...]]:
    """Return the transformed and the simulated decoder, calibrated on prompts and on steps, and example inputs."""
    rows = windows(LENGTH, 64, is_test=False, seed=5)
    args = call(model, rows[:2, :24], cached=8)
    network = transform(model, args, target=DIALECTS[0], dynamic_shapes=SHAPES).model
    cached = (0, 0, 0, 0, LENGTH - 1, LENGTH - 1, LENGTH // 2, LENGTH // 2)
    data = [call(model, batch, count) for batch, count in zip(torch.split(rows, 8), cached, strict=True)]
    return network, quantize(network, args, forward_loop=data, target=DIALECTS[0]), args


def same(first: list[int], second: list[int]) -> int:
    """Return how many tokens are the same before two texts part."""
    return next((place for place, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]), len(first))


def seconds(step: Step, inputs: tuple[torch.Tensor, ...], calls: int) -> float:
    """Return the time of one call."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        step(*inputs)
    return (time.perf_counter_ns() - start) / calls / 1e6


def turns_of(plain: Step, file: Step, inputs: tuple[torch.Tensor, ...], turns: int, calls: int) -> list[list[float]]:
    """Return times of the INT8 file and the float file, in turns."""
    found: list[list[float]] = [[], []]
    for _ in range(turns + 1):
        found[0].append(seconds(file, inputs, calls))
        found[1].append(seconds(plain, inputs, calls))
    return [times[1:] for times in found]


def main() -> None:
    """Print the figures."""
    parser = report.parser(__doc__)
    parser.add_argument("--prompts", type=int, default=8, help="texts to go on with (%(default)s)")
    parser.add_argument("--rows", type=int, default=32, help="stretches of 128 characters to read (%(default)s)")
    parser.add_argument("--turns", type=int, default=20, help="turns of both files (%(default)s)")
    options = parser.parse_args()
    session = report.Session("decoder", parser, options)
    torch.set_num_threads(1)
    model = trained()
    network, simulated, args = quantized(model)
    test = windows(129, options.rows, is_test=True)
    prompts = windows(32, options.prompts, is_test=True, seed=1)
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        plain = session_step(export_onnx(network, args, folder / "float.onnx", dynamic_shapes=SHAPES))
        reads = {"float": perplexity(model, model, test), "simulated": perplexity(simulated, model, test)}
        writes = {"float": [generate(model, row[None], model.empty_cache(), WRITTEN) for row in prompts]}
        writes["simulated"] = [generate(simulated, row[None], model.empty_cache(), WRITTEN) for row in prompts]
        proofs, sizes = {}, {"float": (folder / "float.onnx").stat().st_size}
        samples = [call(model, windows(new + cached, rows, is_test=True), cached) for rows, new, cached in PROOFS]
        times: dict[str, list[list[float]]] = {}
        for dialect in DIALECTS:
            path = export_onnx(simulated, args, folder / f"{dialect}.onnx", dialect=dialect, dynamic_shapes=SHAPES)
            file = session_step(path)
            sizes[dialect] = path.stat().st_size
            reads[dialect] = perplexity(file, model, test)
            writes[dialect] = [generate(file, row[None], model.empty_cache(), WRITTEN) for row in prompts]
            proofs[dialect] = verify_shapes(path, samples, original=model, simulated=simulated)
            print(f"{dialect}\n{proofs[dialect]}\n")
            times[f"{dialect}, prefill"] = turns_of(plain, file, call(model, test[:1, :128]), options.turns, 5)
            times[f"{dialect}, step"] = turns_of(plain, file, call(model, test[:1], 128), options.turns, 40)
    rows = {dialect: [(row.shape, row.file_db, row.passed) for row in proof.rows] for dialect, proof in proofs.items()}
    measured = Measured(reads, writes, times, sizes, rows)
    session.finish(asdict(measured), figures(measured), packages=PACKAGES)


@dataclass(frozen=True)
class Measured:
    """Every single number."""

    perplexity: dict[str, float]
    written: dict[str, list[list[int]]]
    times_ms: dict[str, list[list[float]]]  # of the INT8 file and the float file
    bytes: dict[str, int]
    proofs: dict[str, list[tuple[str, float, bool]]]  # shape, file against simulated in dB, whether it passed


def figures(data: Measured) -> list[Figure]:
    """Return what is quoted."""
    plain = data.perplexity["float"]
    found = [
        declared(f"perplexity, {name}", "", data.perplexity[name], 0.003, "float", plain).at_most(1.01)
        for name in ("simulated", *DIALECTS)
    ]
    for name in ("float", *DIALECTS):
        counts = [same(*pair) for pair in zip(data.written["simulated"], data.written[name], strict=True)]
        texts = f"of {len(counts)} texts of {WRITTEN} tokens"
        whole = sum(count == WRITTEN for count in counts)
        found.append(declared(f"{texts}, the same in {name} and the simulated model", "", whole, 0.3))
        found.append(
            declared(f"tokens before {name} and the simulated model part, the least {texts}", "", min(counts), 1)
        )
    for name, (ours, theirs) in data.times_ms.items():
        found.append(against(f"one call, {name}, INT8 file", "ms", ours, "float file", theirs))
    return found


if __name__ == "__main__":
    main()
