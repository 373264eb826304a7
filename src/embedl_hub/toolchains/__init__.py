"""The toolchains: one folder each. A folder exports one value, ``TOOLCHAIN``, which an entry point names."""
