"""The Lattice backend: conversions that bring a CNN into the set its accelerator takes, and a check of what is not."""

from embedl_deploy import patterns
from embedl_deploy.backend import Backend
from embedl_deploy.lattice.conversions import (
    ActivationToReLUPattern,
    AdaptiveAvgPoolToAvgPoolPattern,
    AvgPoolToConvPattern,
    ExplicitPadPattern,
    GroupedConvToDensePattern,
    ReLU6ToBoundedReLUPattern,
    ReLU6ToReLUPattern,
    SplitConvPattern,
    StackMaxPoolPattern,
    ThinStridePattern,
)
from embedl_deploy.lattice.rules import Check, Layer, check
from embedl_deploy.patterns.conversions import TIDYING

__all__ = [
    "LATTICE",
    "LATTICE_CONVERSIONS",
    "LATTICE_PATTERNS",
    "ActivationToReLUPattern",
    "AdaptiveAvgPoolToAvgPoolPattern",
    "AvgPoolToConvPattern",
    "Check",
    "ExplicitPadPattern",
    "GroupedConvToDensePattern",
    "Layer",
    "ReLU6ToBoundedReLUPattern",
    "ReLU6ToReLUPattern",
    "SplitConvPattern",
    "StackMaxPoolPattern",
    "ThinStridePattern",
    "check",
]

LATTICE_CONVERSIONS = (
    *TIDYING,
    AdaptiveAvgPoolToAvgPoolPattern,
    AvgPoolToConvPattern,
    GroupedConvToDensePattern,
    ThinStridePattern,
    SplitConvPattern,
    ExplicitPadPattern,
    StackMaxPoolPattern,
    ReLU6ToReLUPattern,
    ReLU6ToBoundedReLUPattern,
    ActivationToReLUPattern,
    patterns.FlattenLinearToConv1x1Pattern,
)
LATTICE_PATTERNS = LATTICE_CONVERSIONS
LATTICE = Backend("lattice", conversion_patterns=LATTICE_CONVERSIONS)
