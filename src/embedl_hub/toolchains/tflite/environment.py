"""The converter's own environment.

onnx2tf pins its dependencies to versions that clash with everything else, and ai-edge-quantizer pins another LiteRT
than onnx2tf does. So onnx2tf is installed without its dependencies beside those that both can live with.
"""

from __future__ import annotations

from embedl_hub.machine.environment import Recipe

# tools/lock.py makes the locks from these.
CONVERTER = "onnx2tf==2.6.9"
REQUIREMENTS = (
    "ai-edge-litert==2.3.0", "ai-edge-quantizer==0.10.0", "flatbuffers==25.12.19", "ml-dtypes==0.5.4", "numpy==2.2.6",
    "onnx==1.20.1", "onnxruntime==1.26.0", "onnxsim==0.6.5", "protobuf==7.35.1", "psutil==7.2.2", "sng4onnx==2.0.1",
    "tqdm==4.67.1",
)  # fmt: skip

ENVIRONMENT = Recipe(
    "tflite",
    "TFLite converter",
    CONVERTER,
    # It declares Python 3.12 and newer; 3.11 runs it too.
    pythons=((3, 12), (3, 13), (3, 11)),
    check="from onnx2tf import convert; import ai_edge_quantizer, onnxsim",
    pip_options=("--ignore-requires-python",),
)
