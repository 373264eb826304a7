"""Accuracy over data in parts: on one machine, on a pool, after faults, the count is that of one pass."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support import models

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device
from embedl_hub.errors import ConfigError, InvokeError, WorkerLostError
from embedl_hub.fleet import Job, Outcome, Target, Threads, evaluate_spread

ROWS = 45
POOL = Target("pool", ("w0", "w1"))


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[HubContext]:
    devices = [Device(name, provider_type="local") for name in POOL.devices]
    with HubContext("accuracy", devices, home=tmp_path / "home") as ctx:
        yield ctx


def random_classifier() -> onnx.ModelProto:
    """Return a net whose answers differ from row to row."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 4, 4])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [models.weights("w", 48, 3)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def compiled(ctx: HubContext, tmp_path: Path) -> str:
    """The run of a compiled model that takes any number of rows."""
    path = models.save(random_classifier(), tmp_path / "net.onnx")
    model = ONNXRuntimeCompiler().run(ctx, path, device="w0")
    return str(model.path.run_id)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Inputs and labels."""
    images, labels = tmp_path / "images.npz", tmp_path / "labels.npy"
    np.savez(images, x=np.random.default_rng(1).normal(size=(ROWS, 3, 4, 4)).astype(np.float32))
    np.save(labels, np.random.default_rng(0).integers(0, 3, ROWS))
    return images, labels


class Faulty:
    """Threads whose first jobs are lost, or fail through their board."""

    def __init__(self, faults: list[Outcome | WorkerLostError]) -> None:
        self.faults = faults
        self.jobs: list[Job] = []

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator["Faulty"]:
        with Threads().open(ctx, targets) as self.inner:
            yield self

    def submit(self, job: Job) -> Future[Outcome]:
        self.jobs.append(job)
        if not self.faults:
            return self.inner.submit(job)
        future: Future[Outcome] = Future()
        fault = self.faults.pop(0)
        if isinstance(fault, Outcome):
            future.set_result(replace(fault, step=job.step.key))
        else:
            future.set_exception(fault)
        return future

    def set_devices_out(self, names: frozenset[str]) -> None:
        self.inner.set_devices_out(names)


def test_parts_add_up_to_one_pass(ctx: HubContext, compiled: str, data: tuple[Path, Path]) -> None:
    """Uneven parts on a pool; the evaluation is a run that leads to the answers."""
    whole = evaluate_spread(ctx, compiled, *data, rows=ROWS, toolchain="onnxruntime", target=Target("w0", ("w0",)))
    parts = evaluate_spread(ctx, compiled, *data, rows=7, toolchain="onnxruntime", target=POOL)
    assert parts == whole
    assert whole.count == ROWS
    assert 0 < whole.right < ROWS
    store = ctx.client.store
    assert store is not None
    found = store.find("type = 'EVAL'", limit=1).runs[0]
    assert found.metric("accuracy").value == whole.accuracy  # type: ignore[union-attr]
    answers = store.runs(f"tags.sweep = '{found.id}' and type = 'INFERENCE'")
    assert len(answers) == 7
    assert {run.device for run in answers} == set(POOL.devices)


def test_faults_of_boards_and_workers_are_tried_again(ctx: HubContext, compiled: str, data: tuple[Path, Path]) -> None:
    """A lost worker and an unplugged board change nothing of the count; the board is avoided."""
    faulty = Faulty([WorkerLostError("gone"), Outcome("", None, "unplugged", is_boards_fault=True, device="w0")])
    found = evaluate_spread(ctx, compiled, *data, rows=20, toolchain="onnxruntime", target=POOL, engine=faulty)
    assert found == evaluate_spread(ctx, compiled, *data, rows=ROWS, toolchain="onnxruntime", target=POOL)
    assert len(faulty.jobs) == 5
    assert sorted(map(set, (job.avoid for job in faulty.jobs if job.attempt == 2)), key=len) == [set(), {"w0"}]


def test_a_part_that_fails_each_time_is_an_error(ctx: HubContext, compiled: str, data: tuple[Path, Path]) -> None:
    faulty = Faulty([WorkerLostError("gone"), WorkerLostError("gone again")])
    with pytest.raises(InvokeError, match="tried 2 times: gone again"):
        evaluate_spread(ctx, compiled, *data, rows=ROWS, toolchain="onnxruntime", target=POOL, engine=faulty)


def test_a_failure_of_the_model_is_told(
    ctx: HubContext, compiled: str, data: tuple[Path, Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, nothing=np.zeros((ROWS, 3), np.float32))
    with pytest.raises(InvokeError, match="could not be answered"):
        evaluate_spread(ctx, compiled, wrong, data[1], rows=ROWS, toolchain="onnxruntime", target=POOL)


def test_labels_must_fit(ctx: HubContext, compiled: str, data: tuple[Path, Path], tmp_path: Path) -> None:
    few = tmp_path / "few.npy"
    np.save(few, np.zeros(3, np.int64))
    with pytest.raises(ConfigError, match="a label for each row"):
        evaluate_spread(ctx, compiled, data[0], few, rows=4, toolchain="onnxruntime", target=POOL)
    with pytest.raises(ConfigError, match="at least one row"):
        evaluate_spread(ctx, compiled, *data, rows=0, toolchain="onnxruntime", target=POOL)
