"""The page: every run, its profile, comparisons and devices in a browser, and as files to hand on."""

from embedl_hub.page._entry import app, export_comparison, export_run
from embedl_hub.page._memory import memory_picture

__all__ = ["app", "export_comparison", "export_run", "memory_picture"]
