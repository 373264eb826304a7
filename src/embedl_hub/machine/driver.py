"""How the hub drives a toolchain's device program: enough for every measurement that is the same for all runtimes."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ProfileError
from embedl_hub.core.toolchain import Toolchain, toolchains
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.machine.machine import Machine, Runtime, open_machine
from embedl_hub.refusal import RefusedError, needed_packages, refusals_as

if TYPE_CHECKING:
    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.models.onnx_file import Tensor


@dataclass(frozen=True)
class Driver:
    """A toolchain's device program, its settings and its models; `Toolchain.driver` names it."""

    runtime: Runtime
    configs: tuple[type[MeasuringConfig], ...]  # the classes of the settings on this machine and on a board
    settings: Callable[[Machine[Any]], list[str]]  # the arguments that every command with a model takes
    read_inputs: Callable[[Path], Sequence[Tensor]]  # the inputs that a model declares
    # Why the device program cannot be used on a machine, in a sentence; None where it can.
    refusal: Callable[[Machine[Any]], str | None] = lambda _: None


@contextlib.contextmanager
def driven(
    ctx: HubContext, device: str | None, component: type[object], models: Sequence[CompiledModel]
) -> Iterator[tuple[Driver, Machine[Any]]]:
    """Yield the driver of models and the machine that they are measured on; what is refused is a ProfileError."""
    toolchain = _toolchain_of(models)
    driver = driver_of(toolchain)
    target = None if device is None else ctx.find_device(device)
    if target is not None and target.provider_type not in toolchain.providers:
        raise ProfileError(
            f"Device {device!r} is of type {target.provider_type!r}, which does not run models of {toolchain.title}; "
            f"give a device of {quoted_list(toolchain.providers)}."
        )
    with refusals_as(ProfileError), open_machine(ctx, device, component, *driver.configs) as machine:
        if (refusal := driver.refusal(machine)) is not None:
            raise RefusedError(refusal)
        yield driver, machine


def _toolchain_of(models: Sequence[CompiledModel]) -> Toolchain:
    known = toolchains()
    kinds = list(dict.fromkeys(type(model) for model in models))
    found = [each for each in known if all(issubclass(kind, each.compiled_model) for kind in kinds)]
    if not found:
        raise ProfileError(
            f"The models are of {quoted_list(kind.__name__ for kind in kinds)}; they must all be of one toolchain, of "
            f"{quoted_list(_able(known))}."
        )
    if found[0].driver is None:
        raise ProfileError(
            f"Models of {found[0].title} are measured by the vendor's own program, which knows no such measurement; "
            f"those of {quoted_list(_able(known))} can be measured so."
        )
    return found[0]


def _able(known: Sequence[Toolchain]) -> list[str]:
    return [each.name for each in known if each.driver is not None]


def driver_of(toolchain: Toolchain) -> Driver:
    """Return how the hub drives the device program of a toolchain that has one."""
    with needed_packages(f"{toolchain.title} models", toolchain.name):
        driver = pkgutil.resolve_name(toolchain.driver or "")
    if not isinstance(driver, Driver):
        raise ConfigError(f"{toolchain.driver} of the toolchain {toolchain.name!r} is {driver!r:.100}, not a Driver.")
    return driver
