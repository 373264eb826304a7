"""The hub's part: compile a file, profile it, run it on the whole test set, hold its answers against PyTorch's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from building import INPUT, OUTPUT

from embedl_hub.core.compile import ONNXRuntimeCompiler, TensorRTCompiler
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from embedl_hub.core import HubContext
    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.invoke import Parity
    from embedl_hub.core.profile import ONNXRuntimeProfilingResult


@dataclass(frozen=True)
class Measured:
    """One compiled model, measured.

    Attributes:
        size_bytes: Of the compiled file.
        profile: Its latency, verdict and memory.
        document: The profile's own document, with the interval of the median.
        scores: What it answers to the test set.
        parity: How far these are from what PyTorch answers.
    """

    size_bytes: int
    profile: ONNXRuntimeProfilingResult
    document: dict[str, Any]
    scores: np.ndarray
    parity: Parity

    @property
    def profile_run(self) -> str:
        """The id of the run that measured it."""
        assert self.profile.output_file is not None
        assert self.profile.output_file.run_id is not None
        return self.profile.output_file.run_id


def measure(ctx: HubContext, device: str, file: Path, title: str, images: np.ndarray, expected: np.ndarray) -> Measured:
    """Compile, profile and invoke an ONNX file with one input and one output."""
    model = ONNXRuntimeCompiler(name=f"compile {title}", device=device).run(ctx, file)
    profile = ONNXRuntimeProfiler(name=f"profile {title}", device=device).run(ctx, model)
    answer = ONNXRuntimeInvoker(name=f"invoke {title}", device=device).run(ctx, model, {INPUT: images})
    assert profile.output_file is not None
    return Measured(
        model.path.size_bytes,
        profile,
        json.loads(profile.output_file.local().read_text(encoding="utf-8")),
        answer.output[OUTPUT],
        answer.compare({OUTPUT: expected}),
    )


def build_engine(ctx: HubContext, device: str, file: Path) -> TensorRTCompiledModel:
    """Build a TensorRT-RTX engine; that needs no GPU, running it would."""
    return TensorRTCompiler(name="compile for TensorRT-RTX", device=device).run(ctx, file)
