"""Memory over the layers as a picture, and on the page of a run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support import recorded
from support.recorded import Recorded

from embedl_hub.core.document import LayerMemory, MemoryPart, MemoryProfile
from embedl_hub.page import memory_picture
from embedl_hub.page._profile import profile_of
from embedl_hub.tracking import Client, RunType, Store

ROWS = tuple(LayerMemory(f"layer <{number}> & more", "Conv", 1_000_000 * number, 5000) for number in range(1, 5))
SHOWN = MemoryProfile(
    "told", 6_000_000, 2_000_000, ROWS[3].name, ROWS, (MemoryPart("tensors", 5_000_000), MemoryPart("free", 1_000_000))
)
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_every_layer_the_weights_and_the_peak() -> None:
    """Names of a model are text, not markup; a layer leads to its row."""
    root = ET.fromstring(memory_picture(SHOWN, SHOWN, memory_bytes=9_000_000, link="#layer-{}"))  # noqa: S314 - our own
    links = root.findall(f"{SVG}a")
    assert [each.get("href") for each in links] == [f"#layer-{number}" for number in range(1, 5)]
    texts = [each.text or "" for each in root.iter()]
    assert (
        "4. layer <4> & more (Conv): 4.005 MB of the arena in use, 0.005 MB of them scratch; with weights 6.005 MB"
        in texts
    )
    assert "most in use: 6.005 MB at layer <4> & more" in texts
    assert "arena and weights: 8 MB" in texts
    assert "memory of the device: 9 MB" in texts
    classes = {each.get("class") for each in root.iter()}
    assert {"memory-weights", "memory-area", "memory-predicted", "memory-peak", "memory-device"} <= classes
    far = memory_picture(SHOWN, memory_bytes=10**12)
    assert "memory-device" not in far


def test_heights_follow_the_bytes() -> None:
    """Twice the bytes above the ground are twice the height."""
    rows = tuple(LayerMemory(str(size), "Conv", size) for size in (1_000_000, 2_000_000))
    drawn = ET.fromstring(memory_picture(MemoryProfile("told", 2_000_000, 0, "2000000", rows)))  # noqa: S314
    path = next(each for each in drawn.iter(f"{SVG}path") if each.get("class") == "memory-area")
    points = [tuple(map(float, word[1:].split(","))) for word in str(path.get("d")).split() if word[0] in "ML"]
    bottom, first, second = points[0][1], points[1][1], points[3][1]
    assert bottom - second == pytest.approx(2 * (bottom - first), abs=0.05)


def test_nothing_is_drawn_of_nothing() -> None:
    """No empty axes."""
    assert memory_picture(MemoryProfile("told", problem="not told")) == ""


def test_a_run_s_page_has_it(tmp_path: Path) -> None:
    """Measured, with what was predicted as a line; a runtime that tells nothing shows the prediction and the reason."""
    told, silent = recorded.EXAMPLE | {"memory": SHOWN.as_json()}, recorded.EXAMPLE.copy()
    told["predicted_memory"] = silent["predicted_memory"] = SHOWN.as_json()
    silent["memory"] = {"method": "m", "rows": [], "missing_because": "not told by ONNX Runtime 1.16"}
    pages = []
    with Store(tmp_path) as store:
        for content in (told, silent):
            client = Client("p", store)
            with client.start_run(RunType.PROFILE, component="X"):
                (tmp_path / "profile.json").write_text(json.dumps(content))
                client.log_artifact(tmp_path / "profile.json", name="output_file")
                client.log_param("memory_fit", "fits: 8.0 of 9.0 MB")
                run_id = client.run.id
            pages.append(profile_of(store.run(run_id)))
    first, second = pages
    assert first is not None
    assert first.memory is not None
    assert first.memory.heading == "Memory over the layers"
    assert "memory-predicted" in first.memory.picture
    assert first.memory.fit == "fits: 8.0 of 9.0 MB"
    assert [(what, size) for what, size, _ in first.memory.parts] == [("tensors", 5_000_000), ("free", 1_000_000)]
    assert second is not None
    assert second.memory is not None
    assert second.memory.heading == "Memory over the layers, predicted"
    assert second.memory.problem == "not told by ONNX Runtime 1.16"


def test_an_older_run_has_no_such_part(shown: Recorded) -> None:
    """Nothing is made up for it."""
    profile = profile_of(shown.store.run(shown.ids["fast"]))
    assert profile is not None
    assert (profile.memory is None) == ("memory" not in recorded.EXAMPLE)
