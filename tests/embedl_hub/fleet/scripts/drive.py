"""Drives a sweep that a test kills: HOME MODELS NOTE [ID to resume]."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from support.fleet import model_files, plain_device, plain_sweep

from embedl_hub.core import HubContext
from embedl_hub.fleet import run_sweep

home, folder, note = map(Path, sys.argv[1:4])
sweep = plain_sweep(
    model_files(folder, 6), options={"a": {"note": str(note), "wait_s": 0.15}, "b": {"note": str(note)}}
)
with HubContext("p", [plain_device("x"), plain_device("y")], home=home) as ctx:
    result = run_sweep(ctx, sweep, resume=sys.argv[4] if len(sys.argv) > 4 else None)
    states = sorted(each.state for each in result.cells)
    sys.stdout.write(" ".join((result.id, str(len(result.reused)), *states)))
