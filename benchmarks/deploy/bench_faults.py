"""Does `verify` find every fault in a file, name the first wrong layer, and leave right files alone?

Each fault is planted in a right file, in the network that a file is made from, or in the calibration data, and the file
is judged by the right network. The right files are two networks of five seeds in five forms on two sets of data.

    python benchmarks/deploy/bench_faults.py [--faults N] [--right N] [--json FILE]
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import report
import torch
from figures import Figure, declared
from report import print_table
from support.planted_faults import FAULTS, Fault, RightFile, right_files

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
TITLES = ("fault", "file", "found by", "first wrong layer", "named", "right")


def judge(fault: Fault) -> dict[str, Any]:
    """Return what `verify` says of one fault."""
    began = time.monotonic()
    found = fault.verify()
    return {
        "fault": fault.name,
        "net": fault.kind,
        "form": fault.form,
        "found": not found.passed,
        "layer": fault.layer,
        "named": found.first_wrong,
        "said": found.failures[0] if found.failures else "",
        "bounds_exceeded": len(found.failures),
        "seconds": round(time.monotonic() - began, 2),
    }


def judge_right(file: RightFile) -> dict[str, Any]:
    """Return what `verify` says of a right file."""
    found = file.verify()
    written = [row.sqnr_db for row in found.outputs if (row.stage, row.against) == ("written", "simulated")]
    return {
        "file": file.name,
        "passed": found.passed,
        "said": "" if found.passed else found.verdict,
        "written_db": min(written) if written and min(written) < float("inf") else None,
    }


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    faults, right = data["faults"], data["right"]
    found = sum(row["found"] for row in faults)
    named = sum(row["found"] and row["named"] == row["layer"] for row in faults)
    failed = sum(not row["passed"] for row in right)
    return [
        declared(f"planted faults found, of {len(faults)}", "", found, 0.0).at_least(len(faults)),
        declared(f"planted faults whose first wrong layer is named, of {len(faults)}", "", named, 0.0)
        .at_least(len(faults)),
        declared(f"right files failed, of {len(right)}", "", failed, 0.0).at_most(0),
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--faults", type=int, default=len(FAULTS), help="how many faults")
    parser.add_argument("--right", type=int, default=100, help="how many right files")
    options = parser.parse_args()
    session = report.Session("faults", parser, options)
    torch.set_num_threads(1)
    data: dict[str, Any] = {"faults": [], "right": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fault in FAULTS[: options.faults]:
            data["faults"].append(judge(fault))
            print(f"{fault.name}: {data['faults'][-1]['said']}", file=sys.stderr, flush=True)
        for file in itertools.islice(right_files(), options.right):
            data["right"].append(judge_right(file))
            print(f"{file.name}: {data['right'][-1]['said'] or 'pass'}", file=sys.stderr, flush=True)
    print_table(TITLES, [row_of(row) for row in data["faults"]])
    session.finish(data, figures(data), packages=PACKAGES)


def row_of(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    right = "yes" if row["found"] and row["named"] == row["layer"] else "NO"
    said = row["said"].partition(": ")[2] or row["said"] or "nothing"
    return [row["fault"], f"{row['net']}, {row['form']}", said[:90], row["layer"], row["named"], right]


if __name__ == "__main__":
    main()
