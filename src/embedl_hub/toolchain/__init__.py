"""What the toolchains share: places to run on, the device programs' command lines, ONNX files, data, profiles.

Knows no runtime by name; each toolchain describes its own (:class:`~embedl_hub.toolchain.runtime.Runtime`).
"""
