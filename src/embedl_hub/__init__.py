"""Edgeproof hub: compile, profile and invoke models on real devices, with every run recorded."""

__version__ = "0.1.0"
