"""Stores with recorded runs for the page: profiles from the documented example, and names that try to be HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedl_hub.fleet import SWEEP, Cell, Plan, Step, StepKind, Target
from embedl_hub.fleet._plan import PLAN_ARTIFACT, plan_as_json
from embedl_hub.tracking import Client, RunType, Store
from support.models import residual_net


@dataclass
class Recorded:
    """A store and the runs in it, by what they are."""

    store: Store
    ids: dict[str, str]
    hostile: list[str] = field(default_factory=list)
    sweeps: dict[str, str] = field(default_factory=dict)


EXAMPLE = json.loads((Path(__file__).parents[2] / "docs/reference/profile-example.json").read_text())
HOSTILE = [
    "<script>window.hit=1</script>",
    '"><img src=x onerror=window.hit=1>',
    "'><svg onload=window.hit=1>",
    "</script><script>window.hit=1</script>",
    "javascript:window.hit=1",
    "<a href='javascript:window.hit=1'>x</a>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; &amp; <b>bold</b>",
    "${window.hit=1} %{customdata}",
]


def document(scale: float = 1.0, rename: str = "") -> dict[str, Any]:
    """Return a profile document whose times are so much longer, its layers perhaps named otherwise."""
    made: dict[str, Any] = json.loads(json.dumps(EXAMPLE))
    made["samples_us"] = [value * scale for value in made["samples_us"]]
    for name in ("median_low", "median_high"):
        made["latency_ms"][name] *= scale
    for row in made["layers"]["rows"]:
        row["time_ms"] *= scale
        row["name"] += rename
        row["op_type"] += rename
        row["compute_unit"] += rename
        row["source_nodes"] = [node + rename for node in row["source_nodes"]]
    return made


def model_bytes(scale: float = 1.0, rename: str = "") -> bytes:
    """Return the model of the example: its layers lead to these nodes."""
    model = residual_net()
    model.producer_version = str(scale)
    for node in model.graph.node:
        node.name += rename
        node.op_type += rename
    return bytes(model.SerializeToString())


def record_profile(store: Store, folder: Path, *, name: str = "profile", project: str = "vision", scale: float = 1.0,
                   device: str = "pi", rename: str = "", verdict: str = "stable",
                   times: float = 1.0) -> str:  # fmt: skip
    """Record a profile run and return its id; another scale is another model, other times are those of the same."""
    client = Client(project, store)
    made = document(scale * times, rename)
    place = folder / "profile.json"
    place.write_text(json.dumps(made))
    model = folder / "net.onnx"
    model.write_bytes(model_bytes(scale, rename))
    with client.start_run(RunType.PROFILE, name, component="Profiler", provider="local", device=device) as run:
        run.log_artifact(model, name="input")
        run.log_artifact(place, name="output_file")
        for metric in ("mean", "median", "min", "std"):
            run.log_metric(
                "latency" if metric == "mean" else f"latency_{metric}", made["latency_ms"][metric] * scale * times
            )
        run.log_metric("peak_memory_mb", 42.5)
        run.log_param("verdict", verdict)
        run.log_param("verdict_reason", "the median is known to 0.5 %")
        run.log_param("threads", 1)
        run.log_tag("stage", "ci" if scale == 1.0 else "dev")
    client.close()
    return run.id


def record_other(store: Store, folder: Path) -> dict[str, str]:
    """Record a compile run whose model is profiled, a series, a failed run, and one with a log and a folder."""
    client = Client("vision", store)
    ids = {}
    with client.start_run(RunType.COMPILE, "compile", device="pi") as run:
        (folder / "compiled.onnx").write_bytes(model_bytes())
        run.log_artifact(folder / "compiled.onnx", name="path")
        ids["compile"] = run.id
    with client.start_run(RunType.CUSTOM, "train") as run:
        for step in range(5):
            run.log_metric("loss", 1 / (step + 1), step)
        run.log_metric("odd", float("nan"))
        (folder / "run.log").write_text("line one\n<script>window.hit=1</script>\n")
        run.log_artifact(folder / "run.log", name="log")
        (folder / "page.html").write_text("<script>window.hit=1</script>")
        run.log_artifact(folder / "page.html", name="page")
        inner = folder / "bundle" / "inner"
        inner.mkdir(parents=True, exist_ok=True)
        (inner / "a.txt").write_text("a")
        run.log_artifact(folder / "bundle", name="folder")
        ids["train"] = run.id
    try:
        with client.start_run(RunType.INFERENCE, "invoke", device="pi") as run:
            ids["failed"] = run.id
            raise ValueError("the board <b>fell over</b>")  # noqa: TRY301 - a failed run is wanted
    except ValueError:
        pass
    client.close()
    return ids


def record_hostile(store: Store, folder: Path) -> list[str]:
    """Record runs with HTML and script in every name and value there is."""
    ids = []
    for number, text in enumerate(HOSTILE):
        run_id = record_profile(store, folder, name=text, project=f"evil {text}", device=text, rename=text,
                                scale=1.0 + number)  # fmt: skip
        ids.append(run_id)
        client = Client(f"evil {text}", store)
        try:
            with client.start_run(RunType.CUSTOM, text, component=text, provider=text, device=text) as run:
                ids.append(run.id)
                run.log_param(text, {text: [text]})
                for step in range(2):
                    run.log_metric(text, step, step)
                run.log_tag(text, text)
                plain = folder / text.replace("/", "_")
                plain.write_text(text)
                run.log_artifact(plain, name=text.replace("/", "_"))
                raise RuntimeError(text)  # noqa: TRY301 - a failed run is wanted
        except RuntimeError:
            pass
        client.close()
    return ids


def record_sweep(store: Store, folder: Path, *, models: tuple[str, ...] = ("small", "large"),
                 targets: tuple[str, ...] = ("nano", "orin"), project: str = "fleet") -> str:  # fmt: skip
    """Record a sweep of two options, in which the last model's INT8 fails on the last target, and return its id."""
    plan = _sweep_plan(models, targets)
    client = Client(project, store)
    place = folder / "plan.json"
    place.write_text(plan_as_json(plan))
    with client.start_run(RunType.CUSTOM, plan.name, component=SWEEP) as run:
        run.log_batch({"cells": len(plan.cells)}, tags={"sweep": run.id})
        run.log_artifact(place, name=PLAN_ARTIFACT)
        sweep_id = run.id
    for number, cell in enumerate(plan.cells):
        _record_cell(client, plan, cell, sweep_id, number)
    client.close()
    return sweep_id


def _sweep_plan(models: tuple[str, ...], targets: tuple[str, ...]) -> Plan:
    places = tuple(Target(name, (name,)) for name in targets)
    steps, cells = {}, []
    for model in models:
        for option in ("float", "int8"):
            for target in places:
                key = f"{model} {option} {target.name}"
                steps[key] = Step(key, StepKind.PROFILE, "plain", model, Path("net.onnx"), {}, target)
                cells.append(Cell(key, model, option, target.name, (key,)))
    return Plan(models[0], tuple(cells), steps, places)


def _record_cell(client: Client, plan: Plan, cell: Cell, sweep_id: str, number: int) -> None:
    tags = {"sweep": sweep_id, "step": cell.steps[0], "model": cell.model}
    is_last = number == len(plan.cells) - 1
    try:
        with client.start_run(RunType.PROFILE, cell.id[:100], component="PlainProfiler", device=cell.target) as run:
            run.log_batch(
                {"verdict": "stable" if number % 3 else "drifting",
                 "$claimed": {"from_ms": 1000 * number, "until_ms": 1000 * number + 900}},
                [("latency_median", 2.0 + 3 * number, None), ("accuracy", 0.9 + 0.01 * number, None)], tags,
            )  # fmt: skip
            if is_last:
                raise RuntimeError(f"{cell.model} does not fit")  # noqa: TRY301 - a failed run is wanted
    except RuntimeError:
        pass


DAY_MS = 86_400_000
FIRST_MS = 1_780_000_000_000


def record_history(store: Store, values: Sequence[float], *, model: str = "net.onnx", device: str | None = "pi",
                   precision: str = "int8", metric: str = "latency_median", project: str = "history",
                   spread: float = 0.0, verdict: str = "stable", every_ms: int = DAY_MS,
                   number: int = 0) -> list[str]:  # fmt: skip
    """Bring one profile a day into the index and return their ids; a spread is what its document tells of a median."""
    ids, made = [], {}
    for index, value in enumerate(values):
        start_ms = FIRST_MS + index * every_ms
        run_id = f"{start_ms:013x}{number:08x}"
        records: list[dict[str, Any]] = [
            {"kind": "start", "project": project, "type": "PROFILE", "name": f"nightly {index}", "format": 1,
             "device": device, "provider": "local"},
            {"kind": "param", "name": "precision", "value": precision},
            {"kind": "param", "name": "verdict", "value": verdict},
            {"kind": "metric", "name": metric, "value": value, "step": None},
            {"kind": "artifact", "name": "input", "file_name": f"input_{model}", "size_bytes": 1,
             "sha256": f"{number:064x}"},
        ]  # fmt: skip
        if spread:
            document = {"latency_ms": {"median_low": value * (1 - spread), "median_high": value * (1 + spread)}}
            place = store.artifact_path(run_id, "output_file", "profile.json")
            place.parent.mkdir(parents=True)
            place.write_text(json.dumps(document))
            records.append({"kind": "artifact", "name": "output_file", "file_name": "profile.json",
                            "size_bytes": place.stat().st_size, "sha256": f"{index:064x}"})  # fmt: skip
        records.append({"kind": "end", "status": "FINISHED", "error": None, "traceback": None})
        made[run_id] = [{"seq": seq, "time_ms": start_ms + seq, **record} for seq, record in enumerate(records)]
        ids.append(run_id)
    store.apply(made)
    return ids
