"""Scripts in every name and every kind of artifact, in a real browser: on the team's page and on one's own.

A script that ran would leave a mark in the window, in the browser's store for the site, or ask a listener of ours.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import Error, sync_playwright
from support.debian import require
from support.served_page import served

from embedl_hub.tracking import Client, RunType, Store, Uplink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page
    from support.hub_server import HubServer

_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@dataclass
class Canary:
    """A listener that nobody has a reason to ask."""

    address: str
    asked: list[str] = field(default_factory=list)

    def scripts(self) -> list[str]:
        """Return what runs in a page that does not take care; short enough for every name."""
        does = f"window.hit=1;localStorage.hit=1;fetch('{self.address}')"
        return [
            f"<script>{does}</script>",
            f'"><img src=x onerror="{does}">',
            f'\'><svg onload="{does}">',
            f"</script><script>{does}</script>",
            f"javascript:{does}",
            f"<img src={self.address}/img>",
        ]

    def files(self) -> dict[str, bytes]:
        """Return artifacts of every kind that a browser might show, each with a script in it."""
        script = self.scripts()[0].encode()
        svg = b'<svg xmlns="http://www.w3.org/2000/svg">' + script + b"</svg>"
        framed = {
            "html": b"<html>", "htm": b"", "md": b"", "txt": b"", "xhtml": b"<html xmlns='http://www.w3.org/1999/xhtml'>",
            "png": b"\x89PNG\r\n\x1a\n", "gif": b"GIF89a/*", "json": b'{"a": "', "csv": b"a,", "log": b"", "onnx": b"",
            "pdf": b"%PDF-1.4\n", "mhtml": b"MIME-Version: 1.0\n\n",
        }  # fmt: skip
        made = {f"a.{ending}": start + script for ending, start in framed.items()}
        style = b"@import '" + self.address.encode() + b"';"
        return made | {"a.svg": svg, "a.xml": b'<?xml version="1.0"?>' + svg, "a.js": script[8:-9], "a.css": style}


@pytest.fixture
def canary() -> Iterator[Canary]:
    found = Canary("")

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            if self.path == "/careless":
                self.wfile.write(b"<p>" + found.scripts()[0].encode())
            else:
                found.asked.append(self.path)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as listener:
        found.address = f"//127.0.0.1:{listener.server_address[1]}"
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield found
        listener.shutdown()


@pytest.fixture
def browser() -> Iterator[Browser]:
    chromium = require("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield browser
        browser.close()


def _record(store: Store, folder: Path, canary: Canary) -> list[str]:
    """Record runs with a script in every place that a name or a text can have."""
    ids = []
    for text in canary.scripts():
        client = Client(f"p {text}", store)
        with (
            contextlib.suppress(RuntimeError),
            client.start_run(RunType.PROFILE, text, component=text, provider=text, device=text) as run,
        ):
            ids.append(run.id)
            run.log_param(text, {text: [text]})
            run.log_param("verdict", text)
            run.log_param("verdict_reason", text)
            run.log_param("memory_method", text)
            for step in range(2):
                run.log_metric(text, step, step)
            run.log_metric("latency", 1.0)
            run.log_tag(text, text)
            for name, content in canary.files().items():
                (folder / name).write_bytes(content)
                run.log_artifact(folder / name, name=name)
            plain = folder / text.replace("/", "_")
            plain.write_text(text)
            run.log_artifact(plain, name=text.replace("/", "_"))
            run.log_artifact(folder / "a.json", name="output_file")
            raise RuntimeError(text)
        client.close()
    return ids


def _addresses(ids: list[str], canary: Canary) -> list[str]:
    texts = [quote(text, safe="") for text in canary.scripts()]
    pages = ["/", "/projects", "/runs", "/devices", "/sweeps", f"/compare?run={ids[0]}&run={ids[1]}"]
    pages += [f"/runs/{run_id}" for run_id in ids]
    pages += [f"/runs.json?q={text}" for text in texts[:2]]
    for text in texts:
        pages += [f"/runs?q={text}", f"/runs?project={text}&sort={text}&column=params.{text}&after={text}"]
        pages += [f"/device?name={text}", f"/runs/{text}", f"/nowhere/{text}", f"/runs?archived={text}"]
    return pages


def _look_around(tab: Page, site: str, store_ids: list[str], canary: Canary) -> None:
    """Open every page, and every artifact as a page of its own, and look for marks."""
    for address in _addresses(store_ids, canary):
        tab.goto(site + address, wait_until="load")
        assert tab.evaluate("window.hit") is None, address
    names = [*canary.files(), *(text.replace("/", "_") for text in canary.scripts()[:1])]
    for name in names:
        # A download: the browser shows no page for it.
        with contextlib.suppress(Error):
            tab.goto(f"{site}/runs/{store_ids[0]}/artifacts/{quote(name, safe='')}", wait_until="commit")
        tab.goto(f"{site}/runs")
        # Nor as a part of a page.
        tab.evaluate(
            """async address => {
                for (const kind of ["iframe", "embed", "object", "img", "script"]) {
                    const part = document.createElement(kind);
                    part[kind === "object" ? "data" : "src"] = address;
                    document.body.append(part);
                }
                await new Promise(done => setTimeout(done, 30));
            }""",
            f"{site}/runs/{store_ids[0]}/artifacts/{quote(name, safe='')}",
        )
        assert tab.evaluate("window.hit") is None, name
    assert tab.evaluate("localStorage.hit") is None
    assert canary.asked == []


@pytest.mark.slow
def test_no_script_runs_on_ones_own_page(browser: Browser, tmp_path: Path, canary: Canary) -> None:
    """Whatever runs, artifacts and addresses hold."""
    (tmp_path / "files").mkdir()
    with Store(tmp_path / "home") as store:
        ids = _record(store, tmp_path / "files", canary)
        with served(store, read_only=False) as site:
            tab = browser.new_context().new_page()
            _look_around(tab, site, ids, canary)
            tab.goto("about:blank")


@pytest.mark.slow
def test_no_script_runs_on_the_teams_page(
    browser: Browser, new_server: Callable[..., HubServer], tmp_path: Path, canary: Canary
) -> None:
    """Sent by a colleague's client, looked at by another who logged in."""
    server = new_server()
    (tmp_path / "files").mkdir()
    with Store(tmp_path / "client") as store:
        ids = _record(store, tmp_path / "files", canary)
        sent = Uplink(store, server.server()).send_all(also=ids)
        assert (sent.runs, sent.refused) == (len(ids), {})
    tab = browser.new_context().new_page()
    tab.goto(f"{server.url}/login?next={quote(canary.scripts()[0])}")
    tab.fill("input[name=key]", server.key())
    tab.click("button")
    tab.wait_for_url(f"{server.url}/")
    _look_around(tab, server.url, ids, canary)
    tab.goto("about:blank")
    assert canary.asked == []


@pytest.mark.slow
def test_the_marks_would_be_seen(browser: Browser, canary: Canary) -> None:
    """A page that takes no care is marked, so that no mark means something."""
    tab = browser.new_context().new_page()
    tab.goto(f"http:{canary.address}/careless")
    assert tab.evaluate("window.hit") == 1
    assert tab.evaluate("localStorage.hit") == "1"
    tab.wait_for_timeout(200)
    assert canary.asked
