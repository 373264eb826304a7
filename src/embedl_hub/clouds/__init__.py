"""Vendors' services: one folder each, which registers providers on the toolchains' components."""
