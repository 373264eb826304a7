"""The steps of OpenVINO: declarations; providers carry them out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CalibrationData
from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.context import HubContext
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import PairedProfiler, PairedResult, ProfilingResult
from embedl_hub.errors import ComponentError
from embedl_hub.refusal import needed_packages, refusals_as

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class OpenVINOCompiledModel(CompiledModel):
    """A model in OpenVINO's own format: a folder with an .xml file and the .bin file of its weights."""

    # For INT8 made here: method and number format
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def gather(cls, path: Path, scratch: Path) -> Path:
        """Return a folder with the .xml file and the weights that are beside it."""
        with needed_packages("OpenVINO models", "openvino"), refusals_as(ComponentError):
            from embedl_hub.toolchains.openvino.ir import gather  # noqa: PLC0415 - importing a face must not cost onnx

            return gather(path, scratch)


class OpenVINOCompiler(Component):
    """Turns an ONNX model or an exported PyTorch program into one that OpenVINO runs on a device."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        model_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        calibration_method: str | None = None,
    ) -> OpenVINOCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            model_path: An ONNX file, a folder that holds one with its external data, or a .pt2 file.
            device: A device on the context; the first compatible one when not given.
            input_shape: Fixes the shape of the model's input.
            calibration_data: Given: INT8. A folder of .npy/.npz files, one .npz, or a mapping of input names to arrays
                with samples on axis 0. Not given: as the file is.
            calibration_method: How ranges are found from the data: minmax (the default), entropy or percentile.
        """
        raise NoProviderError


@dataclass(frozen=True)
class OpenVINOProfilingResult(ProfilingResult):
    """How fast a model is in OpenVINO."""


class OpenVINOProfiler(Component):
    """Measures a compiled model in OpenVINO on a device."""

    run_type = RunType.PROFILE

    def run(
        self,
        ctx: HubContext,
        model: OpenVINOCompiledModel,
        *,
        device: str | None = None,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
        until: str | None = None,
    ) -> OpenVINOProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            require_provider: A device of OpenVINO, such as GPU; the run fails if a layer runs elsewhere.
            input_data: Arrays by input name to measure on; made up from the model's shapes when not given.
            until: Measure until the samples support the 99 % bound of p90, p95 or p99, or by MLPerf's rules for single
                stream (mlperf); what the device says when not given.
        """
        raise NoProviderError


class OpenVINOPairedProfiler(PairedProfiler[OpenVINOCompiledModel]):
    """Measures compiled models in turns in OpenVINO on a device."""

    def run(
        self,
        ctx: HubContext,
        models: Sequence[OpenVINOCompiledModel],
        *,
        device: str | None = None,
        samples: int = 200,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> PairedResult:
        """Measure models in turns.

        Args:
            ctx: An open context.
            models: Two or more compiled models; the first is the reference.
            device: A device on the context; the first compatible one when not given.
            samples: At least so many rounds; each times every model once.
            require_provider: A device of OpenVINO, such as GPU; the run fails if a layer runs elsewhere.
            input_data: Arrays by input name that every model is run on; made up from the shapes when not given.
        """
        raise NoProviderError


@dataclass(frozen=True)
class OpenVINOInvocationResult(InvocationResult):
    """What a model answered in OpenVINO."""


class OpenVINOInvoker(Invoker[OpenVINOCompiledModel, OpenVINOInvocationResult]):
    """Runs a compiled model in OpenVINO on a device, on the user's data."""
