"""The hub's part: compile a file, profile it, run it on the whole test set, hold its answers against PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_demo._building import INPUT, OUTPUT
from embedl_device.readers import read_json
from embedl_hub.core.compile import TensorRTCompiler
from embedl_hub.core.component import RunType
from embedl_hub.core.toolchain import find_component

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from embedl_hub.core import HubContext
    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.invoke import Parity
    from embedl_hub.core.profile import ProfilingResult


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
    profile: ProfilingResult
    document: dict[str, Any]
    scores: np.ndarray
    parity: Parity

    @property
    def profile_run(self) -> str:
        """The id of the run that measured it."""
        assert self.profile.output_file is not None
        assert self.profile.output_file.run_id is not None
        return self.profile.output_file.run_id


@dataclass(frozen=True)
class Bench:
    """A device, and the pictures that every model is run on."""

    ctx: HubContext
    device: str
    images: np.ndarray

    def measure(self, toolchain: str, file: Path, title: str, expected: np.ndarray) -> Measured:
        """Compile, profile and invoke an ONNX file with one input and one output."""
        model = self._run(toolchain, RunType.COMPILE, title, file)
        profile = self._run(toolchain, RunType.PROFILE, title, model)
        answer = self._run(toolchain, RunType.INFERENCE, title, model, {INPUT: self.images})
        return Measured(
            model.path.size_bytes,
            profile,
            read_json(profile.output_file.local()),
            answer.output[OUTPUT],
            answer.compare({OUTPUT: expected}),
        )

    def _run(self, toolchain: str, step: RunType, title: str, *args: object) -> Any:
        component: Any = find_component(step, toolchain)
        verb = {RunType.INFERENCE: "invoke"}.get(step, step.lower())
        return component(name=f"{verb} {title}", device=self.device).run(self.ctx, *args)


def build_engine(ctx: HubContext, device: str, file: Path) -> TensorRTCompiledModel:
    """Build a TensorRT-RTX engine; that needs no GPU, running it would."""
    return TensorRTCompiler(name="compile for TensorRT-RTX", device=device).run(ctx, file)
