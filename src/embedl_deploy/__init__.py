"""Edgeproof deploy: turn a PyTorch model into the network its target will really run, with every decision on view."""

from embedl_deploy._pipeline import TransformResult, apply_plan, make_plan, transform
from embedl_deploy._plan import Plan
from embedl_deploy._version import __version__

__all__ = ["Plan", "TransformResult", "__version__", "apply_plan", "make_plan", "transform"]
