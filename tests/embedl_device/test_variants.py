"""Variants in turns by the real program: times of each in every sitting, and a variant that fails is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.models import residual_net, save

from embedl_device.board import fastest_processors
from embedl_device.variants import _on_one


def _run(folder: Path, variants: list[dict[str, object]], *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "variants.json").write_text(json.dumps(variants), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "embedl_onnxruntime", "variants", "--variants", str(folder / "variants.json")]
    return subprocess.run([*argv, "--sitting-seconds", "0", *words], capture_output=True, text=True, check=False)


def test_each_variant_has_its_times_in_every_sitting(tmp_path: Path) -> None:
    """Two settings of one model: rounds of both in three sittings, over two starts of the processes."""
    model = str(save(residual_net(), tmp_path / "net.onnx"))
    variants: list[dict[str, object]] = [
        {"name": name, "words": ["--model", model, "--threads", "1", "--optimization-level", level]}
        for name, level in (("one", "all"), ("other", "disable"))
    ]

    done = _run(tmp_path, variants, "--sittings", "3", "--restart-every", "2")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["name"] for each in document["variants"]] == ["one", "other"]
    assert [each["settings"]["level"] for each in document["variants"]] == ["all", "disable"]
    assert len(document["sittings"]) == 3
    for sitting in document["sittings"]:
        rounds = {len(times) for times in sitting["times_us"]}
        assert len(rounds) == 1
        assert min(rounds) >= 10
        assert all(value > 0 for key in ("load_us", "first_us") for value in sitting[key])


def test_variants_with_one_thread_share_a_processor(tmp_path: Path) -> None:
    """Each start has the next of the fastest processors that may be used, and the program goes back to all of them."""
    model = str(save(residual_net(), tmp_path / "net.onnx"))
    variants: list[dict[str, object]] = [
        {"name": name, "words": ["--model", model, "--threads", "1"]} for name in ("one", "other")
    ]

    done = _run(tmp_path, variants, "--sittings", "2", "--one-processor")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"]["processor"] == "all on the same one, each start on the next"
    usable = os.sched_getaffinity(0)
    with _on_one(max(usable)):
        assert os.sched_getaffinity(0) == {max(usable)}
    assert os.sched_getaffinity(0) == usable


def test_the_fastest_processors_are_those_with_the_highest_clock(tmp_path: Path) -> None:
    """Of big and little ones the big ones; all where nobody tells a clock."""
    usable = sorted(os.sched_getaffinity(0))
    assert fastest_processors(tmp_path) == usable
    for number in usable:
        folder = tmp_path / "devices" / "system" / "cpu" / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "cpuinfo_max_freq").write_text("2400000" if number == usable[-1] else "1800000")

    assert fastest_processors(tmp_path) == usable[-1:]


def test_a_variant_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """The error says which one, in the runtime's words; one variant alone, and a Python that is not there, too."""
    model = str(save(residual_net(), tmp_path / "net.onnx"))
    good: dict[str, object] = {"name": "good", "words": ["--model", model]}
    broken: dict[str, object] = {"name": "broken", "words": ["--model", str(tmp_path / "none.onnx")]}
    nowhere: dict[str, object] = {**good, "python": str(tmp_path / "python")}

    assert "Variant 'broken': There is no model" in _run(tmp_path, [good, broken]).stderr
    assert "two variants or more" in _run(tmp_path, [good]).stderr
    assert "--program-file" in _run(tmp_path, [good, nowhere]).stderr
    assert "cannot be started" in _run(tmp_path, [good, nowhere], "--program-file", model).stderr
