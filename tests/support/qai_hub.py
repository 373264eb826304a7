"""A stand-in for Qualcomm AI Hub's HTTP service on loopback: the vendor's real client talks to it, models really run.

REST with protobuf bodies under /api/v1/; files go through links the answers name. Faults are switched on by name.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import h5py  # type: ignore[import-untyped]
import numpy as np
import onnx
import onnxruntime
import pytest
import qai_hub.public_api_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped]

from embedl_hub.core.device import Device, DeviceSpec, QAIHubConfig

TOKEN = "stand-in-token-5f1c"  # noqa: S105 - of the stand-in
DEVICE = "Samsung Galaxy S24"
TOOLS = (("QAIRT", "2.40.0"), ("ONNX Runtime", "1.23.1"))  # what ran a job, as the service's ProfileDetail names them
_PROTOBUF = "application/x-protobuf"


def make_phone() -> Device:
    """Return a device of the service, asked for its jobs' state all the time."""
    spec, config = DeviceSpec(device_name=DEVICE, os="14"), QAIHubConfig(poll_s=0.01)
    return Device("phone", spec=spec, provider_type="qai-hub", provider_config=config)


@contextmanager
def serving(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Start the service, and make the vendor's client and ours talk to it without pauses."""
    stand_in = StandIn(folder).start()
    patch.setenv("QAIHUB_CLIENT_INI", str(stand_in.ini))
    # The vendor's client waits up to half a minute between its own attempts at a transfer.
    patch.setattr("backoff._sync.time.sleep", lambda _: None)
    patch.setattr("embedl_hub.clouds.qai_hub.service._PAUSE_S", 0.0)
    yield stand_in
    stand_in.stop()


class StandIn:
    """The service. ``faults`` holds the names of what goes wrong; ``requests`` what was asked, in order."""

    def __init__(self, folder: Path) -> None:
        self.faults: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.jobs: dict[str, Any] = {}
        self.rename: dict[str, str] = {}
        self.profile_version = (1, 2)
        self.tflite = b""
        self.failures_left = 0
        self._files: dict[str, bytes] = {}
        self._results: dict[str, Any] = {}
        self._asked: dict[str, int] = {}
        self._numbers = iter(range(1, 10**6))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.ini = folder / "client.ini"
        self.ini.write_text(
            f"[api]\napi_token = {TOKEN}\napi_url = {self.url}\nweb_url = {self.url}\nverbose = False\n"
        )

    def start(self) -> Self:
        """Serve and return self."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        """End the service."""
        self._server.shutdown()
        self._server.server_close()

    def _new(self, letter: str) -> str:
        return f"{letter}{next(self._numbers):06d}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _serve(self) -> None:
                body = self._body()
                path = self.path.partition("?")[0].removeprefix("/api/v1").strip("/")
                service.requests.append((self.command, path))
                status, kind, content = service.answer(self.command, path, body, _titled(self.headers))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", '"etag"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_HEAD = _serve  # noqa: N815 - names of the base class

        return Handler

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """Return status, type and body of an answer."""
        if path.startswith("files/"):
            return self._file(method, path, body, headers)
        if headers.get("Authorization") != f"token {TOKEN}" or "unauthorized" in self.faults:
            return 401, "text/plain", b"who are you?"
        for pattern, handle in self._routes().items():
            verb, _, regex = pattern.partition(" ")
            found = re.fullmatch(regex, path)
            if verb == method and found:
                message = handle(body, *found.groups())
                if isinstance(message, tuple):
                    return message
                return 200, _PROTOBUF, message.SerializeToString()
        return 404, "text/plain", f"no {method} {path}".encode()

    def _routes(self) -> dict[str, Callable[..., Any]]:
        return {
            "GET devices": self._devices,
            "GET users/auth/user": lambda _: pb.User(id=1, email="nobody@example.org"),
            "POST models": lambda _: pb.CreateUpdateResponse(id=self._new("m")),
            "GET models/([^/]+)/multipart_upload": self._upload_parts,
            "POST models/([^/]+)/multipart_upload": lambda _, name: pb.CreateUpdateResponse(id=name),
            "GET models/([^/]+)": lambda _, name: self._model(name),
            "GET models/([^/]+)/download": self._download_model,
            "POST datasets": lambda _: pb.CreateUpdateResponse(id=self._new("d"), expiration_time=_far()),
            "GET datasets/([^/]+)/upload_url": self._upload_url,
            "PATCH datasets/([^/]+)": lambda _, name: pb.CreateUpdateResponse(id=name),
            "GET datasets/([^/]+)": lambda _, name: pb.Dataset(
                dataset_id=name, name=name, file_upload_complete=True, expiration_time=_far()
            ),
            "GET datasets/([^/]+)/download_data": self._download_data,
            "POST jobs": self._create_job,
            "GET jobs/([^/]+)": self._job,
            "GET jobs/([^/]+)/result": lambda _, name: self._results.get(name, pb.JobResult()),
        }

    def _devices(self, _: bytes) -> Any:
        if "no device" in self.faults:
            return pb.DeviceList()
        attributes = ["framework:onnx", "framework:qnn", "framework:tflite", "os:android"]
        return pb.DeviceList(devices=[pb.Device(name=DEVICE, os="14", attributes=attributes)])

    def _model(self, name: str) -> Any:
        kind = pb.MODEL_TYPE_TFLITE if _is_tflite(self._files.get(name, b"")) else pb.MODEL_TYPE_ONNX
        return pb.Model(model_id=name, name=name, model_type=kind, file_upload_complete=True)

    def _link(self, name: str) -> str:
        return f"{self.url}/files/{name}"

    def _upload_parts(self, _: bytes, name: str) -> Any:
        parts = pb.FileMultipartUploadURL(urls=[self._link(name)], upload_id="1", max_part_size=1 << 30)
        return pb.FileUploadResponse(multipart_url=parts)

    def _upload_url(self, _: bytes, name: str) -> Any:
        return pb.FileUploadResponse(url=pb.FileUploadURL(url=self._link(name), file_field_name="file"))

    def _download_model(self, _: bytes, name: str) -> Any:
        return pb.FileDownloadResponse(
            url=pb.FileDownloadURL(url=self._link(name), filename=f"{name}{self._suffix(name)}")
        )

    def _suffix(self, name: str) -> str:
        return ".tflite" if _is_tflite(self._files[name]) else ".onnx"

    def _download_data(self, _: bytes, name: str) -> Any:
        return pb.FileDownloadResponse(url=pb.FileDownloadURL(url=self._link(name), filename=f"{name}.h5"))

    def _file(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        name = path.removeprefix("files/")
        if self.failures_left > 0:
            self.failures_left -= 1
            return 503, "text/plain", b"later"
        if method in {"GET", "HEAD"}:
            return 200, "application/octet-stream", self._files[name]
        if method == "POST":
            boundary = b"--" + headers["Content-Type"].partition("boundary=")[2].encode()
            (part,) = [part for part in body.split(boundary) if b'name="file"' in part.partition(b"\r\n\r\n")[0]]
            body = part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        self._files[name] = body
        return 204, "text/plain", b""

    def _create_job(self, body: bytes) -> Any:
        job = pb.Job.FromString(body)
        kind = job.WhichOneof("job")
        if f"refuse {kind}" in self.faults:
            return 400, "text/plain", b"the options make no sense"
        if "rate limit" in self.faults:
            return 429, "text/plain", b"slow down"
        name = self._new("j")
        own = getattr(job, kind)
        setattr(own, f"{kind}_id", name)
        self.jobs[name] = job
        if f"fail {kind}" in self.faults:
            own.failure_reason = "the chip caught fire"
        elif "empty" not in self.faults:
            getattr(self, f"_do_{kind}")(name, own)
        return pb.CreateUpdateResponse(id=name)

    def _job(self, _: bytes, name: str) -> Any:
        job = self.jobs[name]
        kind = job.WhichOneof("job")
        self._asked[name] = self._asked.get(name, 0) + 1
        own = getattr(job, kind)
        if "never ends" in self.faults or self._asked[name] < 3:
            own.job_state = pb.JOB_STATE_PROVISIONING_DEVICE if kind == "inference_job" else pb.JOB_STATE_CREATED
        else:
            own.job_state = pb.JOB_STATE_FAILED if own.failure_reason else pb.JOB_STATE_DONE
        return job

    def _do_compile_job(self, name: str, job: Any) -> None:
        if "--target_runtime tflite" in job.options:
            # A real conversion of the net that the tests compile, made beforehand.
            self._keep_target(job, self.tflite)
            return
        model = onnx.load_from_string(self._files[job.model.model_id])
        for value in (*model.graph.input, *model.graph.output):
            value.name = self.rename.get(value.name, value.name)
        for node in model.graph.node:
            node.input[:] = [self.rename.get(word, word) for word in node.input]
            node.output[:] = [self.rename.get(word, word) for word in node.output]
        self._keep_target(job, model.SerializeToString())

    def _do_quantize_job(self, name: str, job: Any) -> None:
        assert _entries(self._files[job.calibration_dataset.dataset_id])
        self._keep_target(job, self._files[job.model.model_id])

    def _keep_target(self, job: Any, content: bytes) -> None:
        target = self._new("m")
        self._files[target] = content
        job.target_model.CopyFrom(self._model(target))

    def _do_inference_job(self, name: str, job: Any) -> None:
        content = self._files[job.model.model_id]
        result = pb.InferenceJobResult(inference_job_id=name)
        if job.dataset.dataset_id:
            entries = _entries(self._files[job.dataset.dataset_id])
            names, run = _tflite(content) if _is_tflite(content) else _onnx(content)
            answers = [run(dict(zip(entries, batch, strict=True))) for batch in zip(*entries.values(), strict=True)]
            dataset = self._new("d")
            self._files[dataset] = _h5({key: [one[at] for one in answers] for at, key in enumerate(names)})
            result.output_dataset_id = dataset
        result.detail.tool_versions.extend([pb.ToolVersion(name=name, version=version) for name, version in TOOLS])
        if job.is_profiling_on:
            nodes = _operators(content) if _is_tflite(content) else _nodes(content)
            result.detail.MergeFrom(self._profile(nodes))
        self._results[name] = pb.JobResult(inference_job_result=result)

    def _profile(self, nodes: list[tuple[str, str]]) -> Any:
        major, minor = self.profile_version
        detail = pb.ProfileDetail(
            major_version=major, minor_version=minor, execution_time=3652, load_time=9000, cold_load_time=120_000,
            warm_load_time=45_000, after_execution_peak_memory=12_000_000,
        )  # fmt: skip
        detail.all_execution_times.extend([4000 + 10 * number for number in range(100)])
        for index, (name, op_type) in enumerate(nodes):
            row = detail.layer_details.add(name=name, layer_type_name=op_type)
            row.compute_unit = pb.COMPUTE_UNIT_CPU if op_type == "Flatten" else pb.COMPUTE_UNIT_NPU
            if index:
                row.execution_time = 100 * index
        return detail


Answer = Callable[[dict[str, np.ndarray]], list[Any]]


def _is_tflite(content: bytes) -> bool:
    return content[4:8] == b"TFL3"


def _onnx(content: bytes) -> tuple[list[str], Answer]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return [value.name for value in session.get_outputs()], lambda feed: list(session.run(None, feed))


def _tflite(content: bytes) -> tuple[list[str], Answer]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    outputs = interpreter.get_output_details()

    def run(feed: dict[str, np.ndarray]) -> list[Any]:
        for value in interpreter.get_input_details():
            interpreter.set_tensor(value["index"], feed[value["name"]])
        interpreter.invoke()
        return [interpreter.get_tensor(value["index"]).copy() for value in outputs]

    return [value["name"] for value in outputs], run


def _nodes(content: bytes) -> list[tuple[str, str]]:
    return [(node.name, node.op_type) for node in onnx.load_from_string(content).graph.node]


def _operators(content: bytes) -> list[tuple[str, str]]:
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.ModelT.InitFromPackedBuf(content, 0).subgraphs[0]
    return [(graph.tensors[operator.outputs[0]].name.decode(), "op") for operator in graph.operators]


def _far() -> Any:
    return Timestamp(seconds=4_000_000_000)


def _titled(headers: Any) -> dict[str, str]:
    return {key.title(): value for key, value in headers.items()}


def _entries(content: bytes) -> dict[str, list[np.ndarray]]:
    with h5py.File(io.BytesIO(content)) as file:
        found = {}
        for index in sorted(file["data"], key=int):
            group = file["data"][index]
            found[str(group.attrs["name"])] = [
                np.array(group[f"batch_{at}"]) for at in range(int(group.attrs["batch_count"]))
            ]
        return found


def _h5(entries: dict[str, list[np.ndarray]]) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for index, (name, batches) in enumerate(entries.items()):
            for at, array in enumerate(batches):
                file.create_dataset(f"data/{index}/batch_{at}", data=array)
            file[f"data/{index}"].attrs.update({"order": index, "name": name, "batch_count": len(batches)})
    return buffer.getvalue()
