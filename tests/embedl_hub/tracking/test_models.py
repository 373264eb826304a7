"""What a run is made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.paths import RemotePath
from embedl_hub.tracking import LoggedArtifact, LoggedMetric, Run, RunStatus


class Carrier:
    """Brings artifacts to fixed places and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def bring_here(self, artifact: LoggedArtifact) -> Path:
        self.asked.append(f"{artifact.name} here")
        return Path("/here") / artifact.file_name

    def send_to(self, artifact: LoggedArtifact, device_name: str) -> RemotePath:
        self.asked.append(f"{artifact.name} to {device_name}")
        return RemotePath("/on") / device_name / artifact.file_name


MODEL = LoggedArtifact("path", "model.onnx", 3, "ab" * 32)


def test_bringing_an_artifact_here_gives_a_new_value_with_its_place() -> None:
    """to_local leaves the original alone and asks the carrier once."""
    carrier = Carrier()
    here = MODEL.to_local(carrier)
    assert here.local() == Path("/here/model.onnx")
    assert MODEL.local_path is None
    assert carrier.asked == ["path here"]


def test_an_artifact_that_is_not_here_says_how_to_bring_it() -> None:
    """local() names the artifact and the call that helps."""
    with pytest.raises(TrackingError, match=r"'path' \(model\.onnx\).*\.to_local\(ctx\)\.local\(\)"):
        MODEL.local()


def test_one_device_needs_no_name() -> None:
    """remote() finds the only place by itself."""
    assert MODEL.to_remote(Carrier(), device_name="pi").remote() == RemotePath("/on/pi/model.onnx")


def test_several_devices_need_a_name() -> None:
    """remote() lists the devices when it cannot choose, and takes the one it is told."""
    sent = MODEL.to_remote(Carrier(), device_name="pi").to_remote(Carrier(), device_name="orin")
    assert sent.remote("pi") == RemotePath("/on/pi/model.onnx")
    with pytest.raises(TrackingError, match="is on orin, pi"):
        sent.remote()


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    """remote(name) says where the artifact is and how to send it on."""
    sent = MODEL.to_remote(Carrier(), device_name="pi")
    with pytest.raises(TrackingError, match=r"is on pi; call \.to_remote\(ctx, device_name='orin'\)"):
        sent.remote("orin")
    with pytest.raises(TrackingError, match="is on no device"):
        MODEL.remote()


def test_where_an_artifact_lies_does_not_make_it_another() -> None:
    """Artifacts are equal by content and name, wherever they are."""
    assert MODEL.to_local(Carrier()).to_remote(Carrier(), device_name="pi") == MODEL


def test_the_last_value_of_a_series_is_the_metric() -> None:
    """metric() gives the newest value of a name, or None."""
    series = (LoggedMetric("loss", 2.0, 0), LoggedMetric("loss", 1.0, 1), LoggedMetric("fps", 30.0))
    run = Run("1", "project", "CUSTOM", "train", RunStatus.FINISHED, 0, metrics=series)
    assert run.metric("loss") == series[1]
    assert run.metric("absent") is None


@pytest.mark.parametrize("value", [MODEL, LoggedMetric("fps", 1.0), Run("1", "p", "CUSTOM", "n", RunStatus.RUNNING, 0)])
def test_values_are_frozen(value: object) -> None:
    """A change is a new value."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.name = "other"  # type: ignore[attr-defined]
