"""Where toolchains work: machines, the device programs' command lines, worker processes, data and profiles.

Knows no toolchain; each one describes its own device program (:class:`~embedl_hub.machine.machine.Runtime`).
"""
