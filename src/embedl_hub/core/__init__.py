"""The hub's core: open a context, run components on it."""

from embedl_hub.core.context import HubContext

__all__ = ["HubContext"]
