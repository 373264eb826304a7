"""A step's life: options resolved, device chosen, run recorded, exception passed on."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, ProviderType, RunType
from embedl_hub.core.device import CommandResult, Device, DeviceSpec, Lease
from embedl_hub.errors import ConfigError, ConnectError, SignatureError, TrackingError
from embedl_hub.testing import scripted_device, temporary_context
from embedl_hub.tracking import Run, RunStatus


def make_component() -> type[Component]:
    """Return a fresh component class, so that tests do not see each other's providers."""

    class Step(Component):
        run_type = RunType.COMPILE

        def __init__(
            self, *, name: str | None = None, device: str | None = None, level: int = 1, api_key: str | None = None
        ) -> None:
            super().__init__(name=name, device=device, level=level, api_key=api_key)

        def run(
            self,
            ctx: HubContext,
            model: Path,
            *,
            device: str | None = None,
            level: int = 1,
            api_key: str | None = None,
        ) -> Any:
            raise NoProviderError

    return Step


def touch(ctx: HubContext, model: Path, *, device: str | None = None, **_: object) -> None:
    """Use the device."""
    assert ctx.devices[str(device)].artifact_dir.is_absolute()


def echo(ctx: HubContext, model: Path, **options: object) -> dict[str, object]:
    """Return what a provider was given."""
    return {"model": model, **options}


def last_run(ctx: HubContext) -> Run:
    assert ctx.client.store is not None
    return ctx.client.store.run(ctx.client.store.find(limit=1).runs[0].id)


def call(step: Component, ctx: HubContext, *args: object, **options: object) -> Any:
    return step.run(ctx, *args, **options)  # type: ignore[attr-defined]


def test_a_value_given_to_run_goes_before_the_constructor_before_the_default() -> None:
    """Three places, in this order; one given explicitly counts even if it equals the default."""
    step = make_component()
    step.provider("local")(echo)
    with temporary_context() as ctx:
        assert call(step(), ctx, Path("m"))["level"] == 1
        assert call(step(level=2), ctx, Path("m"))["level"] == 2
        assert call(step(level=2), ctx, Path("m"), level=3)["level"] == 3
        assert call(step(level=2), ctx, Path("m"), level=1)["level"] == 1


def test_none_given_explicitly_counts() -> None:
    """None at the call is a value, not an absence."""
    step = make_component()
    step.provider("local")(echo)
    with temporary_context() as ctx:
        assert call(step(api_key="abcdefgh"), ctx, Path("m"), api_key=None)["api_key"] is None


def test_a_path_may_be_given_as_text() -> None:
    """Providers always see a Path where the declaration says so."""
    step = make_component()
    step.provider("local")(echo)
    with temporary_context(tracking=False) as ctx:
        assert call(step(), ctx, "m.onnx")["model"] == Path("m.onnx")


def test_wrong_arguments_are_named() -> None:
    """A missing model and an unknown option are told with the signature."""
    step = make_component()
    step.provider("local")(echo)
    with temporary_context() as ctx:
        with pytest.raises(SignatureError, match=r"Step.run\(ctx.*missing.*'model'"):
            call(step(), ctx)
        with pytest.raises(SignatureError, match="no option 'speed'; it has: 'api_key', 'device', 'level'"):
            call(step(), ctx, Path("m"), speed=1)
        with pytest.raises(ConfigError, match="model must be a path, not 5"):
            call(step(), ctx, 5)
        with pytest.raises(SignatureError, match="belongs to an instance"):
            step.run(ctx, Path("m"))  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="takes a HubContext first"):
            step().run("not a context", Path("m"))  # type: ignore[attr-defined]
    with pytest.raises(SignatureError, match=r"no option 'speed'; it has: 'api_key', 'device', 'level'"):
        Component.__init__(step(), speed=1)


def test_a_run_is_recorded_with_everything() -> None:
    """Type, names, status, resolved options, versions and times."""
    step = make_component()
    step.provider(ProviderType.LOCAL, tools=("numpy", "no-such-distribution"))(echo)
    with temporary_context() as ctx:
        call(step(name="packing", level=5), ctx, Path("m"))
        run = last_run(ctx)
    assert (run.type, run.name, run.status) == ("COMPILE", "packing", RunStatus.FINISHED)
    assert (run.component, run.provider, run.device) == ("Step", "local", None)
    assert run.params["level"].value == 5
    versions = run.params["$versions"].value
    assert isinstance(versions, dict)
    assert versions["edgeproof-hub"]
    assert versions["numpy"]
    assert versions["no-such-distribution"] is None
    assert run.ended_ms is not None
    assert run.ended_ms >= run.started_ms


def test_an_exception_marks_the_run_and_goes_on_unchanged() -> None:
    """FAILED, with the error and its traceback; the caller sees the very same exception."""
    step = make_component()
    error = RuntimeError("the tool broke")

    @step.provider("local")
    def _fail(ctx: HubContext, model: Path, **_: object) -> None:
        ctx.client.log_metric("reached", 1)
        raise error

    with temporary_context() as ctx:
        with pytest.raises(RuntimeError) as caught:
            call(step(), ctx, Path("m"))
        assert caught.value is error
        run = last_run(ctx)
    assert run.status is RunStatus.FAILED
    assert run.error == "RuntimeError: the tool broke"
    assert run.traceback is not None
    assert "_fail" in run.traceback
    assert run.metric("reached") is not None


def test_ctrl_c_marks_the_run_killed() -> None:
    """An interrupted run is not a failed one."""
    step = make_component()

    @step.provider("local")
    def _interrupted(ctx: HubContext, model: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with temporary_context() as ctx:
        with pytest.raises(KeyboardInterrupt):
            call(step(), ctx, Path("m"))
        assert last_run(ctx).status is RunStatus.KILLED


def test_a_step_inside_a_step_is_its_child() -> None:
    """Nested runs keep who started them, and each has a folder of its own."""
    outer, inner = make_component(), make_component()
    folders: list[Path] = []

    @inner.provider("local")
    def _inner(ctx: HubContext, model: Path, **_: object) -> None:
        folders.append(ctx.artifact_dir)

    @outer.provider("local")
    def _outer(ctx: HubContext, model: Path, **_: object) -> None:
        folders.append(ctx.artifact_dir)
        call(inner(), ctx, model)
        folders.append(ctx.artifact_dir)

    with temporary_context() as ctx:
        call(outer(), ctx, Path("m"))
        assert ctx.client.store is not None
        child, parent = ctx.client.store.runs()
    assert child.parent_id == parent.id
    assert folders[0] == folders[2] != folders[1]


def test_threads_on_one_context_see_their_own_runs() -> None:
    """Eight threads, each with many runs: every row there, every folder its own."""
    step = make_component()

    @step.provider("local")
    def _write(ctx: HubContext, model: Path, **_: object) -> str:
        (ctx.artifact_dir / "file").write_text(str(model))
        ctx.client.log_param("model", model)
        assert (ctx.artifact_dir / "file").read_text() == str(model)
        return ctx.client.run.id

    ids: list[str] = []
    with temporary_context() as ctx:

        def work(thread: int) -> None:
            ids.extend(call(step(), ctx, Path(f"m{thread}-{index}")) for index in range(20))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ctx.client.store is not None
        runs = ctx.client.store.runs()
        assert {run.status for run in runs} == {RunStatus.FINISHED}
        params = {ctx.client.store.run(run.id).params["model"].value for run in runs}
    assert len(set(ids)) == len(runs) == len(params) == 160


def test_with_tracking_off_everything_works_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is there, records in memory, and the home stays empty."""
    monkeypatch.setenv("EMBEDL_HUB_HOME", str(tmp_path / "home"))
    step = make_component()

    @step.provider("local")
    def _write(ctx: HubContext, model: Path, **_: object) -> Path:
        path = ctx.artifact_dir / "out.bin"
        path.write_bytes(b"x")
        artifact = ctx.client.log_artifact(path, name="path")
        return artifact.to_local(ctx).local()

    with HubContext("p", tracking=False) as ctx:
        written = call(step(), ctx, Path("m"))
        assert written.read_bytes() == b"x"
    assert not (tmp_path / "home").exists()
    assert not written.exists()


def test_secrets_in_options_are_not_recorded() -> None:
    """An option with a telling name is kept out, also where an error quotes its value."""
    step = make_component()

    @step.provider("local")
    def _fail(ctx: HubContext, model: Path, *, api_key: str | None = None, **_: object) -> None:
        raise RuntimeError(f"login with {api_key} refused")

    with temporary_context() as ctx:
        with pytest.raises(RuntimeError, match="hunter2-hunter2"):
            call(step(), ctx, Path("m"), api_key="hunter2-hunter2")
        run = last_run(ctx)
    assert run.params["api_key"].value == "<redacted>"
    assert run.error == "RuntimeError: login with <redacted> refused"
    assert "hunter2" not in (run.traceback or "")


def test_a_closed_context_says_how_to_open_it() -> None:
    """Forgetting `with` is an easy slip."""
    step = make_component()
    step.provider("local")(echo)
    ctx = HubContext("p", tracking=False)
    with pytest.raises(TrackingError, match="use: with HubContext"):
        call(step(), ctx, Path("m"))


def test_the_device_and_its_spec_are_recorded(tmp_path: Path) -> None:
    """What the board answered is kept with the run; what the user said goes first."""
    step = make_component()
    step.provider("mine")(touch)
    device = scripted_device(tmp_path, provider_type="mine", spec=DeviceSpec(device_name="My Board", cores=99))
    with temporary_context([device]) as ctx:
        call(step(), ctx, Path("m"))
        run = last_run(ctx)
        call(step(), ctx, Path("m"))
        later = last_run(ctx)
        assert ctx.client.store is not None
        lines = next(ctx.client.store.home.rglob(f"{later.id}/*.jsonl")).read_text().splitlines()
        recorded = next(event["value"] for event in map(json.loads, lines) if event.get("name") == "$device_spec")
    spec = run.params["$device_spec"].value
    assert isinstance(spec, dict)
    assert (spec["device_name"], spec["cores"]) == ("My Board", 99)
    assert spec["architecture"]
    assert run.device == later.device == "board"
    assert later.params["$device_spec"] == run.params["$device_spec"]
    assert recorded == {"$run": run.id}


def test_a_board_that_is_off_stops_only_a_provider_that_needs_it(tmp_path: Path) -> None:
    """It is leased and asked at the first use of its runner, in a thread of the provider as well."""
    step = make_component()
    used: list[str] = []

    @step.provider("mine")
    def _use(ctx: HubContext, model: Path, *, device: str | None = None, **_: object) -> None:
        runner = ctx.devices[str(device)].runner
        assert isinstance(runner, DeadRunner)
        if model == Path("needs it"):
            runner.run(["true"])
        elif model == Path("in a thread"):
            thread = threading.Thread(target=lambda: used.append(_error_of(lambda: runner.run(["true"]))))
            thread.start()
            thread.join()

    dead = Device("board", runner=DeadRunner(), provider_type="mine", provider_config=None)
    with temporary_context([dead]) as ctx:
        call(step(), ctx, Path("does not"))
        assert "$claimed" not in last_run(ctx).params
        with pytest.raises(ConnectError, match="is off"):
            call(step(), ctx, Path("needs it"))
        call(step(), ctx, Path("in a thread"))
    assert used == ["is off"]


class DeadRunner:
    """Leads to a board that is off."""

    def run(self, argv: object, cwd: object = None, **_: object) -> CommandResult:
        raise ConnectError("is off")

    def put(self, local: object, remote: object) -> None:
        raise ConnectError("is off")

    def get(self, remote: object, local: object) -> None:
        raise ConnectError("is off")

    def lease(self, lock_dir: str, holder: str, *, wait_s: float) -> contextlib.AbstractContextManager[Lease]:
        raise ConnectError("is off")


def _error_of(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except ConnectError as error:
        return str(error)


def test_one_device_serves_one_run_at_a_time(tmp_path: Path) -> None:
    """Threads wait for each other on a device; a nested step on the same device does not wait for itself."""
    step = make_component()
    inside: list[int] = []
    most: list[int] = []

    @step.provider("mine")
    def _use(ctx: HubContext, model: Path, *, device: str | None = None, **_: object) -> None:
        touch(ctx, model, device=device)
        inside.append(1)
        most.append(len(inside))
        if model == Path("outer"):
            call(step(), ctx, Path("inner"))
        inside.pop()

    with temporary_context([scripted_device(tmp_path, provider_type="mine")]) as ctx:
        threads = [threading.Thread(target=lambda: call(step(), ctx, Path("outer"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 2
    assert len(most) == 8


def test_a_cloud_device_has_no_runner_and_no_folders() -> None:
    """Asking for what only a runner can do says so."""
    step = make_component()

    @step.provider("cloud")
    def _use(ctx: HubContext, model: Path, *, device: str | None = None, **_: object) -> None:
        assert device is not None
        str(ctx.devices[device].artifact_dir)

    with temporary_context([Device("phone", None, DeviceSpec("Phone"), "cloud")]) as ctx:
        with pytest.raises(Exception, match=r"'phone' \(cloud\) has no runner"):
            call(step(), ctx, Path("m"))
        spec = last_run(ctx).params["$device_spec"].value
    assert spec == {"device_name": "Phone"}
