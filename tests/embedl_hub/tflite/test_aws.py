"""AWS Device Farm: AWS's real client with botocore's stubs, which check every call against the service's own shapes."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import AWSConfig, Device, DeviceSpec
from embedl_hub.core.profile import ProfileError, TFLiteProfiler
from embedl_hub.errors import ConfigError
from embedl_hub.providers.aws.package import packed
from embedl_hub.providers.aws.package import test_spec as spec_of
from embedl_hub.providers.aws.service import pool_rules
from embedl_hub.toolchain.refusal import RefusedError
from embedl_hub.tracking import Run, RunStatus

PROJECT = "arn:aws:devicefarm:us-west-2:123456789012:project:11111111-2222-3333-4444-555555555555"
RUN = PROJECT.replace(":project:", ":run:") + "/00000000-0000-0000-0000-000000000001"
CONSOLE = """count=15 first=490 curr=336 min=328 max=490 avg=348.1 std=39
count=50 first=328 curr=339 min=326 max=340 avg=332.5 std=4
Inference timings in us: Init: 855, First inference: 490, Warmup (avg): 348.1, Inference (avg): 332.5
"""
TABLE = """============================== Run Order ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
CONV_2D, 0.000, 0.300, 0.200, 100%, 100%, 0.0, 10, [c]:0
"""


class Links:
    """The links that the service hands out: what was put there, and what can be fetched."""

    def __init__(self) -> None:
        self.put: dict[str, bytes] = {}
        self.content: dict[str, bytes] = {}
        links = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Keep quiet."""

            def do_PUT(self) -> None:
                links.put[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(links.content[self.path])

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("Host_Machine_Files/$DEVICEFARM_LOG_DIR/benchmark_model.txt", CONSOLE)
        file.writestr("Host_Machine_Files/$DEVICEFARM_LOG_DIR/operators.bin", TABLE)
    made.content["/artifacts"] = archive.getvalue()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    client = boto3.client(
        "devicefarm",
        region_name="us-west-2",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106 - no secret
    )
    monkeypatch.setattr("embedl_hub.providers.aws.service.make_client", lambda _: client)
    with Stubber(client) as stubber:
        yield stubber


@pytest.fixture
def phone(tmp_path: Path) -> Device:
    tool = tmp_path / "benchmark_model"
    tool.write_bytes(b"\x7fELF for Android")
    config = AWSConfig(PROJECT, str(tool), attributes=("OS_VERSION:GREATER_THAN_OR_EQUALS:13",), poll_s=0.0)
    return Device("phone", spec=DeviceSpec(device_name="Pixel 8"), provider_type="aws", provider_config=config)


def uploads(stubs: Stubber, links: Links) -> None:
    """Expect two uploads; the first is still being looked at when asked once."""
    for number, kind in enumerate(("APPIUM_WEB_PYTHON_TEST_PACKAGE", "APPIUM_WEB_PYTHON_TEST_SPEC")):
        arn = PROJECT.replace(":project:", ":upload:") + f"/{number}"
        made = {"arn": arn, "url": f"{links.url}/upload{number}", "status": "INITIALIZED"}
        wanted = {"projectArn": PROJECT, "name": ANY, "type": kind, "contentType": "application/octet-stream"}
        stubs.add_response("create_upload", {"upload": made}, wanted)
        states = ("PROCESSING", "SUCCEEDED") if number == 0 else ("SUCCEEDED",)
        for state in states:
            stubs.add_response("get_upload", {"upload": {"arn": arn, "status": state}}, {"arn": arn})


def pool(stubs: Stubber) -> str:
    """Expect a pool of the rules that were asked for."""
    arn = PROJECT.replace(":project:", ":devicepool:") + "/1"
    rules = [
        {"attribute": "OS_VERSION", "operator": "GREATER_THAN_OR_EQUALS", "value": '"13"'},
        {"attribute": "MODEL", "operator": "EQUALS", "value": '"Pixel 8"'},
        {"attribute": "PLATFORM", "operator": "EQUALS", "value": '"ANDROID"'},
    ]
    wanted = {"projectArn": PROJECT, "name": ANY, "rules": rules, "maxDevices": 1}
    stubs.add_response("create_device_pool", {"devicePool": {"arn": arn}}, wanted)
    return arn


def scheduled(stubs: Stubber) -> None:
    """Expect the run."""
    stubs.add_response("schedule_run", {"run": {"arn": RUN, "status": "SCHEDULING"}})


def last_run(ctx: HubContext) -> Run:
    """Return the newest run, whole."""
    store = ctx.client.store
    assert store is not None
    return store.run(store.find(limit=1).runs[0].id)


def test_a_profile_on_a_phone(
    stubs: Stubber, links: Links, phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path
) -> None:
    """Upload, pool, run, artifacts; time in the queue apart from time on the phone; what it cost."""
    uploads(stubs, links)
    arn = pool(stubs)
    scheduled(stubs)
    for state in ("PENDING_DEVICE", "RUNNING"):
        stubs.add_response("get_run", {"run": {"arn": RUN, "status": state}}, {"arn": RUN})
    minutes = {"total": 2.5, "metered": 2.0, "unmetered": 0.5}
    ended = {"arn": RUN, "status": "COMPLETED", "result": "PASSED", "deviceMinutes": minutes}
    stubs.add_response("get_run", {"run": ended}, {"arn": RUN})
    stubs.add_response("delete_device_pool", {}, {"arn": arn})
    device = {"arn": "arn:aws:devicefarm:us-west-2::device:1", "name": "Google Pixel 8", "os": "14"}
    job = RUN.replace(":run:", ":job:")
    stubs.add_response("list_jobs", {"jobs": [{"arn": job, "device": device}]}, {"arn": RUN})
    artifact = {"name": "Customer Artifacts", "type": "CUSTOMER_ARTIFACT", "url": f"{links.url}/artifacts"}
    stubs.add_response("list_artifacts", {"artifacts": [artifact]}, {"arn": RUN, "type": "FILE"})
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

    monkeypatch.setattr("embedl_hub.providers.aws.service.time.sleep", sleep)
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
