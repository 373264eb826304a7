"""A toolchain as one value: its steps, its devices and its runtime, found by an entry point.

[project.entry-points."embedl_hub.toolchains"]
mine = "my_package:TOOLCHAIN"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub import plugins
from embedl_hub.core.component import CompiledModel, Component, RunType
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.plugins import TOOLCHAINS

if TYPE_CHECKING:
    from embedl_hub.core.device import CheckResult, DeviceKind, ProviderConfig


@dataclass(frozen=True)
class Toolchain:
    """Everything that belongs to one runtime."""

    name: str  # what the command line and files call it
    title: str  # what people call it
    compiler: type[Component]  # its step of type COMPILE
    compiled_model: type[CompiledModel]  # what the compiler makes and the other steps take
    suffixes: tuple[str, ...] = ()  # how files of compiled models end
    profiler: type[Component] | None = None  # its step of type PROFILE
    paired_profiler: type[Component] | None = None  # its step that measures several models in turns
    invoker: type[Component] | None = None  # its step of type INFERENCE
    # By provider type the module whose import registers the providers of that type.
    providers: Mapping[str, str] = field(default_factory=dict)
    device_kinds: tuple[DeviceKind, ...] = ()  # the kinds of devices it brings
    local_config: type[ProviderConfig] | None = None  # its settings on a device of type ``local``
    doctor: Callable[[], list[CheckResult]] | None = None  # checks what this machine needs, for ``embedl-hub doctor``
    install: Callable[[], None] | None = None  # sets up what pip cannot, for ``embedl-hub doctor --install NAME``
    # What a board's Python needs, where ``embedl-hub board`` can put it there; ``device_kinds`` begins with that board.
    board_packages: tuple[str, ...] = ()
    # module:name of how the hub drives its device program, a `Driver`: what it takes to be measured in every way.
    driver: str | None = None
    # module:function of a file of the runtime's own format and settings (or None), which returns a MemoryProfile: for
    # ``embedl-hub memory``.
    memory_planner: str | None = None
    predictor: str | None = None  # module:function that says what INT8 gains on a device, for ``embedl-hub predict``

    def component(self, run_type: RunType) -> type[Component] | None:
        """Return the step of a type, if it has one."""
        steps = {RunType.COMPILE: self.compiler, RunType.PROFILE: self.profiler, RunType.INFERENCE: self.invoker}
        return steps.get(run_type)

    @property
    def components(self) -> tuple[type[Component], ...]:
        """All of its steps."""
        return tuple(filter(None, (self.compiler, self.profiler, self.paired_profiler, self.invoker)))


def register_toolchain(toolchain: Toolchain) -> None:
    """Make a toolchain known in this process; installed packages use an entry point instead."""
    plugins.register(TOOLCHAINS, toolchain.name, toolchain)


def toolchains() -> list[Toolchain]:
    """Return every toolchain that can be loaded."""
    return [value for _, value in plugins.load_all(TOOLCHAINS) if isinstance(value, Toolchain)]


def find_toolchain(name: str) -> Toolchain:
    """Return a toolchain by name, or say which there are."""
    value = plugins.load(TOOLCHAINS, name)
    if not isinstance(value, Toolchain):
        raise ConfigError(f"The toolchain {name!r} is {value!r:.100}, not a Toolchain.")
    return value


def components(run_type: RunType) -> dict[str, type[Component]]:
    """Return the steps of a type by the name of their toolchain."""
    steps = {toolchain.name: toolchain.component(run_type) for toolchain in toolchains()}
    return {name: step for name, step in steps.items() if step is not None}


def find_component(run_type: RunType, toolchain: str) -> type[Component]:
    """Return a toolchain's step of a type."""
    step = find_toolchain(toolchain).component(run_type)
    if step is None:
        raise ConfigError(
            f"The toolchain {toolchain!r} has no step of type {run_type}; those that have one: "
            f"{quoted_list(components(run_type))}."
        )
    return step


def paired_profiler(toolchain: str) -> type[Component]:
    """Return the step that measures models of a toolchain in turns."""
    step = find_toolchain(toolchain).paired_profiler
    if step is None:
        able = [each.name for each in toolchains() if each.paired_profiler is not None]
        raise ConfigError(
            f"Models of {toolchain!r} cannot be measured in turns within one process; those of {quoted_list(able)} "
            "can. Profile each and compare them with embedl-hub gate: it profiles in turns."
        )
    return step


def board_toolchain() -> Toolchain:
    """Return the toolchain that ``embedl-hub board`` uses."""
    for toolchain in toolchains():
        if toolchain.board_packages:
            return toolchain
    raise ConfigError("No toolchain that is installed says what a board's Python needs.")
