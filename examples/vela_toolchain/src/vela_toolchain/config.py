"""What a device with an Ethos-U is, and the check of what this machine needs."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from embedl_hub.core.device import NO_RUNNER, CheckResult, DeviceKind, ProviderConfig
from embedl_hub.errors import ConfigError, quoted_list

TYPE = "ethos_u"
ACCELERATORS = (
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512",
    "ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048",
)  # fmt: skip
_PACKAGES = {"ethos-u-vela": "ethosu.vela", "tflite-micro": "tflite_micro"}


@dataclass(frozen=True)
class EthosUConfig(ProviderConfig):
    """An Ethos-U as Vela models it."""

    accelerator: str = "ethos-u55-128"  # which one, by Vela's name
    system_config: str | None = None  # clock and memories, by a name in Vela's configuration; Vela's choice if None
    memory_mode: str | None = None  # what lies in which memory; likewise
    vela_ini_path: str | None = None  # a configuration of the board's vendor; Arm's own, which comes with Vela, if None

    def __post_init__(self) -> None:
        check_accelerator(self.accelerator)
        if self.vela_ini_path is not None and (self.system_config is None or self.memory_mode is None):
            raise ConfigError(
                f"With vela_ini_path {self.vela_ini_path!r} system_config and memory_mode must be given too: Vela's "
                "choices are names of its own configuration."
            )


def check_accelerator(name: str) -> None:
    """Refuse one that Vela does not know."""
    if name not in ACCELERATORS:
        raise ConfigError(f"There is no accelerator {name!r}; Vela knows: {', '.join(ACCELERATORS)}.")


def check_names(config: EthosUConfig) -> None:
    """Refuse a system configuration or a memory mode that the configuration lacks."""
    path = Path(config.vela_ini_path) if config.vela_ini_path is not None else _own_ini()
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error) as error:
        raise ConfigError(f"Vela's configuration {path} cannot be read: {error}.") from error
    for field, section in (("system_config", "System_Config."), ("memory_mode", "Memory_Mode.")):
        given = getattr(config, field)
        known = [name.removeprefix(section) for name in parser.sections() if name.startswith(section)]
        if given is not None and given not in known:
            raise ConfigError(f"{path.name} has no {field} {given!r}; known: {quoted_list(known)}.")


def _own_ini() -> Path:
    need_package("ethos-u-vela")
    found = importlib.util.find_spec("ethosu")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    return Path(folders[0]) / "config_files" / "Arm" / "vela.ini"


def need_package(name: str) -> str:
    """Return the version of a package, or say the line that installs it."""
    try:
        found = importlib.util.find_spec(_PACKAGES[name])
        version = importlib.metadata.version(name)
    except (ImportError, importlib.metadata.PackageNotFoundError):
        found = None
    if found is None:
        raise ConfigError(f"The Python package {name} is not installed. Install it with: pip install {_pin(name)}")
    return version


def check_packages() -> list[CheckResult]:
    """Tell which packages are there, for ``embedl-hub doctor``."""
    checks = []
    for name in _PACKAGES:
        try:
            checks.append(CheckResult(name, is_ok=True, message=need_package(name)))
        except ConfigError:
            checks.append(CheckResult(name, is_ok=False, message="not installed", advice=f"pip install {_pin(name)}"))
    return checks


def _pin(name: str) -> str:
    """Return what this package asks for: the versions that its readers of reports were written for."""
    wanted = importlib.metadata.requires("edgeproof-vela-example") or ()
    return next((each for each in wanted if each.startswith(f"{name}==")), name)


KIND = DeviceKind(TYPE, "An Ethos-U, as Vela models it: nothing is run on it.", EthosUConfig, reached_by=(NO_RUNNER,))
