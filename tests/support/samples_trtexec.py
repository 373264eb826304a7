"""Files as trtexec writes them, with the oddities of the real ones, and ways to break them.

Forms: NVIDIA/TensorRT v8.6.1, v10.16 and v11.1, samples/common/sampleReporting.cpp; the three write them alike. Layer
information: NVIDIA/TensorRT#4020 and the tree of v10.16. Numbers are made up.
"""

from __future__ import annotations

import random
import re

TIMES = """\
[
  { "startEnqMs" : 200.121, "endEnqMs" : 200.132, "startH2dMs" : 200.12, "endH2dMs" : 200.153, \
"startComputeMs" : 200.153, "endComputeMs" : 201.372, "startD2hMs" : 201.372, "endD2hMs" : 201.391, \
"h2dMs" : 0.0327148, "computeMs" : 1.21856, "d2hMs" : 0.0188446, "latencyMs" : 1.27012 }
, { "startEnqMs" : 201.4, "endEnqMs" : 201.41, "startH2dMs" : 201.4, "endH2dMs" : 201.432, \
"startComputeMs" : 201.432, "endComputeMs" : 202.646, "startD2hMs" : 202.646, "endD2hMs" : 202.665, \
"h2dMs" : 0.032, "computeMs" : 1.21446, "d2hMs" : 0.0187174, "latencyMs" : 1.26518 }
]
"""

PROFILE = """\
[
  { "count" : 200 }
, { "name" : "Reformatting CopyNode for Input Tensor 0 to conv", "timeMs" : 2.1, "averageMs" : 0.0105, \
"medianMs" : 0.0104, "percentage" : 0.99 }
, { "name" : "say "hi" + C:\\new\\table", "timeMs" : 210, "averageMs" : 1.05, "medianMs" : 1.04, "percentage" : 99 }
, { "name" : "never ran", "timeMs" : 0, "averageMs" : -nan, "medianMs" : inf, "percentage" : 0 }
]
"""

LAYERS = """\
{"Layers": [{
  "Name": "Reformatting CopyNode for Input Tensor 0 to conv",
  "LayerType": "Reformat",
  "Inputs": [],
  "Outputs": [],
  "ParameterType": "Reformat",
  "TacticValue": "0x00000000000003e8",
  "Metadata": ""
},{
  "Name": "conv + relu",
  "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [1,3,16,16], \
"Format/Datatype": "Row major linear FP32"}],
  "Outputs": [{"Name": "y", "Location": "Device", "Dimensions": [1,8,16,16], \
"Format/Datatype": "Channel major FP32 format"}],
  "TacticName": "sm80_xmma_fprop_implicit_gemm",
  "StreamId": 0,
  "Metadata": "[ONNX Layer: conv]\\u001e[ONNX Layer: relu]"
}],
"Bindings": ["x"
,"y"
]}
"""

OUTPUTS = """\
[
  { "name" : "y"
  , "dimensions" : "1x2x2"
  , "values" : [ 0.123457, -nan, inf, -1.5e-07 ]
  }
, { "name" : "odd "name""
  , "dimensions" : "2"
  , "values" : [ 9007199254740993, -1 ]
  }
, { "name" : "scalar"
  , "dimensions" : ""
  , "values" : [ 0.5 ]
  }
, { "name" : "nothing"
  , "dimensions" : "0x4"
  , "values" : [  ]
  }
]
"""

LOG = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v100300] [b26] # trtexec --loadEngine=model.engine
[11/15/2026-10:00:00] [I] === Device Information ===
[11/15/2026-10:00:00] [I] Available Devices:
[11/15/2026-10:00:00] [I]   Device 0: "Orin" UUID: GPU-00000000-0000-0000-0000-000000000000
[11/15/2026-10:00:00] [I] Selected Device: Orin
[11/15/2026-10:00:00] [I] Compute Capability: 8.7
[11/15/2026-10:00:00] [I] SMs: 16
[11/15/2026-10:00:00] [I] Device Global Memory: 62841 MiB
[11/15/2026-10:00:00] [I] TensorRT version: 10.3.0
[11/15/2026-10:00:01] [I] Engine deserialized in 0.0214 sec.
[11/15/2026-10:00:01] [I] [TRT] [MemUsageChange] TensorRT-managed allocation in engine deserialization: CPU +0, \
GPU +97, now: CPU 0, GPU 97 (MiB)
[11/15/2026-10:00:01] [I] [TRT] [MemUsageChange] TensorRT-managed allocation in IExecutionContext creation: CPU +0, \
GPU +16, now: CPU 0, GPU 113 (MiB)
[11/15/2026-10:00:04] [I] Warmup completed 163 queries over 200 ms
[11/15/2026-10:00:04] [I] Timing trace has 2374 queries over 3.00345 s
[11/15/2026-10:00:04] [I] === Performance summary ===
[11/15/2026-10:00:04] [I] Throughput: 790.424 qps
[11/15/2026-10:00:04] [I] Latency: min = 1.2 ms, max = 1.4 ms, mean = 1.2676 ms, median = 1.26 ms, \
percentile(90%) = 1.27 ms
[11/15/2026-10:00:04] [I] Enqueue Time: min = 0.01 ms, max = 0.2 ms, mean = 0.02 ms, median = 0.02 ms
[11/15/2026-10:00:04] [I] GPU Compute Time: min = 1.2 ms, max = 1.3 ms, mean = 1.21 ms, median = 1.21 ms, \
percentile(90%) = 1.22 ms, percentile(99%) = 1.3 ms
[11/15/2026-10:00:04] [W] * Throughput may be bound by Enqueue Time rather than GPU Compute
[11/15/2026-10:00:04] [I] Writing file for input binding x (with datatype fp32 and dimensions 1.3.16.16) to x.raw
[11/15/2026-10:00:04] [I] Writing file for output binding out/y (with datatype fp32 and dimensions 1.10) to \
out_y.output.1.10.fp32.raw
[11/15/2026-10:00:04] [E] Unknown option: --magic 3
&&&& FAILED TensorRT.trtexec [TensorRT v100300] [b26] # trtexec --loadEngine=model.engine
"""

_SCRAPS = (
    '"', "\\", "[", "]", "{", "}", ",", ":", "nan", "-inf", "1e999", "-1", "0", "null", "true", "\x00", "\x1e", "é",
    "ß" * 40, "9" * 50, "9" * 5000, "\n", "latencyMs", "Ms", "count", "Layers", "Name", "values", "x",
)  # fmt: skip


def scaled(text: str, key: str, factor: float) -> str:
    """Return a file with one column in another unit."""
    return re.sub(rf'("{key}" : )(-?\d[\d.]*)', lambda found: f"{found[1]}{float(found[2]) * factor:g}", text)


def broken(rng: random.Random, text: str) -> str:
    """Return a file with something done to it: letters lost, doubled, swapped or put in, lines dropped, the end cut."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(text) + 1)
        until = min(len(text), at + rng.choice((1, 1, 3, 20, 200)))
        kind = rng.randrange(7)
        if kind == 0:
            text = text[:at]
        elif kind == 1:
            text = text[:at] + text[until:]
        elif kind == 2:
            text = text[:at] + rng.choice(_SCRAPS) + text[at:]
        elif kind == 3:
            text = text[:at] + rng.choice(_SCRAPS) + text[until:]
        elif kind == 4:
            text = text[:until] + text[at:]
        elif kind == 5:
            lines = text.splitlines(keepends=True)
            if lines:
                lines.pop(rng.randrange(len(lines)))
            text = "".join(lines)
        else:
            text = re.sub(r"\d+", lambda found: str(rng.randrange(10**4)), text, count=rng.randrange(1, 4))
    return text
