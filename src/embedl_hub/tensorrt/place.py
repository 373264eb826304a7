"""Where trtexec runs: on this machine, or on a board. The steps see no difference."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Protocol

import platformdirs

from embedl_hub.core.component import ProviderType
from embedl_hub.core.device import LocalCommandRunner, ProviderConfig, TrtexecConfig
from embedl_hub.errors import ConfigError
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.place import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, CommandRunner, Device
    from embedl_hub.tracking import LoggedArtifact

LOCAL_CAP_BYTES = 8 << 30


class Place(Protocol):
    """A machine with trtexec on it.

    Attributes:
        title: What messages call it.
        runner: Runs commands there.
        config: How TensorRT is to be used.
        scratch: A folder on this machine that is gone afterwards.
        notes: What is known about the machine while the context lives.
        cache_cap_bytes: Engines kept there are trimmed to this size.
    """

    title: str
    runner: CommandRunner
    config: TrtexecConfig
    scratch: Path
    notes: dict[str, object]
    cache_cap_bytes: int

    @property
    def folder(self) -> RemotePath:
        """A folder there for this run's files, removed afterwards."""
        ...

    @property
    def cache(self) -> RemotePath:
        """A folder there that stays: engines and timing caches."""
        ...

    @property
    def contents(self) -> RemotePath | None:
        """The folder of contents by hash there; None where nothing has to be sent."""
        ...

    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Make sure an artifact is there and return its path."""
        ...

    def put(self, local: Path, name: str) -> RemotePath:
        """Bring a file of this machine into the run's folder there and return its path."""
        ...

    def get(self, remote: AnyPath, local: Path) -> None:
        """Bring a file or folder from there to a path here."""
        ...


class Here:
    """This machine: models are used where they are in the store."""

    title = "this machine"
    cache_cap_bytes = LOCAL_CAP_BYTES
    contents: RemotePath | None = None

    def __init__(self, ctx: HubContext, config: TrtexecConfig, scratch: Path, notes: dict[str, object]) -> None:
        self._ctx = ctx
        self.runner: CommandRunner = LocalCommandRunner()
        self.config = config
        self.scratch = scratch
        self.notes = notes
        self._folder = scratch / "there"
        self._folder.mkdir()

    @property
    def folder(self) -> RemotePath:
        """A scratch folder."""
        return RemotePath(self._folder)

    @property
    def cache(self) -> RemotePath:
        """The user's cache folder."""
        return own_cache()

    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Return where the artifact is in the store."""
        return RemotePath(artifact.to_local(self._ctx).local())

    def put(self, local: Path, name: str) -> RemotePath:
        """Copy a file into the scratch folder."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, target)
        return RemotePath(target)

    def get(self, remote: AnyPath, local: Path) -> None:
        """Copy a result out of the scratch folder."""
        self.runner.get(remote, local)


def own_cache() -> RemotePath:
    """Return the user's cache folder on this machine."""
    return RemotePath(platformdirs.user_cache_path("edgeproof") / "tensorrt")


class OnBoard:
    """A board: models go into its content store once, results come back from the run's own folder."""

    def __init__(self, ctx: HubContext, device: Device, config: TrtexecConfig, scratch: Path) -> None:
        if device.runner is None:
            raise ConfigError(
                f"Device {device.name!r} is of type {device.provider_type!r} and needs a runner, for example "
                "Device(runner=SSHCommandRunner(...)), or LocalCommandRunner() for this machine."
            )
        self._ctx = ctx
        self._device = device
        self.title = f"device {device.name!r}"
        self.runner = device.runner
        self.config = config
        self.scratch = scratch
        self.notes = ctx.notes(device.name)
        self.cache_cap_bytes = device.store_cap_bytes

    @property
    def folder(self) -> RemotePath:
        """The run's folder on the board."""
        return self._device.artifact_dir

    @property
    def cache(self) -> RemotePath:
        """A folder beside the runs' folders."""
        return self.folder.parent.parent / "tensorrt"

    @property
    def contents(self) -> RemotePath | None:
        """The board's content store."""
        return self.folder.parent.parent / "store"

    def send(self, artifact: LoggedArtifact) -> RemotePath:
        """Send the artifact unless it is there."""
        return artifact.to_remote(self._ctx, device_name=self._device.name).remote(self._device.name)

    def put(self, local: Path, name: str) -> RemotePath:
        """Send a file into the run's folder."""
        target = self.folder / name
        self.runner.put(local, target)
        return target

    def get(self, remote: AnyPath, local: Path) -> None:
        """Bring a result here."""
        self.runner.get(remote, local)


@contextlib.contextmanager
def place_of(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place]:
    """Yield where a step runs: a board, or this machine, for which a device gives settings only."""
    found = None if device is None else ctx.find_device(device)
    with scratch_folder() as scratch:
        if found is None:
            yield Here(ctx, TrtexecConfig(), scratch, {})
        elif found.provider_type == ProviderType.LOCAL:
            yield Here(ctx, _config_here(found, component), scratch, ctx.notes(found.name))
        else:
            config = found.get_provider_config(TrtexecConfig, component) or TrtexecConfig()
            yield OnBoard(ctx, found, config, scratch)


def _config_here(device: Device, component: type[object]) -> TrtexecConfig:
    """Return the settings of a device that is this machine; those of other toolchains are not for us."""
    if device.runner is not None and not isinstance(device.runner, LocalCommandRunner):
        raise ConfigError(
            f"Device {device.name!r} is of type 'local' but is reached by {device.runner!r}; "
            "a board with TensorRT is of type 'trtexec'."
        )
    config = device.get_provider_config(ProviderConfig, component)
    return config if isinstance(config, TrtexecConfig) else TrtexecConfig()
