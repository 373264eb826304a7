"""The program on the board: compile, profile and run models with OpenVINO.

Small on purpose: numpy, openvino and the standard library, Python 3.8 and newer.
"""

from embedl_device import __version__

__all__ = ["__version__"]
