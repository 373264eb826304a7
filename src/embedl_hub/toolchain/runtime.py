"""A runtime as the toolchains see it: a device program, what it needs, and where its settings are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """A runtime and the device program that drives it.

    Attributes:
        title: What people call it.
        module: The device program's Python package.
        command: The device program's command.
        packages: What a Python needs to run the program.
        extra: The extra of the hub that brings it.
        extra_of_program: The extra of the device programs that brings it.
        path_field: The field of the board's config that says where the program is.
        board_config: The name of that config, for messages.
        after_a_crash: What may help when the runtime crashed.
    """

    title: str
    module: str
    command: str
    packages: str
    extra: str
    extra_of_program: str
    path_field: str
    board_config: str
    after_a_crash: str

    @property
    def install(self) -> str:
        """The line that installs what this machine needs."""
        return f"pip install 'edgeproof-hub[{self.extra}]'"
