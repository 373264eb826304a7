"""Where a toolchain's programs run: on this machine, or on a board. The steps see no difference."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import platform
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import platformdirs

from embedl_device.interpreter import python_argv
from embedl_hub.core.device import LOCAL, AnyPath, CommandRunner, LocalCommandRunner, ProviderConfig
from embedl_hub.errors import ConfigError, NoProviderError
from embedl_hub.paths import RemotePath
from embedl_hub.refusal import RefusedError
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import Device, DeviceSpec

LOCAL_CAP_BYTES = 8 << 30
# What every device program is made of besides its own package.
_SHARED = ("embedl_device", "embedl_kernels")

Config_co = TypeVar("Config_co", bound=ProviderConfig, covariant=True)
Config = TypeVar("Config", bound=ProviderConfig)


@dataclass(frozen=True)
class Runtime:
    """A runtime and the device program that drives it; ``name`` is what runs call it, ``title`` what people do.

    The program's command is called like its Python package, ``module``. Messages name what a Python needs to run it,
    the extras of the hub and of the device programs that bring it, the class of a board's settings, and what may help
    when the runtime crashed. Where a model is a folder, the program is given the file in it with ``model_suffix``.

    A runtime that need not be installed beside the hub says by ``interpreter`` which Python of this machine has it,
    for a device's settings; None, or no function, is the one that runs the hub.
    """

    title: str
    name: str
    module: str
    packages: str
    extra: str
    extra_of_program: str
    board_config: str
    after_a_crash: str
    interpreter: Callable[[ProviderConfig], str | None] | None = None
    model_suffix: str = ".onnx"

    @property
    def command(self) -> str:
        """The device program's command."""
        return self.module.replace("_", "-")

    @property
    def install(self) -> str:
        """The line that installs what this machine needs."""
        return f"pip install 'edgeproof-hub[{self.extra}]'"


class Machine(ABC, Generic[Config_co]):
    """A machine that runs a toolchain's programs."""

    title: str  # what messages call it
    is_local: bool  # whether it is this machine, where nothing has to be sent
    runner: CommandRunner  # runs commands there
    notes: dict[str, object]  # what is known about the machine while the context lives
    cache_cap_bytes: int  # what is kept in a cache folder there is trimmed to this size

    def __init__(self, ctx: HubContext, config: Config_co, scratch: Path) -> None:
        self._ctx = ctx
        self.config = config
        self.scratch = scratch

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The processor's architecture, as ``uname -m`` says it."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Its main memory; None if nobody knows."""

    @property
    @abstractmethod
    def folder(self) -> RemotePath:
        """A folder there for this run's files, removed afterwards."""

    @abstractmethod
    def cache(self, name: str) -> RemotePath:
        """Return a folder there that stays."""

    @abstractmethod
    def program(self, runtime: Runtime) -> list[str]:
        """Return the command that starts a device program there."""

    @abstractmethod
    def carry_program(self, runtime: Runtime) -> bool:
        """Bring a device program there, if that was not tried yet; tell whether it may work now."""

    @abstractmethod
    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Make sure an artifact is there and return its path."""

    @abstractmethod
    def put(self, local: Path, name: str) -> RemotePath:
        """Copy a file of this machine into the run's folder there and return its path."""

    @abstractmethod
    def get(self, remote: AnyPath, local: Path) -> None:
        """Copy a file or folder from there to a path here."""


class LocalMachine(Machine[Config_co]):
    """This machine: models are used where they are in the store, a program is this Python's own or its runtime's."""

    title = "this machine"
    is_local = True
    cache_cap_bytes = LOCAL_CAP_BYTES

    def __init__(
        self,
        ctx: HubContext,
        config: Config_co,
        scratch: Path,
        notes: dict[str, object],
        spec: DeviceSpec | None = None,
    ) -> None:
        super().__init__(ctx, config, scratch)
        self.runner = LocalCommandRunner()
        self.notes = notes
        self._spec = spec
        Path(self.folder).mkdir()

    @property
    def architecture(self) -> str:
        """The processor's architecture."""
        return platform.machine()

    @property
    def memory_bytes(self) -> int | None:
        """What the device's spec says, else what this machine has."""
        if self._spec is not None and self._spec.memory_bytes:
            return self._spec.memory_bytes
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):
            return None

    @property
    def folder(self) -> RemotePath:
        """A scratch folder."""
        return RemotePath(self.scratch / "run")

    def cache(self, name: str) -> RemotePath:
        """Return a folder in the user's cache."""
        return RemotePath(platformdirs.user_cache_path("edgeproof") / name)

    def program(self, runtime: Runtime) -> list[str]:
        """Return this Python with the program's module, which must be installed beside the hub.

        A runtime that lives in another Python is run by the program in one file, as on a board.
        """
        python = None if runtime.interpreter is None else runtime.interpreter(self.config)
        if python is not None:
            packed = self.scratch / f"{runtime.command}.pyz"
            if not packed.exists():
                packed.write_bytes(packed_program(runtime))
            return python_argv(python, file=str(packed))
        if importlib.util.find_spec(runtime.module) is None:
            raise NoProviderError(
                f"The device program {runtime.module} is not installed for this Python. Install it with: "
                f"{runtime.install}"
            )
        return python_argv(module=runtime.module)

    def carry_program(self, runtime: Runtime) -> bool:  # noqa: ARG002 - a Machine's signature
        """Nothing to carry."""
        return False

    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Return where the artifact is in the store."""
        return RemotePath(self._ctx.bring_here(artifact))

    def put(self, local: Path, name: str) -> RemotePath:
        """Copy a file into the scratch folder."""
        target = Path(self.folder / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, target)
        return RemotePath(target)

    def get(self, remote: AnyPath, local: Path) -> None:
        """Take a result; a file of the scratch folder is linked, which costs nothing, anything else is copied."""
        if RemotePath(remote).is_relative_to(self.folder):
            with contextlib.suppress(OSError):
                os.link(remote, local)
                return
        self.runner.get(remote, local)


class RemoteMachine(Machine[Config_co]):
    """A board: models go into its content store once, results come back from the run's own folder."""

    is_local = False

    def __init__(self, ctx: HubContext, device: Device, config: Config_co, scratch: Path) -> None:
        if device.runner is None:
            raise ConfigError(
                f"Device {device.name!r} is of type {device.provider_type!r} and needs a runner, for example "
                "Device(runner=SSHCommandRunner(...)), or LocalCommandRunner() for this machine."
            )
        super().__init__(ctx, config, scratch)
        self._device = device
        self.title = f"device {device.name!r}"
        self.runner = device.runner
        self.notes = ctx.notes(device.name)
        self.cache_cap_bytes = device.store_cap_bytes

    @property
    def architecture(self) -> str:
        """The processor's architecture, from the device's spec."""
        spec = self._ctx.device_spec(self._device.name)
        if not spec.architecture:
            raise RefusedError(
                f"It is not known what processor {self.title} has, which decides the number format of INT8. "
                "Say it: Device(spec=DeviceSpec(architecture='aarch64'))."
            )
        return spec.architecture

    @property
    def memory_bytes(self) -> int | None:
        """What the device's spec says."""
        return self._ctx.device_spec(self._device.name).memory_bytes

    @property
    def folder(self) -> RemotePath:
        """The run's folder on the board."""
        return self._device.artifact_dir

    def cache(self, name: str) -> RemotePath:
        """Return a folder beside the runs' folders."""
        return self.folder.parent.parent / name

    def program(self, runtime: Runtime) -> list[str]:
        """Return the configured program, or Python with the one that was carried there."""
        carried = self.notes.get(f"{runtime.command} carried")
        if isinstance(carried, RemotePath):
            return python_argv(str(getattr(self.config, "python_path", "python3")), file=str(carried))
        return [str(getattr(self.config, f"{runtime.module}_path"))]

    def carry_program(self, runtime: Runtime) -> bool:
        """Send the program through the board's content store, once per context."""
        key = f"{runtime.command} carried"
        if key in self.notes:
            return False
        path = self.scratch / f"{runtime.command}.pyz"
        path.write_bytes(packed_program(runtime))
        self.notes[key] = self.send(unlogged(path, "program"))
        return True

    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Send the artifact unless it is there."""
        return self._ctx.send_to(artifact, self._device.name)

    def put(self, local: Path, name: str) -> RemotePath:
        """Send a file into the run's folder."""
        target = self.folder / name
        self.runner.put(local, target)
        return target

    def get(self, remote: AnyPath, local: Path) -> None:
        """Fetch a result."""
        self.runner.get(remote, local)


def unlogged(path: Path, name: str) -> LoggedArtifact:
    """Return a file as an artifact for sending only: it can be made again."""
    return LoggedArtifact(name, path.name, path.stat().st_size, hash_file(path), local_path=path)


def packed_program(runtime: Runtime) -> bytes:
    """Return a device program as one file that any Python runs; equal sources give equal bytes."""
    start = f"import sys\nfrom {runtime.module}.cli import main\nsys.exit(main())\n"
    contents = {"__main__.py": start.encode()}
    for package in (*_SHARED, runtime.module):
        folder = _package_folder(package, runtime)
        for path in sorted(folder.rglob("*.py")):
            contents[f"{package}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return zipped(contents)


def _package_folder(package: str, runtime: Runtime) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NoProviderError(
            f"The board has no {runtime.command}, and there is none here to carry over. Install it on the board with: "
            f"pip install 'edgeproof-device[{runtime.extra_of_program}]'; or here with: {runtime.install}"
        )
    return Path(spec.submodule_search_locations[0])


def zipped(contents: Mapping[str, bytes], mode: int = 0) -> bytes:
    """Return files as an archive; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-") as name:
        yield Path(name)


@contextlib.contextmanager
def open_machine(
    ctx: HubContext,
    device: str | None,
    component: type[object],
    local_config: type[Config],
    remote_config: type[Config] | None = None,
) -> Iterator[Machine[Config]]:
    """Yield where a step runs: a board, or this machine, for which a device gives settings only.

    ``component`` is whose settings of the device are wanted; their class may be another one on a board.
    """
    target = None if device is None else ctx.find_device(device)
    with scratch_folder() as scratch:
        if target is None:
            yield LocalMachine(ctx, local_config(), scratch, {})
        elif target.provider_type == LOCAL:
            if target.runner is not None and not isinstance(target.runner, LocalCommandRunner):
                raise ConfigError(
                    f"Device {target.name!r} is of type 'local' but is reached by {target.runner!r}; give a board the "
                    "type of its toolchain (embedl-hub device add --help lists them)."
                )
            settings = target.get_provider_config(ProviderConfig, component)
            # A device of this machine may have the settings of another toolchain; those are not for this one.
            config = settings if isinstance(settings, local_config) else local_config()
            yield LocalMachine(ctx, config, scratch, ctx.notes(target.name), target.spec)
        else:
            kind = remote_config or local_config
            yield RemoteMachine(ctx, target, target.get_provider_config(kind, component) or kind(), scratch)
