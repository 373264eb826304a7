"""Calibration and training over processes: every process has the same numbers, and they are those of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ranks_program
from support.sampled import sampled

from embedl_deploy.quantize import calibrate, freeze_batch_norm

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "ranks_program.py"


def run(count: int, how: str, tmp_path: Path) -> list[dict[str, Any]]:
    """Run the program of a rank as so many processes and return what each wrote."""
    shared = dict(os.environ, MEETING=str(tmp_path / "meeting"), WORLD_SIZE=str(count), OMP_NUM_THREADS="1")
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), how, str(tmp_path / f"{rank}.json")],
            env=dict(shared, RANK=str(rank), LOCAL_RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        for process in started:
            _, said = process.communicate(timeout=180)
            assert process.returncode == 0, said[-2000:]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.parametrize(("count", "how"), sampled([(2, "ddp"), (4, "ddp"), (2, "fsdp")], (2, "ddp")))
def test_ranks_agree_with_one_process(count: int, how: str, tmp_path: Path) -> None:
    """Ranges are equal to the bit on every rank and to those of one process on all the data; so are losses, to 1e-6."""
    model, data, targets = ranks_program.network()
    torch.set_num_threads(1)
    calibrate(model, list(data))
    ranges = ranks_program.ranges(model)
    freeze_batch_norm(model)
    losses = ranks_program.train(model, data.flatten(0, 1), targets.flatten(0, 1))
    found = run(count, how, tmp_path)
    assert all(part["ranges"] == ranges for part in found)
    for step, expected in enumerate(losses):
        mean = sum(part["losses"][step] for part in found) / count
        assert mean == pytest.approx(expected, rel=1e-6)
    assert losses[-1] < losses[0]


def test_a_rank_without_data_is_told_to_all(tmp_path: Path) -> None:
    """Nobody waits for a process that could not calibrate, and nobody goes on without it."""
    for part in run(2, "empty", tmp_path):
        assert part["error"].startswith("process 1 of 2 could not calibrate: no calibration batch")
