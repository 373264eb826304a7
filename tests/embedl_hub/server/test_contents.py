"""Contents in a bucket: a real S3 protocol, spoken by moto's server on loopback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.s3 import bucket_of_its_own

from embedl_hub.credentials import Server
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.server._contents import BucketContents
from embedl_hub.tracking import Client, Redactor, Store, Uplink, project_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.hub_server import HubServer


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An empty bucket ``models``, and the environment that leads there."""
    with bucket_of_its_own() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


def test_contents_go_to_the_bucket_and_come_back(
    bucket: dict[str, str], new_server: Callable[..., HubServer], tmp_path: Path
) -> None:
    """A large one is only there; the API brings it back."""
    server = new_server("--artifacts", "s3://models/hub", environment=bucket)
    large = os.urandom(9 << 20)
    (tmp_path / "large.bin").write_bytes(large)
    (tmp_path / "small.json").write_text("{}")
    key = server.key()
    with Store(tmp_path / "home") as store:
        client = Client("project", store, Redactor({}), Uplink(store, Server(server.url, key)))
        with client.start_run("EVAL", "x") as run:
            run.log_artifact(tmp_path / "large.bin", name="path")
            run.log_artifact(tmp_path / "small.json", name="output_file")
        client.close()
    base = f"/api/projects/{project_id('project')}/runs/{run.id}"
    assert server.ask("GET", f"{base}/artifacts/path", key)[:2] == (200, large)
    assert server.ask("GET", f"{base}/artifacts/path", key, headers={"Range": "bytes=5-8"})[1] == large[5:9]
    assert server.ask("GET", f"{base}/artifacts/output_file", key)[1] == b"{}"
    here = [path for path in (server.home / "blobs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in here) == 2
    assert not list((server.home / "uploads").iterdir())


def test_a_bucket_that_is_away_is_said(bucket: dict[str, str], tmp_path: Path) -> None:
    """As an error of ours."""
    with Store(tmp_path / "home") as store:
        contents = BucketContents("s3://no-such-bucket/hub", store)
        (tmp_path / "x").write_text("x")
        with pytest.raises(TrackingError, match="cannot be reached"):
            contents.add("p", "0" * 64, tmp_path / "x")
        assert contents.size("p", "0" * 64) is None


def test_an_address_of_no_kind_we_know_is_refused(tmp_path: Path) -> None:
    """With the line to install what is missing."""
    with Store(tmp_path / "home") as store, pytest.raises(ConfigError, match=r"edgeproof-hub\[s3\]"):
        BucketContents("nowhere://x", store)
