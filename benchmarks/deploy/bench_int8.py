"""Whose INT8 file is fastest in ONNX Runtime, how far is it from float, and how much of it really runs in integers?

Every candidate's file of one network is loaded in one process, on one thread, and run in turns; the least CPU time
counts, as a ratio to the float file. "integer" counts convolutions and linears in the graph that ONNX Runtime's
optimizer leaves; "Q+DQ" are those left inside the graph.

    python benchmarks/deploy/bench_int8.py [--only NET ...] [--rounds 60] [--fresh] [--json FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from deploy import files, nets, peers, scoring
from figures import Figure, bounded, least
from report import print_table

FLOAT = "float"
PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")


def judge(name: str, rounds: int, chosen: list[peers.Peer], *, keep: bool) -> dict[str, dict[str, Any]]:
    """Quantize one network with every candidate, then race and read the files."""
    folder = cache.folder("int8", name)
    rows: dict[str, dict[str, Any]] = {FLOAT: {"file": str(folder / "float.onnx")}}
    rows |= files.candidates(name, folder, chosen, keep=keep)
    seen = nets.inputs_for(name, 8, seed=77).numpy()
    sessions = {}
    for candidate, row in rows.items():
        if "failed" in row:
            continue
        try:
            sessions[candidate] = scoring.session(Path(row["file"]))
            row["coverage"] = scoring.coverage(Path(row["file"])).as_dict()
        except Exception as error:  # noqa: BLE001 - a file the runtime refuses is a row that says so
            row["failed"] = f"{type(error).__name__}: {str(error)[:120]}"
            sessions.pop(candidate, None)
    results = {candidate: scoring.outputs(opened, seen, 1) for candidate, opened in sessions.items()}
    times = scoring.race(sessions, seen[:1], rounds)
    for candidate, of_rounds in times.items():
        rows[candidate] |= {
            "ms": min(of_rounds),
            "speed_up": min(times[FLOAT]) / min(of_rounds),
            "rounds_ms": [round(value, 4) for value in of_rounds],
            "sqnr_db": scoring.sqnr(results[FLOAT], results[candidate]),
        }
    return rows


def line(name: str, candidate: str, row: dict[str, Any], best: float) -> list[str]:
    """Return one row of the table."""
    if "failed" in row:
        return [name, candidate, "failed", "-", "-", "-", "-", row["failed"][:70]]
    counts = row["coverage"]
    left = ", ".join(f"{count} {op}" for op, count in counts["float_ops"].items())
    attention = counts["attention_integer"] + counts["attention_float"]
    return [
        name,
        candidate,
        f"{row['speed_up']:.2f}x" + (" *" if row["speed_up"] == best else ""),
        "-" if candidate == FLOAT else f"{row['sqnr_db']:.1f}",
        f"{counts['integer']}/{counts['integer'] + counts['float_']}",
        f"{counts['attention_integer']}/{attention}" if attention else "-",
        f"{counts['inner_q']}+{counts['inner_dq']}",
        "" if candidate == FLOAT else left,
    ]


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: each file's speed next to the float file's, and its distance from it."""
    made = []
    for name, rows in data["nets"].items():
        plain = rows[FLOAT]["rounds_ms"]
        for candidate, row in rows.items():
            if candidate != FLOAT and "failed" not in row:
                made.append(least(f"{name}: {candidate}", "ms", row["rounds_ms"], "float", plain))
                made.append(bounded(f"{name}: {candidate}, distance from float", "dB", row["sqnr_db"], 0.5))
    return made


TITLES = ("net", "candidate", "speed-up", "SQNR, dB", "integer", "products", "Q+DQ", "left in float")


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    known = [*nets.TIMED, *nets.OTHER_TASKS]
    parser.add_argument("--only", nargs="+", choices=[*known, *nets.TOYS], default=known)
    parser.add_argument("--candidates", nargs="*", help="names; all unless told")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--fresh", action="store_true", help="let the peers quantize again")
    options = parser.parse_args()
    everyone = [peers.OURS, *peers.PEERS]
    session = report.Session("int8", parser, options)
    chosen, told = peers.ready(
        [peer for peer in everyone if options.candidates is None or peer.name in options.candidates]
    )
    data: dict[str, Any] = {"rounds": options.rounds, "nets": {}}
    rows: list[list[str]] = []
    for name in options.only:
        judged = judge(name, options.rounds, chosen, keep=not options.fresh)
        judged |= peers.rows_of_missing(told)
        data["nets"][name] = files.told(judged)
        best = max(row.get("speed_up", 0.0) for row in judged.values())
        rows += [line(name, candidate, row, best) for candidate, row in judged.items()]
    print_table(TITLES, rows)
    session.finish(data, figures(data), packages=PACKAGES, peers=told)


if __name__ == "__main__":
    main()
