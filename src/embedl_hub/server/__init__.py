"""The team's server: a store behind HTTP, with keys, limits and a login for the page."""

from embedl_hub.server._keys import ACCESS, ALL_PROJECTS, Key, KeyRing
from embedl_hub.server._run import serve
from embedl_hub.server._settings import Settings
from embedl_hub.server._usage import Quota, Usage, Used

__all__ = ["ACCESS", "ALL_PROJECTS", "Key", "KeyRing", "Quota", "Settings", "Usage", "Used", "serve"]
