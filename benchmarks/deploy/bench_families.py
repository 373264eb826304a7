"""What does an INT8 file give with and without VNNI: how fast is it, how far from float, on each family of processors?

Every file of one network runs in turns, on one thread, in two processes that take turns themselves: this processor as
it is, and with what came after AVX2 hidden from ONNX Runtime (`masked`), so that it takes the kernels of older ones. A
processor that has nothing to hide runs as it is alone.
The least CPU time counts, as a ratio to the float file on the same kernels. "simulated" is the fake-quant model.

    python benchmarks/deploy/bench_families.py [--only NET ...] [--turns 30] [--families host x86-avx2] [--json FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import numpy as np
import report
from deploy import files, masked, nets, peers, scoring
from figures import Figure, bounded, least
from report import print_table

FLOAT, SIMULATED = "float", "simulated"
HOST = "host"
PICTURES = 8
SEEN_SEED = 77
PACKAGES = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")
OURS = {
    "portable": "onnxruntime-x86",
    "vnni": "onnxruntime-x86-vnni",
    "arm": "onnxruntime-arm",
}
OPPONENTS = (peers.ORT, peers.ORT_REDUCED, peers.ORT_U8U8, peers.ORT_S8S8)
DEFAULT = ("resnet50", "mobilenet_v2", "vit_6x384", *nets.PLAIN)


def made(name: str, folder: Path, chosen: list[peers.Peer], *, keep: bool) -> dict[str, dict[str, Any]]:
    """Write a network's files: ours anew, the opponents' kept from run to run."""
    paths = {"float_onnx": folder / "float.onnx", "program": folder / "float.pt2", "calibration": folder / "in.npz"}
    keep = keep and all(path.exists() for path in paths.values())
    if not keep:
        files.write(name, folder, count=PICTURES)
    sources = {key: str(path) for key, path in paths.items()}
    files.save(folder / "seen.npz", nets.inputs_for(name, PICTURES, SEEN_SEED))
    ours = {candidate: folder / f"{candidate}.onnx" for candidate in OURS}
    print(f"{name}: ours quantizes ...", file=sys.stderr, flush=True)
    dialects = {OURS[candidate]: str(path) for candidate, path in ours.items()}
    done = peers.quantize(
        peers.OURS, sources, folder / "ours.onnx", net=name, dialects=dialects, judge=str(folder / "seen.npz")
    )  # fmt: skip
    rows = {FLOAT: {"file": str(paths["float_onnx"])}}
    rows |= {candidate: {**done, "file": str(path)} for candidate, path in ours.items()}
    for peer in chosen:
        out = folder / f"{peer.name.replace(' ', '-')}.onnx"
        stored = out.with_suffix(".figures.json")
        if not (keep and stored.exists()):
            print(f"{name}: {peer.name} quantizes ...", file=sys.stderr, flush=True)
            figures_of = peers.quantize(peer, sources, out, net=name, transformer="vit" in name)
            stored.write_text(json.dumps(figures_of))
        rows[peer.name] = {**json.loads(stored.read_text()), "file": str(out)}
    return rows


class Runner:
    """ONNX Runtime on one family, in a process of its own."""

    def __init__(self, family: str, candidates: dict[str, str], inputs: Path, folder: Path) -> None:
        self._answers = folder / f"answers-{family}.npz"
        job = folder / f"job-{family}.json"
        job.write_text(json.dumps({"files": candidates, "inputs": str(inputs), "answers": str(self._answers)}))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("family_worker.py")), str(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=masked.environment(family),
        )  # fmt: skip
        self.found = self._read()

    def turn(self) -> dict[str, float]:
        """Run every file once and return the milliseconds of each."""
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
        return self._read()

    def close(self) -> dict[str, np.ndarray]:
        """End it and return the answers of every file."""
        self._process.communicate(timeout=60)
        with np.load(self._answers) as stored:
            return {name: stored[name] for name in stored.files}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(said)
        return answer


def judge(
    name: str, turns: int, families: list[str], chosen: list[peers.Peer], *, keep: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Return the rows of one network by candidate, and what the probe said on each family."""
    folder = cache.folder("families", name)
    rows = made(name, folder, chosen, keep=keep)
    with np.load(folder / "seen.npz") as stored:
        np.save(folder / "seen.npy", stored[files.INPUT])
    candidates = {candidate: row["file"] for candidate, row in rows.items() if "failed" not in row}
    runners = {family: Runner(family, candidates, folder / "seen.npy", folder) for family in families}
    times: dict[str, list[dict[str, float]]] = {family: [] for family in families}
    for turn in range(turns + 1):
        for family in families if turn % 2 else reversed(families):
            spent = runners[family].turn()
            if turn:
                times[family].append(spent)
    answers = {family: runner.close() for family, runner in runners.items()}
    wanted = answers[families[0]][FLOAT]
    for family, runner in runners.items():
        for candidate, why in runner.found["failed"].items():
            rows[candidate]["failed"] = f"{family}: {why}"
    for candidate, row in rows.items():
        if "failed" in row:
            continue
        row["families"] = {}
        for family in families:
            spent_ms = [turn[candidate] for turn in times[family]]
            row["families"][family] = {
                "ms": min(spent_ms),
                "speed_up": min(turn[FLOAT] for turn in times[family]) / min(spent_ms),
                "sqnr_db": scoring.sqnr(wanted, answers[family][candidate]),
                "turns_ms": [round(value, 4) for value in spent_ms],
            }
        first, *others = (answers[family][candidate] for family in families)
        row["largest_difference"] = max((float(np.abs(first - other).max()) for other in others), default=0.0)
    with np.load(folder / "ours.simulated.npz") as stored:
        rows[SIMULATED] = {"sqnr_db": scoring.sqnr(wanted, stored["output"])}
    # How much of the answer is about the picture: what stays the same from picture to picture needs no network.
    own = wanted - wanted.mean(axis=0, keepdims=True)
    rows[FLOAT]["about_the_picture"] = float(np.square(own).sum()) / float(np.square(wanted).sum())
    return rows, {family: runner.found["probe"]["total"] for family, runner in runners.items()}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: each file's speed next to float's on the same kernels, and its distance from float."""
    quoted = []
    for name, rows in data["nets"].items():
        for candidate, row in rows.items():
            if candidate in (FLOAT, SIMULATED) or "failed" in row:
                continue
            for family, found in row["families"].items():
                plain = rows[FLOAT]["families"][family]["turns_ms"]
                what = f"{name}: {candidate}, {family}"
                quoted.append(least(what, "ms", found["turns_ms"], "float", plain))
                quoted.append(bounded(f"{what}, distance from float", "dB", found["sqnr_db"], 0.5))
    return quoted


def line(name: str, candidate: str, row: dict[str, Any], families: list[str]) -> list[str]:
    """Return one row of the table."""
    if "failed" in row:
        return [name, candidate, *[row["failed"][:60]] * len(families), "-"]
    if candidate == SIMULATED:
        return [name, candidate, *[f"{row['sqnr_db']:.1f} dB"] * len(families), "-"]
    cells = []
    for family in families:
        found = row["families"][family]
        cells.append(f"{found['speed_up']:.2f}x, {found['sqnr_db']:.1f} dB, {found['ms']:.2f} ms")
    return [name, candidate, *cells, f"{row['largest_difference']:.2g}"]


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    everything = [*nets.TIMED, *nets.PLAIN, *nets.TOYS]
    parser.add_argument("--only", nargs="+", choices=everything, default=list(DEFAULT))
    hidden = ["x86-avx2"] if report.family_here() == "x86-vnni" else []
    parser.add_argument("--families", nargs="+", choices=[HOST, *masked.HIDDEN], default=[HOST, *hidden])
    parser.add_argument("--without-peers", action="store_true", help="our files alone")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--fresh", action="store_true", help="let the opponents quantize again")
    options = parser.parse_args()
    session = report.Session("families", parser, options)
    chosen, told = peers.ready([] if options.without_peers else list(OPPONENTS))
    data: dict[str, Any] = {"turns": options.turns, "families": {}, "nets": {}}
    rows: list[list[str]] = []
    for name in options.only:
        judged, probed = judge(name, options.turns, options.families, chosen, keep=not options.fresh)
        data["families"] |= probed
        data["nets"][name] = files.told(judged | peers.rows_of_missing(told))
        rows += [line(name, candidate, row, options.families) for candidate, row in judged.items()]
    print_table(("net", "file", *options.families, "largest difference between families"), rows)
    session.finish(data, figures(data), packages=PACKAGES, peers=told)


if __name__ == "__main__":
    main()
