"""The program on the board: profile and run ExecuTorch models; on this machine it also makes them.

Small on purpose: numpy, executorch with its torch and the standard library. What makes models is in ``compiler`` and
needs more; a board never imports it.
"""

from embedl_device import __version__

__all__ = ["__version__"]
