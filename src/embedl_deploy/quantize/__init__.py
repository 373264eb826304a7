"""Quantize a transformed model: where pairs go, what ranges they have, and training with them in place."""

from embedl_deploy._spread import Spread, over_ray
from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._batch_norm_evidence import LayerFit
from embedl_deploy.quantize._calibrate import apply_calibration, calibrate, collect
from embedl_deploy.quantize._calibration_check import CalibrationVerdict, check_calibration
from embedl_deploy.quantize._config import CalibrationMethod, MaxDrop, ModulesToSkip, QuantConfig, TensorQuantConfig
from embedl_deploy.quantize._data_evidence import DataEvidence, DataVerdict
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
from embedl_deploy.quantize._ranks import average_batch_norm, merge_ranks
from embedl_deploy.quantize._recipe import QatRecipe, QatSchedule, train_quantized
from embedl_deploy.quantize._resampling import Drop, ScaleChange, ScaleStability
from embedl_deploy.quantize._sensitivity import sensitivity
from embedl_deploy.quantize._sharded import collect_sharded
from embedl_deploy.quantize._state import load_state, save_state
from embedl_deploy.quantize._training import freeze_batch_norm, freeze_ranges, freeze_weights, learn_ranges

__all__ = [
    "Boundary",
    "Calibration",
    "CalibrationMethod",
    "CalibrationVerdict",
    "Correction",
    "DataEvidence",
    "DataVerdict",
    "Decision",
    "Drop",
    "FittedLayer",
    "Gain",
    "LayerCost",
    "LayerFit",
    "MaxDrop",
    "MethodTrial",
    "ModulesToSkip",
    "OutputQuality",
    "Placement",
    "Precision",
    "QatRecipe",
    "QatSchedule",
    "QuantConfig",
    "Quantization",
    "RangeChoice",
    "ScaleChange",
    "ScaleStability",
    "Search",
    "Sensitivity",
    "Spread",
    "Step",
    "TensorQuantConfig",
    "Trial",
    "Variant",
    "apply_calibration",
    "average_batch_norm",
    "calibrate",
    "check_calibration",
    "collect",
    "collect_sharded",
    "freeze_batch_norm",
    "freeze_ranges",
    "freeze_weights",
    "insert_qdq",
    "learn_ranges",
    "load_state",
    "merge_ranks",
    "over_ray",
    "plan_qdq",
    "quantization_of",
    "quantize",
    "retarget",
    "save_state",
    "sensitivity",
    "train_quantized",
]
