"""The one place that holds the version; read by every deploy distribution without importing torch."""

__version__ = "0.1.0"
