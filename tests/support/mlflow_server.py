"""A real MLflow server in an environment of its own, one that is recorded, and one that only repeats what was recorded.

with real_server(folder) as url: ...                       the server; a start takes some seconds
with recording(url) as (proxy_url, exchanges): ...         what goes through it is kept
with repeating(exchanges) as url: ...                      each question must be the recorded one, in order
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environments

from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus, Staging, Store, Value
from support.hub_server import free_port

VERSION = environments.MLFLOW.packages[0].partition("==")[2]
_START_S = 180.0
_TIME = 1_763_000_000_000
VALUES = (0.1, -0.0, 5e-324, math.nan, math.inf, -math.inf, 1.7e308, 1 / 3, -2.5)
PARAMS: dict[str, Value] = {
    "$runtime": "1.2", "top-1 %": 3, "looks like a number": "3", "looks true": "true", "list": [1, {"a": None}],
    "none": None, "flag": True, "float": 0.1, "text": "plain text, ü", "../up": "p", "a/b": 1, "_u24_": "as it is",
    "empty": "", "quoted": '"q"',
}  # fmt: skip


def add_runs(store: Store, folder: Path, *, long: int = 6001) -> list[str]:
    """Put runs into a store that are the same every time: one with everything, its part, and one that failed."""
    model, data = folder / "net.onnx", folder / "data"
    model.write_bytes(b"model" * 100)
    (data / "inner").mkdir(parents=True)
    (data / "inner" / "a.txt").write_text("a", encoding="utf-8")
    (data / "b.txt").write_text("b", encoding="utf-8")
    params = {name: LoggedParam(name, value) for name, value in {**PARAMS, "long": "x" * long}.items()}
    metrics = [LoggedMetric("loss $", value, step, _TIME + 10 + step) for step, value in enumerate(VALUES)]
    metrics += [LoggedMetric("accuracy", 0.5, None, _TIME + 50), LoggedMetric("below zero", 1.0, -5, _TIME + 51)]
    names = {"path": "net.onnx", "data, 100 %": "data"}
    artifacts = {name: LoggedArtifact(name, file_name, 0, "", False) for name, file_name in names.items()}
    whole = Run(
        "00000000000a1", "nets", "COMPILE", "the whole, ü", RunStatus.FINISHED, _TIME, _TIME + 1000,
        component="ONNXRuntimeCompiler", provider="local", device="kitchen", params=params, metrics=tuple(metrics),
        tags={"stage": "ci", "note": "two\nlines", "odd $": "1", "empty": ""}, artifacts=artifacts,
    )  # fmt: skip
    read = {"input": LoggedArtifact("input", "input_net.onnx", 0, "", False)}
    part = Run(
        "00000000000a2", "nets", "PROFILE", "a part", RunStatus.FINISHED, _TIME + 100, _TIME + 200,
        parent_id=whole.id, artifacts=read, archived=True,
    )  # fmt: skip
    failed = Run(
        "00000000000a3", "nets", "CUSTOM", "failed", RunStatus.FAILED, _TIME + 300, _TIME + 400,
        error="ValueError: no", traceback="Traceback ...\n" * 3,
    )  # fmt: skip
    with Staging(store) as staging:
        staging.add(whole, {"path": model, "data, 100 %": data})
        staging.add(part, {"input": model})
        staging.add(failed, {})
    return [whole.id, part.id, failed.id]


@contextlib.contextmanager
def real_server(folder: Path, **variables: str) -> Iterator[str]:
    """Start an MLflow server with its database and artifacts in a folder, and yield its address."""
    program = environments.python_of(environments.MLFLOW).with_name("mlflow")
    port = free_port()
    argv = [
        str(program), "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination",
        str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **variables}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_S
        while not _is_up(port):
            said = (folder / "server.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        # It starts workers, which do not all end with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


Exchange = dict[str, Any]
"""What was asked (``method``, ``path``, ``body``) and answered (``status``, ``answer``)."""
Answer = tuple[int, bytes, dict[str, str]]


@contextlib.contextmanager
def answering(answer: Callable[[str, str, bytes, dict[str, str]], Answer]) -> Iterator[str]:
    """Serve what a function answers to a method, a path, a body and headers; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content, headers = answer(self.command, self.path, body, dict(self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = _any  # noqa: N815 - the base class's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def passed_on(url: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Return what a server answers to a question."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    sent = {name: value for name, value in headers.items() if name in {"Content-Type", "Accept-Encoding"}}
    with contextlib.closing(connection):
        connection.request(method, path, body=body or None, headers=sent)
        answer = connection.getresponse()
        return answer.status, answer.read(), {}


@contextlib.contextmanager
def recording(url: str) -> Iterator[tuple[str, list[Exchange]]]:
    """Pass everything on to a server and keep it."""
    kept: list[Exchange] = []

    def keep(method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        status, content, _ = passed_on(url, method, path, body, headers)
        asked = {"method": method, "path": path, "body": as_text(body)}
        kept.append({**asked, "status": status, "answer": as_text(content)})
        return status, content, {}

    with answering(keep) as proxy:
        yield proxy, kept


@contextlib.contextmanager
def repeating(exchanges: list[Exchange]) -> Iterator[str]:
    """Answer as was recorded; at the end every question must have been the recorded one, in the same order."""
    left, wrong = list(exchanges), list[str]()

    def recorded(method: str, path: str, body: bytes, _headers: dict[str, str]) -> Answer:
        asked = (method, path, as_text(body))
        if not left or wrong or asked != tuple(left[0][name] for name in ("method", "path", "body")):
            wrong.append(f"{asked!r:.1500} is not {left[0] if left else 'to be asked'!r}")
            return 400, b'{"message": "This is not what was recorded."}', {}
        found = left.pop(0)
        return int(found["status"]), as_bytes(found["answer"]), {}

    with answering(recorded) as url:
        yield url
    assert not wrong, wrong[0]
    assert not left, f"{len(left)} questions were not asked, first {left[0]['path']}"


def as_text(content: bytes) -> str:
    """Return bytes for a JSON file."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(content).decode()}"


def as_bytes(text: str) -> bytes:
    """Return what `as_text` was given."""
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()
