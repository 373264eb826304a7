"""AWS Device Farm: AWS's real client with botocore's stubs, which check every call against the service's own shapes."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from support.aws import PROJECT, RUN, Links, make_client, make_phone, pool, scheduled, uploads, whole_profile

from embedl_hub.clouds.aws.service import pool_rules
from embedl_hub.clouds.aws.tflite import packed
from embedl_hub.clouds.aws.tflite import test_spec as spec_of
from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import AWSConfig, Device
from embedl_hub.core.profile import ProfileError, TFLiteProfiler
from embedl_hub.errors import ConfigError
from embedl_hub.refusal import RefusedError
from embedl_hub.tracking import Run, RunStatus


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.stop()


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    client = make_client()
    monkeypatch.setattr("embedl_hub.clouds.aws.service.make_client", lambda _: client)
    with Stubber(client) as stubber:
        yield stubber


@pytest.fixture
def phone(tmp_path: Path) -> Device:
    return make_phone(tmp_path)


def last_run(ctx: HubContext) -> Run:
    """Return the newest run, whole."""
    store = ctx.client.store
    assert store is not None
    return store.run(store.find(limit=1).runs[0].id)


def test_a_profile_on_a_phone(
    stubs: Stubber, links: Links, phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path
) -> None:
    """Upload, pool, run, artifacts; time in the queue apart from time on the phone; what it cost."""
    whole_profile(stubs, links)
    with HubContext("aws", [phone], home=tmp_path / "home") as ctx:
        result = TFLiteProfiler().run(ctx, compiled["float"])
        run = last_run(ctx)
    stubs.assert_no_pending_responses()
    assert result.latency.value == pytest.approx(0.3325)
    assert (result.verdict, [layer.op_type for layer in result.layers]) == ("indicative", ["CONV_2D"])
    assert result.layers[0].time_ms == pytest.approx(0.2)
    cost, queue = run.metric("cost_usd"), run.metric("queue_seconds")
    assert cost is not None
    assert queue is not None
    assert cost.value == pytest.approx(0.34)
    assert run.params["$aws_run_arn"].value == RUN
    states: Any = run.params["aws_run_states"].value
    assert [state["state"] for state in states] == ["PENDING_DEVICE", "RUNNING", "COMPLETED"]
    assert "raw" in run.artifacts
    with zipfile.ZipFile(io.BytesIO(links.put["/upload0"])) as archive:
        assert archive.read("model.tflite") == compiled["float"].path.local().read_bytes()
        assert {"tests/test_nothing.py", "requirements.txt", "benchmark_model"} <= set(archive.namelist())
    assert b"adb -s" in links.put["/upload1"]


def test_ctrl_c_stops_the_phone(
    stubs: Stubber,
    links: Links,
    phone: Device,
    compiled: dict[str, TFLiteCompiledModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run there is stopped, the pool removed, the run here is KILLED and keeps the ARN."""
    uploads(stubs, links)
    arn = pool(stubs)
    scheduled(stubs)
    stubs.add_response("get_run", {"run": {"arn": RUN, "status": "RUNNING"}}, {"arn": RUN})
    stubs.add_response("stop_run", {"run": {"arn": RUN, "status": "STOPPING"}}, {"arn": RUN})
    stubs.add_response("delete_device_pool", {}, {"arn": arn})
    pauses = iter([None, KeyboardInterrupt()])

    def sleep(_: float) -> None:
        if (raised := next(pauses)) is not None:
            raise raised

    monkeypatch.setattr("embedl_hub.clouds.aws.service.time.sleep", sleep)
    with HubContext("aws", [phone], home=tmp_path / "home") as ctx:
        with pytest.raises(KeyboardInterrupt):
            TFLiteProfiler().run(ctx, compiled["float"])
        run = last_run(ctx)
    stubs.assert_no_pending_responses()
    assert run.status is RunStatus.KILLED
    assert run.params["$aws_run_arn"].value == RUN


@pytest.mark.parametrize(
    ("code", "says", "words"),
    [
        ("ThrottlingException", "Rate exceeded", "ThrottlingException: Rate exceeded.*asked too often"),
        ("NotEligibleException", "no plan", "NotEligibleException: no plan"),
    ],
)
def test_what_the_service_refuses_is_told(
    stubs: Stubber,
    phone: Device,
    compiled: dict[str, TFLiteCompiledModel],
    tmp_path: Path,
    code: str,
    says: str,
    words: str,
) -> None:
    """In one sentence with its code."""
    stubs.add_client_error("create_upload", code, says)
    with HubContext("aws", [phone], home=tmp_path / "home") as ctx, pytest.raises(ProfileError, match=words):
        TFLiteProfiler().run(ctx, compiled["float"])


def test_a_run_that_leaves_nothing_is_told_with_its_arn(
    stubs: Stubber, links: Links, phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path
) -> None:
    """With the service's own reason."""
    uploads(stubs, links)
    pool(stubs)
    scheduled(stubs)
    ended = {"arn": RUN, "status": "COMPLETED", "result": "ERRORED", "message": "device went away"}
    stubs.add_response("get_run", {"run": ended}, {"arn": RUN})
    stubs.add_client_error("delete_device_pool", "NotFoundException", "gone")
    stubs.add_response("list_jobs", {"jobs": []}, {"arn": RUN})
    stubs.add_response("list_artifacts", {"artifacts": []}, {"arn": RUN, "type": "FILE"})
    with (
        HubContext("aws", [phone], home=tmp_path / "home") as ctx,
        pytest.raises(ProfileError, match=r"run arn:\S+ ended ERRORED \(device went away\)"),
    ):
        TFLiteProfiler().run(ctx, compiled["float"])


def test_missing_credentials_give_the_line_to_type(
    phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves this machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with HubContext("aws", [phone], home=tmp_path / "home") as ctx, pytest.raises(ProfileError, match="aws configure"):
        TFLiteProfiler().run(ctx, compiled["float"])


def test_flags_cannot_become_commands(tmp_path: Path) -> None:
    """They pass through two shells, so only plain words pass."""
    with pytest.raises(RefusedError, match="benchmark_args may hold"):
        spec_of(["--graph=x; rm -rf /"], [])
    spec = spec_of(["--num_runs=3"], ["--enable_op_profiling=true"])
    assert spec.count("adb -s") == 8
    with pytest.raises(RefusedError, match="There is no"):
        packed(tmp_path / "m.tflite", tmp_path / "no-tool")


def test_rules_are_json_and_read_in_order() -> None:
    """A value in a list where the operator takes one."""
    rules = pool_rules(("MANUFACTURER:IN:Google", "PLATFORM:EQUALS:IOS"), None)
    assert [json.loads(rule["value"]) for rule in rules] == [["Google"], "IOS"]
    with pytest.raises(ConfigError, match="ATTRIBUTE:OPERATOR:VALUE"):
        AWSConfig(PROJECT, "tool", attributes=("Pixel",))


def test_a_goal_is_refused_before_anything_is_sent(
    stubs: Stubber, phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path
) -> None:
    """The phone's own program measures."""
    words = "AWS Device Farm cannot measure until 'mlperf'"
    with HubContext("aws", [phone], home=tmp_path / "home") as ctx, pytest.raises(ProfileError, match=words):
        TFLiteProfiler().run(ctx, compiled["float"], until="mlperf")
    stubs.assert_no_pending_responses()
