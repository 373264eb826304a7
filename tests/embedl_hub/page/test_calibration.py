"""The verdict on calibration data, on the page of the run that recorded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from embedl_hub import page
from embedl_hub.page._calibration import CalibrationShown, calibration_of
from embedl_hub.tracking import Client, RunType, Store

VERDICT = {
    "format": 1,
    "lines": ["Calibration data: looks faulty: BGR <for> RGB; swap them."],
    "evidence": {
        "verdict": "faulty",
        "layers": [
            {"name": "stem.1 <&>", "channels": 16, "distance": 0.41, "shift": 0.3},
            {"name": "odd", "channels": None, "distance": "far", "shift": True},
        ],
    },
}


def shown(folder: Path, content: str | None) -> CalibrationShown | None:
    """Record a run with an artifact and return what its page shows."""
    with Store(folder) as store:
        client = Client("p", store)
        with client.start_run(RunType.COMPILE, component="X"):
            if content is not None:
                (folder / "verdict.json").write_text(content)
                client.log_artifact(folder / "verdict.json", name="calibration")
            run_id = client.run.id
        return calibration_of(store.run(run_id))


def test_a_recorded_verdict_is_shown(tmp_path: Path) -> None:
    """Lines and layers; what is no number is left out, not trusted."""
    found = shown(tmp_path, json.dumps(VERDICT))
    assert found is not None
    assert found.verdict == "faulty"
    assert found.lines == tuple(VERDICT["lines"])  # type: ignore[arg-type]
    rows = [(row.name, row.channels, row.distance) for row in found.rows]
    assert rows == [("stem.1 <&>", 16, 0.41), ("odd", None, None)]


def test_a_run_without_one_shows_nothing(tmp_path: Path) -> None:
    """No artifact, or one of that name that is something else."""
    others: list[Any] = [None, "[]", '{"evidence": {"verdict": "<b>"}}']
    for number, content in enumerate(others):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert shown(folder, content) is None


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    """The page says that it cannot be read."""
    found = shown(tmp_path, "{")
    assert found is not None
    assert "cannot be read" in found.problem


def test_the_page_of_the_run_has_the_section(tmp_path: Path) -> None:
    """Names from a model are text, not markup; the JSON twin has the verdict too."""
    with Store(tmp_path) as store:
        client = Client("p", store)
        with client.start_run(RunType.COMPILE, component="X"):
            (tmp_path / "verdict.json").write_text(json.dumps(VERDICT))
            client.log_artifact(tmp_path / "verdict.json", name="calibration")
            run_id = client.run.id
        visitor = TestClient(page.app(lambda: store))
        html = visitor.get(f"/runs/{run_id}", headers={"Accept": "text/html"}).text
        assert "Calibration data: faulty" in html
        assert "stem.1 &lt;&amp;&gt;" in html
        assert visitor.get(f"/runs/{run_id}.json").json()["calibration"]["verdict"] == "faulty"
