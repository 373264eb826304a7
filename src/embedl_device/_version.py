"""The one place that holds the version: every distribution reads this file, under its own package's name."""

__version__ = "0.1.0"
