"""Edgeproof hub: compile, profile and invoke models on real devices, with every run recorded."""

from embedl_hub._version import __version__

__all__ = ["__version__"]
