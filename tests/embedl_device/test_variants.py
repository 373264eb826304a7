"""Variants in turns by the real program: times of each in every sitting, and a variant that fails is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.models import residual_net, save


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
