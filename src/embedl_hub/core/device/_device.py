"""A device: what it is, as the user says and the board answers, and its provider's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from embedl_device.rounds import MAX_SECONDS, UNTIL
from embedl_hub import accelerators
from embedl_hub.core.device._runner import AnyPath, CommandRunner
from embedl_hub.errors import ConfigError, quoted_list

if TYPE_CHECKING:
    from embedl_hub.paths import RemotePath


@dataclass(frozen=True)
class ProviderConfig:
    """Base of every provider's settings: subclass it as a frozen dataclass and hang it on a device."""


def settings_of(config: ProviderConfig | None) -> dict[str, object]:
    """Return what a run records of settings: all that are set; a program's path and arguments by name as well."""
    if config is None:
        return {}
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    params: dict[str, object] = {"provider_config": given}
    params |= {name: str(value) for name, value in given.items() if name.endswith("_path")}
    if "cli_args" in given:
        params["cli_args"] = " ".join(map(str, given["cli_args"]))
    return params


def check_args(name: str, value: object) -> None:
    """Refuse a setting that is not a tuple of strings."""
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):  # type: ignore[attr-defined]
        raise ConfigError(f"{name} is a tuple of strings, not {value!r}.")


@dataclass(frozen=True)
class MeasuringConfig(ProviderConfig):
    """How much to measure, and with how many threads."""

    # Threads within one operator; None leaves it to the runtime.
    threads: int | None = field(default=None, kw_only=True)
    iterations: int = field(default=100, kw_only=True)  # a profile takes at least so many samples,
    min_seconds: float = field(default=1.0, kw_only=True)  # and measures at least so long,
    # but never longer than this; for ``until`` ten minutes, unless another number is given
    max_seconds: float = field(default=MAX_SECONDS, kw_only=True)
    # Measure until the samples support the 99 % bound of ``p90``, ``p95`` or ``p99``, or by MLPerf's single-stream
    # rules (``mlperf``); None does not
    until: str | None = field(default=None, kw_only=True)
    max_warmup_seconds: float = field(default=5.0, kw_only=True)  # the warm-up ends here even if the times still change
    # Profiled runs for the layers, after the measurement; 0 leaves the layers out.
    layer_runs: int = field(default=10, kw_only=True)
    # The device program is stopped after this long; None takes the runner's own limit.
    timeout_s: float | None = field(default=None, kw_only=True)
    # Go on, with a warning, with a model that is predicted to need more memory than the device has
    allow_out_of_memory: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("iterations", 1), ("layer_runs", 0), ("max_seconds", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or value < least):
                raise ConfigError(f"{name} must be at least {least}, not {value!r}.")
        if self.until is not None and self.until not in UNTIL:
            raise ConfigError(f"until is one of {quoted_list(UNTIL)}, not {self.until!r}.")


# Prints "key=value" lines; every line is optional. $1 is the artifact root or nothing.
PROBE = (
    """\
root=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/edgeproof}
mkdir -p -- "$root/runs" "$root/store" && chmod 700 -- "$root" && (cd -- "$root" && echo "root=$(pwd -P)") || exit 1
echo "os=$(. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME" || uname -s)"
echo "architecture=$(uname -m)"
echo "version.kernel=$(uname -r)"
echo "cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
while read -r key value unit; do
  if [ "$key" = MemTotal: ]; then echo "memory_kib=$value"; break; fi
done 2>/dev/null < /proc/meminfo
if [ -r /proc/device-tree/model ]; then echo "model=$(tr -d '\\000' < /proc/device-tree/model)"; fi
echo "cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
echo "features=$(sed -n -e 's/^flags[^:]*: //p' -e 's/^Features[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
"""
    + accelerators.PROBE
    + """\
if command -v python3 >/dev/null 2>&1; then
  echo "version.python=$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
fi
"""
)
# What decides which kernels a runtime takes; the first of each architecture is there on almost every processor, so that
# one without any of the others is known to have none.
_FEATURES = (
    "sse4_2", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8",
    "asimd", "asimddp", "i8mm", "asimdhp", "sve", "bf16",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceSpec:
    """What a device is. Fields left out are filled in by asking the board."""

    device_name: str | None = None  # what people call it: ``Raspberry Pi 5``, ``Galaxy S24``
    os: str | None = None  # operating system with its version
    architecture: str | None = None  # ``aarch64``, ``x86_64`` …
    cpu: str | None = None  # the processor's own name
    cores: int | None = None  # processors that are online
    memory_bytes: int | None = None  # main memory
    accelerators: tuple[str, ...] = ()  # GPUs, NPUs and the like, by name
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of what matters there, by name
    # Instruction sets of the processor that decide which kernels a runtime takes, as the system names them.
    features: tuple[str, ...] = ()

    def over(self, found: DeviceSpec) -> DeviceSpec:
        """Return the spec with what it leaves out taken from what was found."""
        own = {name: value for name, value in vars(self).items() if value}
        return replace(found, **{**own, "versions": {**found.versions, **self.versions}})

    def kernel_family(self, runtime: str) -> str | None:
        """Return the family of a runtime's integer kernels on such a processor; None for what is not known.

        The processor's word alone: a run on the device records what the runtime itself answered.
        """
        if not self.architecture or not self.features:
            return None
        from embedl_kernels import family_of  # noqa: PLC0415 - needs numpy, which a face must not cost

        family = family_of(self.architecture, self.features, runtime)
        return None if family is None else family.name


def spec_of(answer: Mapping[str, list[str]]) -> DeviceSpec:
    """Return what a board said of itself."""

    def first(key: str) -> str | None:
        return next((value for value in answer.get(key, ()) if value), None)

    cores, memory = first("cores"), first("memory_kib")
    flags = (first("features") or "").split()
    return DeviceSpec(
        device_name=first("model"),
        **{name: first(name) for name in ("os", "architecture", "cpu")},
        cores=int(cores) if _is_count(cores) else None,
        memory_bytes=int(memory) * 1024 if _is_count(memory) else None,
        accelerators=tuple(answer.get("accelerator", ())),
        versions={key.partition(".")[2]: values[0] for key, values in answer.items() if key.startswith("version.")},
        features=tuple(name for name in _FEATURES if name in flags),
    )


def _is_count(text: str | None) -> TypeGuard[str]:
    return text is not None and re.fullmatch("[0-9]{1,15}", text) is not None


# An honest probe has some thirty lines; the longest is the processor's list of features.
_MOST_PROBE_LINES = 500
_MOST_PROBE_CHARACTERS = 10_000


def parse_probe(text: str) -> dict[str, list[str]]:
    """Return the probe's lines as lists of values by key; of what no honest board says, as much as one would."""
    answer: dict[str, list[str]] = {}
    for line in text.splitlines()[:_MOST_PROBE_LINES]:
        key, equals, value = line[:_MOST_PROBE_CHARACTERS].partition("=")
        if equals:
            answer.setdefault(key, []).append(value.strip())
    return answer


Config = TypeVar("Config", bound=ProviderConfig)

DEFAULT_LEASE_DIR = "/tmp/edgeproof-lease"  # noqa: S108 - one lock for all accounts of a board needs a shared place


@dataclass(frozen=True)
class Device:
    """A target: how to reach it, what it is, and its provider type."""

    name: str  # what contexts and components call it
    runner: CommandRunner | None = None  # how to run commands there; None for a vendor's cloud
    spec: DeviceSpec = field(default_factory=DeviceSpec)  # what it is; what is left out is asked of the board once
    provider_type: str = "local"  # whose providers run its steps
    provider_config: ProviderConfig | None = None  # that provider's settings
    # Settings for single components, by component class.
    provider_config_overrides: Mapping[type[Any], ProviderConfig] = field(default_factory=dict)
    # Folder on the board for run folders and the content store; a cache folder when not given.
    artifact_root: AnyPath | None = None
    store_cap_bytes: int = 8 << 30  # the content store on the board is trimmed to this size, least recently used first
    lease_dir: str | None = DEFAULT_LEASE_DIR  # folder on the board whose lock is the lease; None for no lease
    _find_artifact_dir: Callable[[], RemotePath] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what in ("name", "provider_type"):
            text: object = getattr(self, what)
            if not isinstance(text, str) or not text.strip() or not text.isprintable():
                raise ConfigError(f"A device's {what} must be printable text, not {text!r}.")
        if self.runner is not None and not isinstance(self.runner, CommandRunner):
            raise ConfigError(
                f"Device {self.name!r}: runner {self.runner!r} has no run, put and get; "
                "use SSHCommandRunner, LocalCommandRunner or your own."
            )
        configs: tuple[object, ...] = (self.provider_config, *self.provider_config_overrides.values())
        for config in configs:
            if config is not None and not isinstance(config, ProviderConfig):
                advice = "is not a ProviderConfig; subclass it"
                if isinstance(config, type) and issubclass(config, ProviderConfig):
                    advice = f"is a class; write {config.__name__}()"
                raise ConfigError(f"Device {self.name!r}: {config!r:.100} {advice}.")
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
        overrides = self.provider_config_overrides
        config = next((overrides[base] for base in component_class.__mro__ if base in overrides), self.provider_config)
        if config is not None and not isinstance(config, config_class):
            raise ConfigError(
                f"Device {self.name!r} is configured with {type(config).__name__} for {component_class.__name__}, "
                f"but its provider {self.provider_type!r} expects {config_class.__name__}."
            )
        return config
