"""Quantise a transformed model: where pairs go, what ranges they have, and training with them in place."""

from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._calibrate import apply_calibration, calibrate, collect
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._config import CalibrationMethod, MaxDrop, ModulesToSkip, QuantConfig, TensorQuantConfig
from embedl_deploy.quantize._insert import insert_qdq
from embedl_deploy.quantize._placement import Boundary, Decision, Placement
from embedl_deploy.quantize._quantize import plan_qdq, quantize

__all__ = [
    "Boundary",
    "Calibration",
    "CalibrationMethod",
    "Decision",
    "MaxDrop",
    "ModulesToSkip",
    "Placement",
    "Precision",
    "QuantConfig",
    "TensorQuantConfig",
    "apply_calibration",
    "calibrate",
    "collect",
    "insert_qdq",
    "plan_qdq",
    "quantize",
]
