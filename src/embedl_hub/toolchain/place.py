"""Where the device program runs: on this machine, or on a board. The steps see no difference."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from embedl_hub.core.component import ProviderType
from embedl_hub.core.device import LocalCommandRunner, MeasuringConfig
from embedl_hub.errors import ConfigError, NoProviderError
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.refusal import RefusedError
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, CommandRunner, Device
    from embedl_hub.toolchain.runtime import Runtime

# What every device program is made of besides its own package.
_SHARED = ("embedl_device", "embedl_kernels")

Config_co = TypeVar("Config_co", bound=MeasuringConfig, covariant=True)


class Place(Protocol[Config_co]):
    """A machine with a device program on it.

    Attributes:
        title: What messages call it.
        runtime: What runs models there.
        runner: Runs commands there.
        scratch: A folder on this machine that is gone afterwards.
    """

    title: str
    runtime: Runtime
    runner: CommandRunner
    scratch: Path

    @property
    def config(self) -> Config_co:
        """How the runtime is to run."""
        ...

    @property
    def architecture(self) -> str:
        """The processor's family, as ``uname -m`` says it."""
        ...

    @property
    def folder(self) -> AnyPath:
        """A folder there for this run's files, removed afterwards."""
        ...

    def program(self) -> list[str]:
        """Return the command that starts the device program there."""
        ...

    def carry_program(self) -> bool:
        """Bring the program there, if that was not tried yet; tell whether it may work now."""
        ...

    def send(self, artifact: LoggedArtifact) -> AnyPath:
        """Make sure an artifact is there and return its path."""
        ...

    def put(self, local: Path, name: str) -> AnyPath:
        """Bring a file of this machine into the run's folder there and return its path."""
        ...

    def get(self, remote: AnyPath, local: Path) -> None:
        """Bring a file or folder from there to a path here."""
        ...


class Here(Generic[Config_co]):
    """This machine: nothing moves, the program is this Python's own."""

    title = "this machine"

    def __init__(self, ctx: HubContext, runtime: Runtime, config: Config_co, scratch: Path) -> None:
        self._ctx = ctx
        self.runtime = runtime
        self.runner: CommandRunner = LocalCommandRunner()
        self._config = config
        self.scratch = scratch
        self._folder = scratch / "there"
        self._folder.mkdir()

    @property
    def config(self) -> Config_co:
        """How the runtime is to run."""
        return self._config

    @property
    def architecture(self) -> str:
        """The processor's family."""
        return platform.machine()

    @property
    def folder(self) -> AnyPath:
        """A scratch folder."""
        return self._folder

    def program(self) -> list[str]:
        """Return this Python with the program's module, which must be installed beside the hub."""
        module = self.runtime.module
        if importlib.util.find_spec(module) is None:
            raise NoProviderError(
                f"The device program {module} is not installed for this Python. Install it with: {self.runtime.install}"
            )
        return [sys.executable, "-m", module]

    def carry_program(self) -> bool:
        """Nothing to carry."""
        return False

    def send(self, artifact: LoggedArtifact) -> AnyPath:
        """Return where the artifact is in the store."""
        return artifact.to_local(self._ctx).local()

    def put(self, local: Path, name: str) -> AnyPath:
        """Move a file into the scratch folder."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(local, target)
        return target

    def get(self, remote: AnyPath, local: Path) -> None:
        """Move a result out of the scratch folder."""
        shutil.move(Path(remote), local)


class OnBoard(Generic[Config_co]):
    """A board: models go into its content store once, results come back from the run's own folder."""

    def __init__(self, ctx: HubContext, device: Device, runtime: Runtime, config: Config_co, scratch: Path) -> None:
        if device.runner is None:
            raise ConfigError(
                f"Device {device.name!r} is of type {device.provider_type!r} and needs a runner, for example "
                "Device(runner=SSHCommandRunner(...))."
            )
        self._ctx = ctx
        self._device = device
        self._config = config
        self._carried = f"{runtime.command} carried"
        self.title = f"device {device.name!r}"
        self.runtime = runtime
        self.runner = device.runner
        self.scratch = scratch

    @property
    def config(self) -> Config_co:
        """How the runtime is to run."""
        return self._config

    @property
    def architecture(self) -> str:
        """The processor's family, from the device's spec."""
        spec = self._ctx.device_spec(self._device.name)
        if not spec.architecture:
            raise RefusedError(
                f"It is not known what processor {self.title} has, which decides the number format of INT8. "
                "Say it: Device(spec=DeviceSpec(architecture='aarch64'))."
            )
        return spec.architecture

    @property
    def folder(self) -> AnyPath:
        """The run's folder on the board."""
        return self._device.artifact_dir

    def program(self) -> list[str]:
        """Return the configured program, or Python with the one that was carried there."""
        carried = self._ctx.notes(self._device.name).get(self._carried)
        if isinstance(carried, RemotePath):
            return [str(getattr(self._config, "python_path", "python3")), str(carried)]
        return [str(getattr(self._config, self.runtime.path_field))]

    def carry_program(self) -> bool:
        """Send the program through the board's content store, once per context."""
        notes = self._ctx.notes(self._device.name)
        if self._carried in notes:
            return False
        path = self.scratch / f"{self.runtime.command}.pyz"
        path.write_bytes(packed_program(self.runtime))
        artifact = LoggedArtifact("program", path.name, path.stat().st_size, hash_file(path), local_path=path)
        notes[self._carried] = self._ctx.send_to(artifact, self._device.name)
        return True

    def send(self, artifact: LoggedArtifact) -> AnyPath:
        """Send the artifact unless it is there."""
        return artifact.to_remote(self._ctx, device_name=self._device.name).remote(self._device.name)

    def put(self, local: Path, name: str) -> AnyPath:
        """Send a file into the run's folder."""
        target = RemotePath(self.folder) / name
        self.runner.put(local, target)
        return target

    def get(self, remote: AnyPath, local: Path) -> None:
        """Fetch a result."""
        self.runner.get(remote, local)


@contextlib.contextmanager
def place_of(
    ctx: HubContext,
    device: str | None,
    component: type[object],
    runtime: Runtime,
    configs: tuple[type[Config_co], type[Config_co]],
) -> Iterator[Place[Config_co]]:
    """Yield where a step runs: a board, or this machine, for which a device gives settings only.

    Args:
        ctx: The context.
        device: The device's name; None is this machine.
        component: Whose settings of the device are wanted.
        runtime: What runs models there.
        configs: The classes of the settings, for this machine and for a board.
    """
    for_here, for_board = configs
    found = None if device is None else ctx.find_device(device)
    with scratch_folder() as scratch:
        if found is None:
            yield Here(ctx, runtime, for_here(), scratch)
        elif found.provider_type == ProviderType.LOCAL:
            _check_is_here(found)
            yield Here(ctx, runtime, found.get_provider_config(for_here, component) or for_here(), scratch)
        else:
            config = found.get_provider_config(for_board, component) or for_board()
            yield OnBoard(ctx, found, runtime, config, scratch)


def _check_is_here(device: Device) -> None:
    if device.runner is not None and not isinstance(device.runner, LocalCommandRunner):
        raise ConfigError(
            f"Device {device.name!r} is of type 'local' but is reached by {device.runner!r}; "
            "a board is of type 'embedl_onnxruntime' or 'embedl_litert'."
        )


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-") as name:
        yield Path(name)


def packed_program(runtime: Runtime) -> bytes:
    """Return a device program as one file that any Python runs; equal sources give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        start = f"import sys\nfrom {runtime.module}.cli import main\nsys.exit(main())\n"
        archive.writestr(_entry("__main__.py"), start)
        for package in (*_SHARED, runtime.module):
            folder = _package_folder(package, runtime)
            for path in sorted(folder.rglob("*.py")):
                archive.writestr(_entry(f"{package}/{path.relative_to(folder).as_posix()}"), path.read_bytes())
    return buffer.getvalue()


def _package_folder(package: str, runtime: Runtime) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NoProviderError(
            f"The board has no {runtime.command}, and there is none here to carry over. Install it on the board with: "
            f"pip install 'edgeproof-device[{runtime.extra_of_program}]'; or here with: {runtime.install}"
        )
    return Path(spec.submodule_search_locations[0])


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
