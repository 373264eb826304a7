"""Public names of toolchains under the paths where people look for them: ``embedl_hub.core.compile`` and its siblings.

Each face has only what every toolchain shares; the rest is looked up among the registered toolchains on first use.
Values are taken as they come from the entry points, so that this module imports none of the packages it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from functools import cache
from typing import Any

from embedl_hub import plugins


def lazy_face(module: str, own: list[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a face."""
    face = module.rpartition(".")[2]

    def find(name: str) -> Any:  # noqa: ANN401 - a class
        if not name.startswith("_") and (value := _names(face).get(name)) is not None:
            return value
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find, lambda: sorted({*own, *_names(face)})


def _names(face: str) -> dict[str, type]:
    """Return what the registered toolchains add to a face, by name."""
    toolchains = [value for _, value in plugins.load_all(plugins.TOOLCHAINS)]
    if face == "device":
        classes = [each.local_config for each in toolchains if each.local_config is not None]
        kinds = [kind for each in toolchains for kind in each.device_kinds]
        kinds += [value for _, value in plugins.load_all(plugins.DEVICE_KINDS)]
        return {each.__name__: each for each in (*classes, *(kind.config_class for kind in kinds))}
    return {each.__name__: each for toolchain in toolchains for each in _of_steps(toolchain, face)}


def _of_steps(toolchain: Any, face: str) -> Iterator[type]:  # noqa: ANN401 - a Toolchain, which imports this
    steps = {
        "compile": (toolchain.compiler,),
        "profile": (toolchain.profiler, toolchain.paired_profiler),
        "invoke": (toolchain.invoker,),
    }
    for step in filter(None, steps[face]):
        yield step
        # A result that belongs to all toolchains is a name of the face itself.
        if (result := step.result_class()) is not None and not result.__module__.startswith(__package__ or ""):
            yield result


@cache
def local_config() -> type[Any]:
    """Return the settings of this machine as a device: those of every toolchain that runs here."""
    configs = (value.local_config for _, value in plugins.load_all(plugins.TOOLCHAINS))
    joined = make_dataclass("LocalConfig", (), bases=tuple(filter(None, configs)), frozen=True)
    joined.__doc__ = "How models run on this machine, in whichever runtime."
    joined.__module__ = "embedl_hub.core.device"
    return joined
