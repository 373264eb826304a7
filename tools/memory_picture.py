"""Make the picture of a memory profile in the docs: a real profile of MobileNetV2 on this machine.

python tools/memory_picture.py docs/images/memory.svg
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.document import MemoryProfile, read_document
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.page import memory_picture

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.models import mobilenet_v2, save


def main() -> None:
    """Profile, draw and write."""
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, max_seconds=2))
    with tempfile.TemporaryDirectory() as name, HubContext("picture", [device], home=Path(name) / "home") as ctx:
        path = save(mobilenet_v2(), Path(name) / "mobilenet_v2.onnx")
        model = ONNXRuntimeCompiler().run(ctx, path, input_shape=(1, 3, 224, 224))
        result = ONNXRuntimeProfiler().run(ctx, model)
        if result.output_file is None:
            sys.exit("The profile kept no document.")
        facts = read_document(result.output_file.local()).facts
        measured, predicted = (MemoryProfile.from_json(facts[key]) for key in ("memory", "predicted_memory"))  # type: ignore[arg-type]
        drawn = memory_picture(measured, predicted, memory_bytes=32_000_000)
    Path(sys.argv[1]).write_text(drawn + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
