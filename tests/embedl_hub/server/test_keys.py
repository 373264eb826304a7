"""Keys at rest, and the buckets that slow their holders down."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from embedl_hub.errors import ConfigError
from embedl_hub.server import KeyRing
from embedl_hub.server._keys import Buckets

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_kept_as_a_hash_for_its_owner_alone(tmp_path: Path) -> None:
    """The file opens nothing for whoever reads it."""
    key, text = KeyRing(tmp_path).add("ci", ["p"], "write")
    kept = (tmp_path / "keys.jsonl").read_text()
    assert text.startswith("eh_")
    assert len(text) == 46
    assert text not in kept
    assert text[3:] not in kept
    assert stat.S_IMODE((tmp_path / "keys.jsonl").stat().st_mode) == 0o600
    assert KeyRing(tmp_path).find(text) == key
    assert key.sha256 not in repr(key)


def test_a_running_server_hears_of_new_and_revoked_keys(tmp_path: Path) -> None:
    """The ring reads its file again when another process changed it."""
    ring = KeyRing(tmp_path)
    assert ring.find("eh_x") is None
    key, text = KeyRing(tmp_path).add("ci", ["*"], "read")
    assert ring.find(text) == key
    KeyRing(tmp_path).revoke(key.id)
    assert ring.find(text) is None
    assert ring.all()[0].revoked_ms is not None


def test_what_a_key_cannot_be_is_said(tmp_path: Path) -> None:
    """With what is known."""
    ring = KeyRing(tmp_path)
    with pytest.raises(ConfigError, match="'read', 'write', not 'admin'"):
        ring.add("x", ["p"], "admin")
    with pytest.raises(ConfigError, match="at least one project"):
        ring.add("x", [], "read")
    with pytest.raises(ConfigError, match="There is no key 'abc'; known: none"):
        ring.revoke("abc")
    (tmp_path / "keys.jsonl").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        ring.all()


def test_keys_are_managed_from_the_command_line(tmp_path: Path) -> None:
    """Made, listed and revoked; shown once."""

    def run(*arguments: str) -> str:
        argv = [sys.executable, "-m", "embedl_hub", "serve", "key", *arguments, "--home", str(tmp_path)]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout

    text = run("add", "ci", "--project", "a", "--project", "b").strip()
    (key,) = json.loads(run("list", "--json"))
    assert (key["name"], key["access"], key["projects"], key["revoked"]) == ("ci", "write", ["a", "b"], None)
    assert text not in run("list")
    assert "no longer opens" in run("revoke", key["id"])
    assert KeyRing(tmp_path).find(text) is None


def test_a_bucket_fills_with_time() -> None:
    """A burst goes through, then one per so many seconds."""
    now = [0.0]
    buckets = Buckets(2.0, 3.0, clock=lambda: now[0])
    assert [buckets.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.wait_s("b") == 0
    now[0] = 0.5
    assert buckets.wait_s("a", take=False) == 0
    assert buckets.wait_s("a") == 0
    assert buckets.wait_s("a") == 0.5
    now[0] = 100
    assert [buckets.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
