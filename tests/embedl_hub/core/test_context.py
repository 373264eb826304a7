"""The context: project, devices, client; opened and closed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiler
from embedl_hub.core.device import CommandResult, Device, DeviceSpec
from embedl_hub.errors import CommandError, ConfigError, TrackingError
from embedl_hub.testing import Answer, scripted_device, temporary_context
from embedl_hub.tracking import RunStatus, Store


def test_the_store_is_where_home_says(tmp_path: Path) -> None:
    """An explicit home goes before everything else, and appears on opening only."""
    ctx = HubContext("p", home=tmp_path / "deep" / "home")
    assert not (tmp_path / "deep").exists()
    with ctx, ctx.client.start_run():
        pass
    with Store(tmp_path / "deep" / "home") as store:
        assert [project.name for project in store.projects()] == ["p"]


def test_two_devices_of_one_name_are_refused() -> None:
    """Names are how components find them."""
    with pytest.raises(ConfigError, match="Two devices are called 'x'"):
        HubContext("p", [Device("x"), Device("x")])


def test_one_device_must_stand_in_a_list() -> None:
    """The message shows how."""
    with pytest.raises(ConfigError, match=r"devices=\['x' ...\]"):
        HubContext("p", Device("x"))  # type: ignore[arg-type]


def test_an_unknown_device_is_answered_with_the_known() -> None:
    """By index and by name alike; it is a KeyError and reads as a sentence."""
    with temporary_context([Device("x")], tracking=False) as ctx:
        with pytest.raises(KeyError, match=r"^There is no device 'y' on this context; its devices are: 'x'\.$"):
            ctx.devices["y"]
        assert ctx.devices.get("y") is None
        assert "y" not in ctx.devices


def test_a_wait_must_be_a_number() -> None:
    """When the context is made."""
    with pytest.raises(ConfigError, match="lease_wait_s is '5'"):
        HubContext("p", lease_wait_s="5")  # type: ignore[arg-type]


def test_unknown_types_and_states_list_the_known() -> None:
    """Silence would look like an empty store."""
    with temporary_context() as ctx:
        with (
            pytest.raises(ConfigError, match="no run type 'COMPILEX'; known: 'COMPILE'"),
            ctx.client.start_run("COMPILEX"),
        ):
            pass
        assert ctx.client.store is not None
        with pytest.raises(ConfigError, match="no run status 'done'; known: 'FAILED'"):
            ctx.client.store.runs("status = 'done'")
        assert ctx.client.store.runs("status = 'finished'") == []


def test_something_that_is_no_device_is_refused() -> None:
    """A string is an easy slip."""
    with pytest.raises(ConfigError, match="Device objects, not 'board'"):
        HubContext("p", ["board"])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 300])
def test_a_bad_project_name_is_refused(name: str, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="project name"), HubContext(name, home=tmp_path):
        pass


def test_opening_twice_is_refused(tmp_path: Path) -> None:
    """One context is one stretch of work."""
    with HubContext("p", home=tmp_path) as ctx, pytest.raises(ConfigError, match="already open"), ctx:
        pass


def test_the_client_is_only_there_while_open(tmp_path: Path) -> None:
    """Before and after, the error says how to open."""
    ctx = HubContext("p", home=tmp_path)
    with pytest.raises(TrackingError, match="use: with HubContext"):
        _ = ctx.client
    with ctx:
        assert ctx.client is not None
    with pytest.raises(TrackingError, match="not open"):
        _ = ctx.artifact_dir


def test_the_artifact_folder_needs_a_run() -> None:
    """Outside a run there is no folder to give, and the error says what to do."""
    with temporary_context() as ctx, pytest.raises(TrackingError, match="No run is active"):
        _ = ctx.artifact_dir


def test_a_device_off_the_context_has_no_artifact_folder() -> None:
    """Folders belong to runs, runs to contexts."""
    with pytest.raises(ConfigError, match=r"use ctx.devices\['x'\]"):
        _ = Device("x").artifact_dir


def test_run_folders_on_a_board_go_when_the_context_closes(tmp_path: Path) -> None:
    """Unless they are to be kept; contents stay for the next time."""
    for keep in (False, True):
        root = tmp_path / str(keep)
        device = scripted_device(root)
        with HubContext("p", [device], home=tmp_path / "home", keep_remote=keep) as ctx:
            (tmp_path / "model.bin").write_bytes(b"model")
            with ctx.client.start_run():
                folder = Path(ctx.devices["board"].artifact_dir)
                artifact = ctx.client.log_artifact(tmp_path / "model.bin", name="input")
                sent = Path(artifact.to_remote(ctx, device_name="board").remote())
                assert folder.is_dir()
        assert folder.is_dir() is keep
        assert sent.read_bytes() == b"model"


def test_an_artifact_goes_to_the_board_once(tmp_path: Path) -> None:
    """The second time its content is found there, under any run."""
    (tmp_path / "model.bin").write_bytes(b"model")
    sent: list[str] = []
    device = scripted_device(tmp_path / "board")
    assert device.runner is not None
    put = device.runner.put

    def counted(local: Path, remote: Path) -> None:
        sent.append(str(remote))
        put(local, remote)

    device.runner.put = counted  # type: ignore[method-assign, assignment]
    with temporary_context([device]) as ctx:
        for _ in range(3):
            with ctx.client.start_run():
                artifact = ctx.client.log_artifact(tmp_path / "model.bin", name="input")
                place = artifact.to_remote(ctx, device_name="board").remote()
    assert len(sent) == 1
    assert place.name == "model.bin"


def test_a_folder_travels_whole(tmp_path: Path) -> None:
    """A model with external data is a folder, here and there."""
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "model.onnx").write_bytes(b"graph")
    (model / "sub" / "weights.bin").write_bytes(b"weights")
    with temporary_context([scripted_device(tmp_path / "board")]) as ctx, ctx.client.start_run() as run:
        artifact = ctx.client.log_artifact(model, name="input").to_remote(ctx, device_name="board")
        there, here = Path(artifact.remote()), artifact.to_local(ctx).local()
        for place in (there, here):
            assert (place / "sub" / "weights.bin").read_bytes() == b"weights"
        assert artifact.is_folder
        assert artifact.size_bytes == 12
        assert ctx.client.store is not None
        assert ctx.client.store.run_dir(run.id) in here.parents


def test_an_artifact_that_is_gone_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """A deleted run folder is told, with the way back."""
    (tmp_path / "model.bin").write_bytes(b"model")
    with temporary_context() as ctx:
        with ctx.client.start_run():
            artifact = ctx.client.log_artifact(tmp_path / "model.bin", name="input")
        assert ctx.client.store is not None
        artifact.local().unlink()
        assert artifact.to_local(ctx).local() == ctx.client.store.blobs.path_of(artifact.sha256)
        ctx.client.store.blobs.path_of(artifact.sha256).unlink()
        with pytest.raises(TrackingError, match=r"'input' \(model.bin\).*embedl-hub reindex"):
            artifact.to_local(ctx)


def test_asking_for_a_path_too_early_says_what_to_call(tmp_path: Path) -> None:
    """local() and remote() are facts, not actions."""
    (tmp_path / "model.bin").write_bytes(b"model")
    with temporary_context() as ctx, ctx.client.start_run():
        artifact = ctx.client.log_artifact(tmp_path / "model.bin", name="input")
        with pytest.raises(TrackingError, match=r"is on no device; call .to_remote\(ctx, device_name='b'\)"):
            artifact.remote("b")


class SilentRunner:
    """A board without a shell."""

    def run(
        self, argv: object, cwd: object = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        raise CommandError([str(argv)], 127)

    def put(self, local: object, remote: object) -> None: ...

    def get(self, remote: object, local: object) -> None: ...


def test_a_board_without_a_shell_keeps_the_spec_it_was_given() -> None:
    """Not every runner leads to a POSIX system."""
    spec = DeviceSpec(device_name="RTOS board", architecture="riscv32")
    with temporary_context([Device("rtos", SilentRunner(), spec)]) as ctx:
        assert ctx.device_spec("rtos") == spec


def test_a_run_left_open_is_marked_when_the_context_closes(tmp_path: Path) -> None:
    """A generator that is never finished must not leave a run alive."""
    with HubContext("p", home=tmp_path) as ctx:
        started = ctx.client.start_run()
        run = started.__enter__()
    with Store(tmp_path) as store:
        assert store.run(run.id).status is RunStatus.KILLED


def test_tags_of_a_context_are_on_every_run_of_a_component(tmp_path: Path) -> None:
    """To find them by; a name that is none is refused when the context is made."""
    model = tmp_path / "net.onnx"
    model.write_bytes(b"no model")
    with HubContext("p", home=tmp_path / "home", tags={"stage": "ci"}) as ctx:
        with pytest.raises(CompileError):
            ONNXRuntimeCompiler().run(ctx, model)
        assert ctx.client.store is not None
        (run,) = ctx.client.store.runs()
        assert ctx.client.store.run(run.id).tags == {"stage": "ci"}
    with pytest.raises(ConfigError, match="tag name"):
        HubContext("p", tags={" ": "x"})


def test_a_claim_is_used_while_a_run_waits_for_it(tmp_path: Path) -> None:
    """A health check has claimed the board and uses it; the run of another thread waits for that claim."""
    with HubContext("p", [scripted_device(tmp_path, [Answer(["true"])])], home=tmp_path / "home") as ctx:
        runner = ctx.devices["board"].runner
        assert runner is not None

        def run() -> None:
            with ctx.client.start_run(), ctx.run_on("board"):
                runner.run(["true"])

        def use() -> None:
            with ctx.claim("board"):
                other.start()
                while not waits():
                    time.sleep(0.01)
                runner.run(["true"])
                used.set()

        def waits() -> bool:
            return any(each._has_begun for each in ctx._uses)

        other = threading.Thread(target=run, daemon=True)
        used = threading.Event()
        threading.Thread(target=use, daemon=True).start()
        assert used.wait(20), "the claim's own thread waits for who waits for the claim"
        other.join(20)
        assert not other.is_alive()
