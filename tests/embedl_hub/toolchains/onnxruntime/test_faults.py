"""Faults in the middle of things: a runtime that crashes, a connection that is cut."""

from __future__ import annotations

import stat
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.faults import fault
from support.models import images, save
from support.processes import wait_until, with_words

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ProfileError
from embedl_hub.errors import ConnectError, HubError
from embedl_hub.tracking import RunStatus, Store

# The real program with a runtime whose third run reads address zero.
CRASHING = """\
#!{python}
import ctypes, sys
import onnxruntime

class Session(onnxruntime.InferenceSession):
    runs = 0

    def run(self, *args, **kwargs):
        Session.runs += 1
        if Session.runs == {crash_at}:
            ctypes.string_at(0)
        return super().run(*args, **kwargs)

onnxruntime.InferenceSession = Session
from embedl_onnxruntime.cli import main
sys.exit(main())
"""


def crashing_program(folder: Path, crash_at: int) -> str:
    path = folder / f"crashing-{crash_at}"
    path.write_text(CRASHING.format(python=sys.executable, crash_at=crash_at))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_runtime_that_crashes_mid_run_is_told(board: Any, make_board: Any, model: Path, tmp_path: Path) -> None:
    """SIGSEGV in the runtime: the step fails with its name, what was known is kept, the board is left clean."""
    home = tmp_path / "home"
    good, crash_late = make_board(board), crashing_program(tmp_path, 25)
    with HubContext("crash", [good], home=home) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
    for program, component, kind in (
        (crash_late, ONNXRuntimeProfiler(), ProfileError),
        (crashing_program(tmp_path, 1), ONNXRuntimeInvoker(), InvokeError),
    ):
        bad = make_board(board, embedl_onnxruntime_path=program)
        arguments: list[Any] = [compiled, {"x": images(1)}] if kind is InvokeError else [compiled]
        with (
            HubContext("crash", [bad], home=home) as ctx,
            fault(kind, "ONNX Runtime crashed during", "SIGSEGV", "device 'board'", within_s=30),
        ):
            component.run(ctx, *arguments)
    assert list((tmp_path / "board" / "runs").iterdir()) == []
    with Store(home) as store:
        failed = [store.run(run.id) for run in store.runs() if run.status is RunStatus.FAILED]
    assert len(failed) == 2
    for run in failed:
        assert run.artifacts["input"].sha256 == compiled.path.sha256
        assert "SIGSEGV" in str(run.error)
        assert "$device_spec" in run.params


def test_a_connection_cut_mid_profile_is_one_clear_error(
    new_server: Any, connect: Any, make_board: Any, model: Path, tmp_path: Path
) -> None:
    """The measurement ends on the board too, the run is FAILED, and the next one works."""
    server = new_server()
    slow = make_board(connect(server), min_seconds=60.0, max_seconds=60.0)
    home = tmp_path / "home"
    caught: list[HubError] = []
    with HubContext("cut", [slow], home=home) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)

        def measure() -> None:
            try:
                ONNXRuntimeProfiler().run(ctx, compiled)
            except HubError as error:
                caught.append(error)

        thread = threading.Thread(target=measure)
        thread.start()
        wait_until(lambda: with_words("embedl-onnxruntime", " profile ", str(tmp_path)), 20)
        server.drop_sessions()
        thread.join(30)
        assert not thread.is_alive()
        wait_until(lambda: not with_words("embedl-onnxruntime", " profile ", str(tmp_path)), 30)
    (error,) = caught
    assert isinstance(error, ConnectError)
    assert list((tmp_path / "board" / "runs").iterdir()) == []
    with Store(home) as store:
        last = store.run(store.runs()[0].id)
        assert last.status is RunStatus.FAILED
        assert last.artifacts["input"].sha256 == compiled.path.sha256
    with HubContext("cut", [make_board(connect(server))], home=home) as ctx:
        assert ONNXRuntimeProfiler().run(ctx, compiled).latency.value > 0


@pytest.mark.parametrize("where", ["here", "board"])
def test_a_model_that_fails_while_running_is_told(where: str, request: Any, make_board: Any, tmp_path: Path) -> None:
    """The runtime's own words, not a traceback."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")
    graph = helper.make_graph(
        [node], "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
    )  # fmt: skip
    source = save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "r.onnx"
    )
    device = request.getfixturevalue("here") if where == "here" else make_board(request.getfixturevalue("board"))
    with HubContext("fails", [device], home=tmp_path / "home") as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source)
        with fault(InvokeError, "ONNX Runtime failed while running the model", "run-inference on", within_s=30):
            ONNXRuntimeInvoker().run(ctx, compiled, {"x": np.ones(4, np.float32), "shape": np.array([3, 3], np.int64)})
