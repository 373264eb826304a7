"""Where a board tells its energy or power: built-in sources, and others by entry point.

[project.entry-points."embedl_device.power_sources"]
mine = "my_package:find"

``find`` takes nothing and returns a `Found`. The built-in ones need no installing: a program is carried to a board as
one file.
"""

from embedl_device.power._find import find_sources
from embedl_device.power._source import BOARD, CPU, GPU, MEMORY, RAIL, Found, Source, choose, words_of

__all__ = ["BOARD", "CPU", "GPU", "MEMORY", "RAIL", "Found", "Source", "choose", "find_sources", "words_of"]
