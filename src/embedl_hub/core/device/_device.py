"""A named target on a context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.core.device._runner import AnyPath, CommandRunner
from embedl_hub.core.device._spec import DeviceSpec
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from embedl_hub.paths import RemotePath

Config = TypeVar("Config", bound=ProviderConfig)

DEFAULT_LEASE_DIR = "/tmp/edgeproof-lease"  # noqa: S108 - one lock for all accounts of a board needs a shared place


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise ConfigError(f"A device's {what} must be printable text, not {text!r}.")


@dataclass(frozen=True)
class Device:
    """A target: how to reach it, what it is, and who carries out steps on it.

    Attributes:
        name: What contexts and components call it.
        runner: How to run commands there; None for a vendor's cloud.
        spec: What it is; what is left out is asked of the board once.
        provider_type: Who carries out steps on it.
        provider_config: That provider's settings.
        provider_config_overrides: Settings for single components, by component class.
        artifact_root: Folder on the board for run folders and the content store; a cache folder when not given.
        store_cap_bytes: The content store on the board is trimmed to this size, least recently used first.
        lease_dir: Folder on the board whose lock is the lease; None goes without one.
    """

    name: str
    runner: CommandRunner | None = None
    spec: DeviceSpec = field(default_factory=DeviceSpec)
    provider_type: str = "local"
    provider_config: ProviderConfig | None = None
    provider_config_overrides: Mapping[type[Any], ProviderConfig] = field(default_factory=dict)
    artifact_root: AnyPath | None = None
    store_cap_bytes: int = 8 << 30
    lease_dir: str | None = DEFAULT_LEASE_DIR
    _find_artifact_dir: Callable[[], RemotePath] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("provider_type", self.provider_type)):
            _check_text(what, text)
        if self.runner is not None and not isinstance(self.runner, CommandRunner):
            raise ConfigError(
                f"Device {self.name!r}: runner {self.runner!r} has no run, put and get; "
                "use SSHCommandRunner, LocalCommandRunner or your own."
            )
        configs = (self.provider_config, *self.provider_config_overrides.values())
        for config in configs:
            if config is not None and not isinstance(config, ProviderConfig):
                raise ConfigError(f"Device {self.name!r}: {config!r} is not a ProviderConfig; subclass it.")
        for key in self.provider_config_overrides:
            if not isinstance(key, type):
                raise ConfigError(
                    f"Device {self.name!r}: provider_config_overrides is keyed by component class, not {key!r}."
                )
        # One spelling inside: the hyphen form means the same.
        object.__setattr__(self, "provider_type", str(self.provider_type).replace("-", "_"))

    @property
    def artifact_dir(self) -> RemotePath:
        """The current run's own folder on the board."""
        if self._find_artifact_dir is None:
            raise ConfigError(f"Device {self.name!r} is not on an open context; use ctx.devices[{self.name!r}].")
        return self._find_artifact_dir()

    def get_provider_config(self, config_class: type[Config], component_class: type[object]) -> Config | None:
        """Return the settings for a component: its override, else the device's, else None."""
        config: ProviderConfig | None = self.provider_config
        for base in component_class.__mro__:
            if base in self.provider_config_overrides:
                config = self.provider_config_overrides[base]
                break
        if config is not None and not isinstance(config, config_class):
            raise ConfigError(
                f"Device {self.name!r} is configured with {type(config).__name__} for {component_class.__name__}, "
                f"but its provider {self.provider_type!r} expects {config_class.__name__}."
            )
        return config
