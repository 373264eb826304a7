"""``embedl-hub sweep`` on real models, on this machine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli import answer, hub
from support.models import residual_net

from embedl_hub.fleet import plan_of, recorded_rankings
from embedl_hub.tracking import Store

PLAN = """
[sweep]
name = "both"
toolchain = "onnxruntime"
steps = ["compile", "profile", "invoke"]
timeout_s = 120
rank = true

[models.net]
path = "net.onnx"
data = { calibration = "calibration.npz", test = "test.npz", labels = "labels.npy" }

[options.float]

[options.int8]
compile = { calibration_data = "$calibration" }

[devices]
names = ["quick"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep with its model and data, and a home with this machine as a device that measures briefly."""
    onnx.save(residual_net(batch=4), tmp_path / "net.onnx")
    random = np.random.default_rng(0)
    for name in ("calibration", "test"):
        np.savez(tmp_path / f"{name}.npz", x=random.normal(size=(4, 3, 16, 16)).astype(np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(4, np.int64))
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "home").mkdir()
    settings = "{ iterations = 20, min_seconds = 0.05, max_warmup_seconds = 0.05, layer_runs = 0 }"
    (tmp_path / "home" / "devices.toml").write_text(
        f"[devices.quick]\ntype = 'local'\nrunner = 'none'\nconfig = {settings}\n"
    )
    return tmp_path


def test_a_sweep_of_a_real_model(folder: Path) -> None:
    """Compiled, profiled, asked and scored; gone on with, it has nothing left to do and tells the same."""
    home = ("--home", folder / "home")
    shown = hub("sweep", folder / "plan.toml", "--dry-run", *home)
    assert shown.returncode == 0, shown.stderr
    assert "2 cells, 6 steps (2 compile, 2 profile, 2 invoke); 0 are shared" in shown.stdout
    assert "target quick: quick" in shown.stdout
    done = hub("sweep", folder / "plan.toml", *home)
    assert done.returncode == 0, done.stderr
    assert "[2/2] net/int8/quick" in done.stderr
    head = next(line for line in done.stdout.splitlines() if "option" in line)
    wanted = "model option verdict Median, ms accuracy top1_agreement cosine Memory, MB Size, MB"
    assert " ".join(head.split()) == wanted
    assert "2 done" in done.stdout
    assert re.search(r"net on quick: (float|int8) [\d.]+ ms <\??", done.stdout), done.stdout
    with Store(folder / "home") as store:
        before = store.count()
        evaluated = store.runs("type = 'EVAL'")
        assert len(evaluated) == 2
        assert {each.type for run in evaluated for each in store.lineage(run.id).made_from} == {"INFERENCE"}
    again = answer("sweep", folder / "plan.toml", "--resume", *home)
    assert again["sweep"] == evaluated[0].tags["sweep"]
    cells = {cell["option"]: cell for cell in again["cells"]}
    assert cells["int8"]["state"] == cells["float"]["state"] == "done"
    assert {"latency_median", "accuracy", "cosine"} <= set(cells["int8"]["metrics"])
    assert cells["int8"]["verdict"]
    (ranking,) = again["rankings"]
    assert {place["option"] for place in ranking["options"]} == {"float", "int8"}
    assert ranking["error"] is None
    with Store(folder / "home") as store:
        sweep = store.run(again["sweep"])
        (recorded,) = recorded_rankings(plan_of(sweep), store.tagged("sweep", [sweep.id]), store.run)
        assert [asdict(place) for place in recorded.options] == ranking["options"]
        # Only the run of the driver that found nothing to do.
        assert store.count() == before + 1


def test_a_cell_that_fails_is_told_and_makes_the_exit_code(folder: Path) -> None:
    """The others are done; its reason is in the lines, in the table and in the JSON."""
    (folder / "bad.onnx").write_text("no model")
    (folder / "bad.toml").write_text(
        "[sweep]\ntoolchain = 'onnxruntime'\nsteps = ['compile']\n[models.all]\nfiles = '*.onnx'\n"
    )
    done = hub("sweep", folder / "bad.toml", "--home", folder / "home")
    assert done.returncode == 1
    assert "bad/default/here failed: compile failed: " in done.stdout
    assert "[2/2] net/default/here" in done.stderr
    failed = hub("sweep", folder / "bad.toml", "--resume", "--json", "--home", folder / "home")
    assert failed.returncode == 1
    assert [cell["state"] for cell in json.loads(failed.stdout)["cells"]] == ["failed", "done"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "horses"), "There is no engine 'horses'; known: 'ray', 'threads'"),
        (("--resume", "nothing"), "There is no sweep 'nothing'"),
    ],
)
def test_a_slip_is_answered_with_what_is_known(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """And with one message."""
    done = hub("sweep", folder / "plan.toml", *arguments, "--home", folder / "home")
    assert done.returncode == 1
    assert said in done.stderr
