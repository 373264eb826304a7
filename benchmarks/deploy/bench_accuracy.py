"""What does INT8 cost in accuracy on networks trained here, as they are and with their channels rescaled on purpose?

Every candidate calibrates on the same 128 training pictures; the files run in ONNX Runtime on the test set. "drop" is
in points against float. "parity" compares our fake-quant model in torch with our file in ONNX Runtime, which no peer
states for its own: signal-to-noise ratio and agreement of the answers, then the ratio for our integer reference
(200 dB: equal to the last bit).

    python benchmarks/deploy/bench_accuracy.py [--only NET ...] [--fresh] [--json FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from deploy import files, nets, peers, scoring
from figures import Figure, bounded
from report import print_table

from embedl_deploy.integer import IntegerModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT = "float"
JUDGED = 1000
COMPUTED = 4
PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")


def judge(name: str, chosen: list[peers.Peer], *, rescaled: bool, keep: bool) -> dict[str, dict[str, Any]]:
    """Quantize one network with every candidate and judge the files on the test set."""
    folder = cache.folder("accuracy", name + ("-rescaled" if rescaled else ""))
    tensors = files.test_pictures(name)
    pictures, classes = tensors[0].numpy(), tensors[1].numpy()
    seen = folder / "judged.npz"
    files.save(seen, tensors[0][:JUDGED])
    rows: dict[str, dict[str, Any]] = {FLOAT: {"file": str(folder / "float.onnx")}}
    rows |= files.candidates(name, folder, chosen, rescaled=rescaled, keep=keep, judge=str(seen))
    wanted: NDArray[np.float32] | None = None
    for row in rows.values():
        if "failed" in row:
            continue
        try:
            got = scoring.outputs(scoring.session(Path(row["file"])), pictures, 100)
        except Exception as error:  # noqa: BLE001 - a file the runtime refuses is a row that says so
            row["failed"] = f"{type(error).__name__}: {str(error)[:120]}"
            continue
        wanted = got if wanted is None else wanted
        row["right"] = float((got.argmax(1) == classes).mean()) * 100
        row["drop"] = rows[FLOAT]["right"] - row["right"]
        row["sqnr_db"] = scoring.sqnr(wanted, got)
        simulated = Path(row["file"]).with_suffix(".simulated.npz")
        if simulated.exists():
            with np.load(simulated) as stored:
                row.update(parity(stored["output"], got[:JUDGED]))
            row["integer_db"] = integers(Path(row["file"]), pictures[:COMPUTED])
    return rows


def parity(simulated: NDArray[np.float32], got: NDArray[np.float32]) -> dict[str, float]:
    """Compare what was simulated with what runs."""
    return {
        "parity_db": scoring.sqnr(simulated, got),
        "parity_agree": float((simulated.argmax(1) == got.argmax(1)).mean()) * 100,
    }


def integers(file: Path, pictures: NDArray[np.float32]) -> float:
    """Compare what the integer reference computes with what runs; 200 dB stands for equal to the last bit."""
    (computed,) = IntegerModel(file).run({files.INPUT: pictures}).outputs.values()
    return scoring.sqnr(scoring.outputs(scoring.session(file), pictures, len(pictures)), computed)


def line(name: str, candidate: str, row: dict[str, Any]) -> list[str]:
    """Return one row of the table."""
    if "failed" in row:
        return [name, candidate, "failed", "-", "-", row["failed"][:80]]
    same = ""
    if "parity_db" in row:
        same = f"{row['parity_db']:.1f} dB, {row['parity_agree']:.2f} %; {row['integer_db']:.0f} dB"
    away = "-" if candidate == FLOAT else f"{row['sqnr_db']:.1f}"
    return [name, candidate, f"{row['right']:.2f}", f"{row['drop']:+.2f}", away, same]


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: the points lost, and how near our simulation is to what runs."""
    made = []
    for name, rows in data["nets"].items():
        for candidate, row in rows.items():
            if candidate != FLOAT and "failed" not in row:
                made.append(bounded(f"{name}: {candidate}, accuracy lost", "points", row["drop"], 0.2, FLOAT))
            if "parity_agree" in row:
                made.append(bounded(f"{name}: {candidate}, simulated as it runs", "%", row["parity_agree"], 0.1))
    return made


TITLES = ("net", "candidate", "right, %", "drop", "SQNR, dB", "parity")


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=nets.TRAINED, default=list(nets.TRAINED))
    parser.add_argument("--candidates", nargs="*", help="names; all unless told")
    parser.add_argument("--fresh", action="store_true", help="let the peers quantize again")
    options = parser.parse_args()
    everyone = [peers.OURS, peers.OURS_CURED, *peers.PEERS]
    session = report.Session("accuracy", parser, options)
    chosen, told = peers.ready(
        [peer for peer in everyone if options.candidates is None or peer.name in options.candidates]
    )
    data: dict[str, Any] = {"weights": {name: files.digest_of(name) for name in options.only}, "nets": {}}
    rows: list[list[str]] = []
    for name in options.only:
        for rescaled in (False, True):
            judged = judge(name, chosen, rescaled=rescaled, keep=not options.fresh)
            title = name + (", rescaled" if rescaled else "")
            judged |= peers.rows_of_missing(told)
            data["nets"][title] = files.told(judged)
            rows += [line(title, candidate, row) for candidate, row in judged.items()]
    print_table(TITLES, rows)
    session.finish(data, figures(data), packages=PACKAGES, peers=told)


if __name__ == "__main__":
    main()
