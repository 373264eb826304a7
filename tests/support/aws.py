"""AWS Device Farm: AWS's real client with botocore's stubs, and the links that the service hands out."""

from __future__ import annotations

import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import boto3
from botocore.stub import ANY, Stubber

from embedl_hub.core.device import AWSConfig, Device, DeviceSpec

if TYPE_CHECKING:
    from pathlib import Path

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
        self.content: dict[str, bytes] = {"/artifacts": _artifacts()}
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

    def stop(self) -> None:
        """End the service."""
        self.server.shutdown()
        self.server.server_close()


def _artifacts() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("Host_Machine_Files/$DEVICEFARM_LOG_DIR/benchmark_model.txt", CONSOLE)
        file.writestr("Host_Machine_Files/$DEVICEFARM_LOG_DIR/operators.bin", TABLE)
    return archive.getvalue()


def make_client() -> Any:
    """Return AWS's client with keys that open nothing."""
    return boto3.client(
        "devicefarm",
        region_name="us-west-2",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106 - no secret
    )


def make_phone(folder: Path) -> Device:
    """Return a phone chosen by its attributes, with a file in the place of the benchmark."""
    tool = folder / "benchmark_model"
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


def whole_profile(stubs: Stubber, links: Links) -> None:
    """Expect everything that a profile asks for, in order."""
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
