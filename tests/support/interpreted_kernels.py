"""Compare Triton's kernels, run by its interpreter on a processor, with the reference; prints what was found as JSON.

TRITON_INTERPRET=1 python tests/support/interpreted_kernels.py CASES
"""

import json
import sys
from pathlib import Path

import torch

from embedl_deploy.nn.triton_kernels import TRITON

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import rounding_cases

# The interpreter cuts a float32 off where it becomes a bfloat16, and a device rounds it.
rounding_cases.DTYPES = (torch.float32, torch.float32, torch.float16)
found = rounding_cases.compare(TRITON, int(sys.argv[1]), largest=64)
kept = {name: getattr(found, name) for name in ("cases", "values", "unequal", "gradient")}
sys.stdout.write(json.dumps({**kept, "where": dict(found.where)}) + "\n")
