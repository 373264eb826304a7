"""The command that serves the page."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit
from urllib.request import url2pathname

import pytest
from support.processes import wait_until

from embedl_hub.tracking import Client, Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "home") as store:
        client = Client("project", store)
        with client.start_run(name="a run"):
            pass
        client.close()
    return tmp_path / "home"


@contextlib.contextmanager
def _serving(home: Path, *options: str, **variables: str) -> Iterator[str]:
    """Start the page and yield the address that it prints."""
    argv = [sys.executable, "-m", "embedl_hub", "ui", "--port", "0", "--home", str(home), *options]
    server = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split(" is shown at ")[1].split()[0]
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert "Traceback" not in errors


def _ask(
    address: str, path: str = "/", method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, str]:
    """Ask without a cookie, as anybody on this machine can, and return status and text."""
    place = urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode() + str(answer.headers)


def test_it_serves_this_machine_alone_and_stops_when_told(home: Path) -> None:
    """On an address only this machine has, under its own name only."""
    with _serving(home, "--no-browser") as address:
        assert address.startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address) as answer:
            assert "token" not in answer.url
        with opener.open(urljoin(address, "/runs")) as answer:
            assert "a run" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}))  # noqa: S310


def test_another_account_of_the_machine_gets_nothing(home: Path) -> None:
    """Neither looks nor changes: the port is open to all, the address that was printed is not."""
    with Store(home) as store:
        run_id = store.runs()[0].id
    with _serving(home, "--no-browser", "--write") as address:
        for path in ("/", "/runs", "/runs.json", f"/runs/{run_id}", f"/runs/{run_id}/export", "/static/page.css",
                     "/?token=", "/?token=wrong", "/runs?token=%C3%A9", "/nowhere"):  # fmt: skip
            status, text = _ask(address, path)
            assert status == 403, path
            assert "a run" not in text
            assert "set-cookie" not in text.lower()
        form = urlencode({"token": "x", "sure": "yes"})
        for headers in ({}, {"Cookie": "embedl_hub_ui_80=x; embedl_hub_form=x"}, {"Authorization": "Bearer x"}):
            assert _ask(address, f"/runs/{run_id}/delete", "POST", form, **headers)[0] == 403
        token = parse_qs(urlsplit(address).query)["token"][0]
        assert _ask(address, "/runs.json", Authorization=f"Bearer {token}")[0] == 200
    with Store(home) as store:
        assert store.run(run_id).name == "a run"


def test_the_token_is_in_no_list_of_processes(home: Path, tmp_path: Path) -> None:
    """The browser is started with a file that only its user can read, and that is gone in the end."""
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    with _serving(home, BROWSER=f"{browser} %s") as address:
        wait_until(seen.exists, 30)
        token = parse_qs(urlsplit(address).query)["token"][0]
        started_with = seen.read_text().strip()
        assert token not in started_with
        leading = Path(url2pathname(urlsplit(started_with).path))
        assert address in leading.read_text()
        assert leading.stat().st_mode & 0o077 == 0
    assert not leading.exists()


def test_a_taken_port_is_said(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "embedl_hub", "ui", "--no-browser", "--port", port, "--home", str(home)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"Port {port} cannot be had" in done.stderr
    assert "Traceback" not in done.stderr
