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
from typing import TYPE_CHECKING, Protocol

from embedl_hub.core.device import EmbedlONNXRuntimeConfig, LocalCommandRunner, ONNXRuntimeConfig
from embedl_hub.errors import ConfigError, NoProviderError
from embedl_hub.onnxruntime.refusal import INSTALL, RefusedError
from embedl_hub.paths import RemotePath
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, CommandRunner, Device

PROGRAM = "embedl_onnxruntime"
_CARRIED = "onnxruntime program carried"


class Place(Protocol):
    """A machine with the device program on it.

    Attributes:
        title: What messages call it.
        runner: Runs commands there.
        config: How ONNX Runtime is to run.
        scratch: A folder on this machine that is gone afterwards.
    """

    title: str
    runner: CommandRunner
    config: ONNXRuntimeConfig
    scratch: Path

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


class Here:
    """This machine: nothing moves, the program is this Python's own."""

    title = "this machine"

    def __init__(self, ctx: HubContext, config: ONNXRuntimeConfig, scratch: Path) -> None:
        self._ctx = ctx
        self.runner: CommandRunner = LocalCommandRunner()
        self.config = config
        self.scratch = scratch
        self._folder = scratch / "there"
        self._folder.mkdir()

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
        if importlib.util.find_spec(PROGRAM) is None:
            raise NoProviderError(
                f"The device program {PROGRAM} is not installed for this Python. Install it with: {INSTALL}"
            )
        return [sys.executable, "-m", PROGRAM]

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


class OnBoard:
    """A board: models go into its content store once, results come back from the run's own folder."""

    def __init__(self, ctx: HubContext, device: Device, config: EmbedlONNXRuntimeConfig, scratch: Path) -> None:
        if device.runner is None:
            raise ConfigError(
                f"Device {device.name!r} is of type {device.provider_type!r} and needs a runner, for example "
                "Device(runner=SSHCommandRunner(...))."
            )
        self._ctx = ctx
        self._device = device
        self._board_config = config
        self.title = f"device {device.name!r}"
        self.runner = device.runner
        self.config: ONNXRuntimeConfig = config
        self.scratch = scratch

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
        carried = self._ctx.notes(self._device.name).get(_CARRIED)
        if isinstance(carried, RemotePath):
            return [self._board_config.python_path, str(carried)]
        return [self._board_config.embedl_onnxruntime_path]

    def carry_program(self) -> bool:
        """Send the program through the board's content store, once per context."""
        notes = self._ctx.notes(self._device.name)
        if _CARRIED in notes:
            return False
        path = self.scratch / "embedl-onnxruntime.pyz"
        path.write_bytes(packed_program())
        artifact = LoggedArtifact("program", path.name, path.stat().st_size, hash_file(path), local_path=path)
        notes[_CARRIED] = self._ctx.send_to(artifact, self._device.name)
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
def this_machine(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place]:
    """Yield this machine as a place; a device gives settings only."""
    config = None
    if device is not None:
        found = ctx.find_device(device)
        if found.runner is not None and not isinstance(found.runner, LocalCommandRunner):
            raise ConfigError(
                f"Device {device!r} is of type 'local' but is reached by {found.runner!r}; "
                "a board is of type 'embedl_onnxruntime'."
            )
        config = found.get_provider_config(ONNXRuntimeConfig, component)
    with _scratch() as scratch:
        yield Here(ctx, config or ONNXRuntimeConfig(), scratch)


@contextlib.contextmanager
def on_board(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place]:
    """Yield a board as a place."""
    found = ctx.find_device(device or "")
    config = found.get_provider_config(EmbedlONNXRuntimeConfig, component) or EmbedlONNXRuntimeConfig()
    with _scratch() as scratch:
        yield OnBoard(ctx, found, config, scratch)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edgeproof-ort-") as name:
        yield Path(name)


def packed_program() -> bytes:
    """Return the device program as one file that any Python runs; equal sources give equal bytes."""
    spec = importlib.util.find_spec(PROGRAM)
    if spec is None or not spec.submodule_search_locations:
        raise NoProviderError(
            f"The board has no embedl-onnxruntime, and there is none here to carry over. Install it on the board with: "
            f"pip install edgeproof-device; or here with: {INSTALL}"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        start = f"import sys\nfrom {PROGRAM}.cli import main\nsys.exit(main())\n"
        archive.writestr(_entry("__main__.py"), start)
        for path in sorted(Path(spec.submodule_search_locations[0]).glob("*.py")):
            archive.writestr(_entry(f"{PROGRAM}/{path.name}"), path.read_bytes())
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
