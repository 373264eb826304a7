"""Quantize a transformed model: where pairs go, what ranges they have, and training with them in place."""

from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._calibrate import apply_calibration, calibrate, collect
from embedl_deploy.quantize._config import CalibrationMethod, MaxDrop, ModulesToSkip, QuantConfig, TensorQuantConfig
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._insert import insert_qdq
from embedl_deploy.quantize._placement import Boundary, Decision, Placement, Variant
from embedl_deploy.quantize._plan import plan_qdq, retarget
from embedl_deploy.quantize._quantization import (
    Correction,
    FittedLayer,
    Gain,
    LayerCost,
    MethodTrial,
    OutputQuality,
    Quantization,
    RangeChoice,
    Search,
    Sensitivity,
    Step,
    Trial,
    quantization_of,
)
from embedl_deploy.quantize._quantize import quantize
from embedl_deploy.quantize._sensitivity import sensitivity
from embedl_deploy.quantize._sharded import Spread, collect_sharded, over_ray
from embedl_deploy.quantize._training import freeze_batch_norm, freeze_ranges, freeze_weights, learn_ranges

__all__ = [
    "Boundary",
    "Calibration",
    "CalibrationMethod",
    "Correction",
    "Decision",
    "FittedLayer",
    "Gain",
    "LayerCost",
    "MaxDrop",
    "MethodTrial",
    "ModulesToSkip",
    "OutputQuality",
    "Placement",
    "Precision",
    "QuantConfig",
    "Quantization",
    "RangeChoice",
    "Search",
    "Sensitivity",
    "Spread",
    "Step",
    "TensorQuantConfig",
    "Trial",
    "Variant",
    "apply_calibration",
    "calibrate",
    "collect",
    "collect_sharded",
    "freeze_batch_norm",
    "freeze_ranges",
    "freeze_weights",
    "insert_qdq",
    "learn_ranges",
    "over_ray",
    "plan_qdq",
    "quantization_of",
    "quantize",
    "retarget",
    "sensitivity",
]
