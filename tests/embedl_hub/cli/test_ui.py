"""The command that serves the page."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from embedl_hub.tracking import Client, Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "home") as store:
        client = Client("project", store)
        with client.start_run(name="a run"):
            pass
        client.close()
    return tmp_path / "home"


def test_it_serves_this_machine_alone_and_stops_when_told(home: Path) -> None:
    """On an address only this machine has, under its own name only."""
    argv = [sys.executable, "-m", "embedl_hub", "ui", "--no-browser", "--port", "0", "--home", str(home)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split(" is shown at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}runs") as answer:  # noqa: S310 - our own address
            assert "a run" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}))  # noqa: S310
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert "Traceback" not in errors


def test_a_taken_port_is_said(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "embedl_hub", "ui", "--no-browser", "--port", port, "--home", str(home)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"Port {port} cannot be had" in done.stderr
    assert "Traceback" not in done.stderr
