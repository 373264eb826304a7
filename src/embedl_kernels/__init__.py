"""What a processor's integer kernels really compute, and the weights that every one of them computes alike.

On x86 processors with AVX2 and without VNNI, pairs of u8 × s8 products are added in 16 bits, and what does not fit is
cut off without a word. `FAMILIES` says which kernels do that, `probe` asks the runtime itself, and `choose` finds the
weights of a layer that no input can saturate. `predict_gain` says how much faster INT8 is there, from costs of kernels
that were measured there. NumPy only: deploy, the hub and the programs on the board share it.
"""

import embedl_device  # noqa: F401 - switches ONNX Runtime's telemetry off
from embedl_kernels._choose import Choice, choose, remedies
from embedl_kernels._costs import Cost, CostTable, Gain, predict_gain, read_costs
from embedl_kernels._families import (
    EXACT,
    EXACT_U8S8,
    FAMILIES,
    MODEL,
    REQUIRES,
    SATURATING,
    Family,
    Probe,
    families,
    family_of,
    get_family,
    kernels_here,
    mismatch,
    probe,
    same_family,
)
from embedl_kernels._layer import Fitted, Layer, Remedy
from embedl_kernels._pairs import (
    PAIR_LIMIT,
    Window,
    can_saturate,
    conv_to_matrix,
    is_depthwise,
    matrix_to_conv,
    matrix_to_product,
    pair_sums,
    product_to_matrix,
    sample_patches,
    sample_rows,
    saturated_sums,
    saturation,
    window_pads,
    wrapped,
)
from embedl_kernels._work import Work, work_of, works_of

__all__ = [
    "EXACT",
    "EXACT_U8S8",
    "FAMILIES",
    "MODEL",
    "PAIR_LIMIT",
    "REQUIRES",
    "SATURATING",
    "Choice",
    "Cost",
    "CostTable",
    "Family",
    "Fitted",
    "Gain",
    "Layer",
    "Probe",
    "Remedy",
    "Window",
    "Work",
    "can_saturate",
    "choose",
    "conv_to_matrix",
    "families",
    "family_of",
    "get_family",
    "is_depthwise",
    "kernels_here",
    "matrix_to_conv",
    "matrix_to_product",
    "mismatch",
    "pair_sums",
    "predict_gain",
    "probe",
    "product_to_matrix",
    "read_costs",
    "remedies",
    "same_family",
    "sample_patches",
    "sample_rows",
    "saturated_sums",
    "saturation",
    "window_pads",
    "work_of",
    "works_of",
    "wrapped",
]
