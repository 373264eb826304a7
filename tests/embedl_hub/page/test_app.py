"""What the page answers, without a browser: headers, twins, refusals, downloads, changes."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support import recorded
from support.recorded import HOSTILE, Recorded

from embedl_hub import page
from embedl_hub.errors import TrackingError
from embedl_hub.page import _entry
from embedl_hub.page._views import _titles
from embedl_hub.tracking import Client, RunStatus, RunType, Store


def addresses(shown: Recorded) -> list[str]:
    return [
        "/projects", "/runs", "/devices", "/device?name=pi", "/runs/count", "/sweeps",
        "/charts", "/charts?metric=latency&project=vision", *(f"/charts?metric={quote(text)}" for text in HOSTILE),
        *(f"/sweeps/{run_id}" for run_id in shown.sweeps.values()),
        f"/sweeps/{shown.sweeps['sweep']}?metric=accuracy&scale=all&x=accuracy&y=latency_median",
        *(f"/runs/{run_id}" for run_id in (*shown.ids.values(), *shown.hostile)),
        f"/compare?run={shown.ids['slow']}&run={shown.ids['fast']}",
        f"/compare?run={shown.ids['train']}&run={shown.ids['failed']}&run={shown.ids['fast']}",
    ]  # fmt: skip


def test_every_page_has_a_json_twin(visitor: TestClient, shown: Recorded) -> None:
    """By its address, and by asking for JSON; the same one."""
    for address in ["/", *addresses(shown)]:
        html = visitor.get(address, headers={"Accept": "text/html,*/*"})
        assert (html.status_code, html.headers["content-type"]) == (200, "text/html; charset=utf-8"), address
        path, mark, query = address.partition("?")
        asked = visitor.get(address, headers={"Accept": "application/json"})
        assert asked.headers["content-type"] == "application/json"
        if path != "/":
            assert visitor.get(f"{path}.json{mark}{query}").json() == asked.json()


def test_every_answer_is_guarded(visitor: TestClient, shown: Recorded) -> None:
    """Pages, files, refusals and downloads alike."""
    artifact = f"/runs/{shown.ids['train']}/artifacts/page"
    for address in ["/", "/static/page.css", "/static/plotly.js", "/nothing", "/runs?q=%3C", artifact,
                    *addresses(shown)]:  # fmt: skip
        headers = visitor.get(address).headers
        assert headers["x-content-type-options"] == "nosniff", address
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy or address == artifact


def test_no_page_holds_script_or_style_of_its_own(visitor: TestClient, shown: Recorded) -> None:
    """The policy would refuse it anyway; nothing may depend on it."""
    for address in addresses(shown):
        html = visitor.get(address).text
        for opening in re.findall(r"<script[^>]*>", html):
            assert 'src="' in opening or 'type="application/json"' in opening, opening
        assert not re.search(r"<style|<[^>]*\s(style|on\w+)\s*=", re.sub(r'"[^"]*"', '""', html)), address


def test_names_that_try_to_be_html_are_text(visitor: TestClient, shown: Recorded) -> None:
    """In every name and value, on every page."""
    for address in addresses(shown):
        html = visitor.get(address).text
        for text in ("<script>window", "<img src=x", "<svg onload", "<a href='javascript", "49{%"):
            assert text not in html, (address, text)
    assert "&lt;script&gt;window.hit=1" in visitor.get("/runs").text
    listed = visitor.get("/projects.json").json()["projects"]
    assert {f"evil {text}" for text in HOSTILE} <= {project["name"] for project in listed}


def test_data_cannot_end_the_element_it_stands_in(visitor: TestClient, shown: Recorded) -> None:
    """Layers named as the end of a script element are still data."""
    for run_id in shown.hostile:
        html = visitor.get(f"/runs/{run_id}").text
        data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', html, re.DOTALL)
        assert data is not None
        assert "series" in json.loads(data[1])


def test_runs_are_filtered_picked_sorted_and_paged(visitor: TestClient, shown: Recorded) -> None:
    """The address says it all."""

    def names(**query: str) -> list[str]:
        answer = visitor.get("/runs.json", params={"project": "vision", **query}).json()
        return [run["name"] for run in answer["runs"]]

    assert names() == ["fast", "slow", "invoke", "train", "compile"]
    assert names(q="tags.stage = 'ci'") == ["fast"]
    assert names(status="FAILED") == ["invoke"]
    assert names(type="PROFILE", sort="metrics.latency") == ["fast", "slow"]
    assert names(type="PROFILE", sort="-metrics.latency") == ["slow", "fast"]
    assert names(device="pi", sort="name") == ["compile", "fast", "invoke", "slow"]
    everything = [run.id for run in shown.store.runs(archived=None)]
    assert [run["id"] for run in visitor.get("/runs.json", params={"archived": "both"}).json()["runs"]] == everything


def test_the_median_is_what_tables_and_charts_show(visitor: TestClient, shown: Recorded) -> None:
    """The verdict beside it speaks of the median; the mean can be asked for."""
    run = shown.store.run(shown.ids["slow"])
    median, mean = run.metric("latency_median"), run.metric("latency")
    assert median is not None
    assert mean is not None
    assert median.value != mean.value
    table = visitor.get("/runs").text
    assert "Median, ms" in table
    assert "Mean, ms" not in table
    points = [point for points in visitor.get("/device.json?name=pi").json()["models"].values() for point in points]
    assert median.value in [point["latency_ms"] for point in points]
    assert mean.value not in [point["latency_ms"] for point in points]


def test_an_estimate_is_marked_beside_its_numbers(own: Recorded, tmp_path: Path) -> None:
    """On the run's page, in comparisons, on the device's page and in the list; a measurement is not."""
    made = {
        verdict: recorded.record_profile(own.store, tmp_path, name=verdict, device="npu", verdict=verdict)
        for verdict in ("estimated", "stable")
    }
    visitor = TestClient(page.app(lambda: own.store))
    mark = '<span class="mark">estimated</span>'
    assert f"<h2>Median latency {mark}</h2>" in visitor.get(f"/runs/{made['estimated']}").text
    assert mark not in visitor.get(f"/runs/{made['stable']}").text
    compared = visitor.get("/compare", params={"run": [made["stable"], made["estimated"]]}).text
    assert compared.count(f'<span class="letter run-2">B</span> {mark}') >= 2
    assert f'<span class="letter run-1">A</span> {mark}' not in compared
    assert visitor.get("/device?name=npu").text.count(mark) == 1
    assert "estimated" in visitor.get("/runs", params={"q": "name = 'estimated'"}).text


def test_a_proof_in_the_list_is_a_word_in_its_color(own: Recorded) -> None:
    """The sentence is in the title; a word that nobody knows vouches for nothing."""
    for said in ("PASS: all 11 boundaries are inside", "FAIL: the first is not", "excellent"):
        with Client("proofs", own.store).start_run("EVAL", said[:4]) as run:
            run.log_param("verdict", said)
    table = TestClient(page.app(lambda: own.store)).get("/runs", params={"project": "proofs"}).text
    assert '<span class="label verdict-stable" title="PASS: all 11 boundaries are inside">PASS</span>' in table
    assert '<span class="label verdict-failed" title="FAIL: the first is not">FAIL</span>' in table
    assert '<span class="label verdict-doubtful" title="excellent">excellent</span>' in table


def test_pages_follow_each_other_by_key(own: Recorded) -> None:
    """The link on one page leads to the next, until there is none."""
    records: list[dict[str, Any]] = [{"kind": "start", "project": "many", "type": "CUSTOM", "name": "n", "format": 1},
                                     {"kind": "end", "status": "FINISHED"}]  # fmt: skip
    made = [{"seq": seq, "time_ms": 1, **record} for seq, record in enumerate(records)]
    own.store.apply({f"{number:04}": made for number in range(120)})
    visitor = TestClient(page.app(lambda: own.store))
    seen: list[str] = []
    address: str | None = "/runs?project=many"
    while address is not None:
        html = visitor.get(address).text
        seen += re.findall(r'data-run="(\d+)"', html)
        found = re.search(r'rel="next" href="([^"]*)"', html)
        address = found[1].replace("&amp;", "&") if found else None
    assert seen == [f"{number:04}" for number in reversed(range(120))]
    assert visitor.get("/runs/count.json?project=many").json() == {"count": 120}


def test_columns_are_kept_in_the_address(visitor: TestClient) -> None:
    """Chosen ones are shown, others are not, and links keep the choice."""
    html = visitor.get("/runs?project=vision&column=metrics.loss&column=params.threads").text
    headings = re.findall(r'<th scope="col".*?</th>', html, re.DOTALL)
    assert [re.sub(r"<[^>]*>", "", heading).strip() for heading in headings] == ["Compare", "Name", "loss", "threads"]
    assert "column=metrics.loss&amp;column=params.threads" in headings[1]
    assert 'aria-sort="descending"' in visitor.get("/runs?sort=-name").text


@pytest.mark.parametrize("query", ["q=metrics.latency+<", "q=nonsense", "sort=error", "after=zzz", "status=ODD",
                                   "q=%00", "archived=maybe", "q=" + "(" * 200])  # fmt: skip
def test_what_cannot_be_understood_is_said_on_the_page(visitor: TestClient, query: str) -> None:
    """With the form still filled in, and never as a broken page."""
    answer = visitor.get(f"/runs?{query}")
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert "Apply</button>" in answer.text
    assert visitor.get(f"/runs.json?{query}").json()["error"]


@pytest.mark.parametrize("address", ["/nothing", "/runs/0123", "/runs/0123.json", "/device?name=none",
                                     "/static/../page.css", "/static/_app.py", "/runs/0123/export",
                                     "/runs/0123/artifacts/x"])  # fmt: skip
def test_what_is_not_there_is_a_page_of_its_own(visitor: TestClient, address: str) -> None:
    """Never a listing, never a traceback."""
    answer = visitor.get(address)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("count", [0, 1, 7])
def test_two_to_six_runs_are_compared(visitor: TestClient, shown: Recorded, count: int) -> None:
    """Other numbers are refused with the numbers that work."""
    ids = [*shown.ids.values(), *shown.hostile][:count]
    answer = visitor.get("/compare", params={"run": ids})
    assert answer.status_code == 400
    assert "2 to 6 runs" in answer.text


def test_runs_of_one_model_are_told_apart(shown: Recorded) -> None:
    """By what is not the same."""
    runs = [shown.store.run(shown.ids[name]) for name in ("fast", "slow")]
    assert _titles(runs) == ["fast", "slow"]
    assert _titles([runs[0], runs[0]]) == [runs[0].id] * 2
    assert _titles([runs[0], replace(runs[0], device="jetson")]) == ["pi", "jetson"]


def test_artifacts_are_downloads(visitor: TestClient, shown: Recorded) -> None:
    """An HTML file is no page of ours, and a folder comes as an archive."""
    base = f"/runs/{shown.ids['train']}/artifacts"
    answer = visitor.get(f"{base}/page")
    assert answer.content == b"<script>window.hit=1</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith('attachment; filename="page.html"')
    assert "sandbox" in answer.headers["content-security-policy"]
    packed = zipfile.ZipFile(io.BytesIO(visitor.get(f"{base}/folder").content))
    assert packed.namelist() == ["inner/a.txt"]


def test_an_artifact_cannot_lead_out_of_its_run(own: Recorded, tmp_path: Path) -> None:
    """Not by a link, nor by a name in the address; the store itself takes no such names."""
    (tmp_path / "secret").write_text("secret")
    folder = own.store.run_dir("evil")
    (folder / "artifacts" / "link").mkdir(parents=True)
    (folder / "artifacts" / "link" / "file").symlink_to(tmp_path / "secret")
    kept = folder / "artifacts" / "folder" / "inner"
    kept.mkdir(parents=True)
    (kept / "link").symlink_to(tmp_path / "secret")
    facts: dict[str, Any] = {"kind": "artifact", "sha256": "0" * 64, "size_bytes": 6}
    records: list[dict[str, Any]] = [
        {"kind": "start", "project": "p", "type": "CUSTOM", "name": "evil", "format": 1},
        {**facts, "name": "link", "file_name": "file"},
        {**facts, "name": "folder", "file_name": "inner", "files": [["link", "0" * 64, 6]]},
        {"kind": "end", "status": "FINISHED"},
    ]
    own.store.apply({"evil": [{"seq": seq, "time_ms": 1, **record} for seq, record in enumerate(records)]})
    visitor = TestClient(page.app(lambda: own.store))
    for name in ("link", "%2e%2e%2fmanifest.jsonl", "nothing", "%00"):
        answer = visitor.get(f"/runs/evil/artifacts/{name}")
        assert answer.status_code == 404, name
        assert "secret" not in answer.text
    assert zipfile.ZipFile(io.BytesIO(visitor.get("/runs/evil/artifacts/folder").content)).namelist() == []


def _foreign(own: Recorded, run_id: str, **artifacts: str) -> Path:
    """Record a profile whose artifacts, by name their file names, are not there yet, and return their folder."""
    facts: dict[str, Any] = {"kind": "artifact", "sha256": "0" * 64, "size_bytes": 6}
    records: list[dict[str, Any]] = [
        {"kind": "start", "project": "p", "type": "PROFILE", "name": "foreign", "format": 1},
        *({**facts, "name": name, "file_name": file_name} for name, file_name in artifacts.items()),
        {"kind": "end", "status": "FINISHED"},
    ]
    own.store.apply({run_id: [{"seq": seq, "time_ms": 1, **record} for seq, record in enumerate(records)]})
    folder = own.store.run_dir(run_id) / "artifacts"
    for name in artifacts:
        (folder / name).mkdir(parents=True)
    return folder


def test_the_page_reads_nothing_over_a_link(own: Recorded, tmp_path: Path) -> None:
    """Logs, profiles, comparisons, exports, downloads: what another place holds is not shown, by whichever page."""
    (tmp_path / "home.log").write_text("top-secret")
    (tmp_path / "secret.json").write_text('{"format": 1, "verdict": "top-secret", "runtime": {"name": "top-secret"}}')
    _foreign(own, "evil3")
    folder = _foreign(own, "evil1", log="x.log", output_file="x.json", deep="y.log")
    (folder / "log" / "x.log").symlink_to(tmp_path / "home.log")
    (folder / "output_file" / "x.json").symlink_to(tmp_path / "secret.json")
    # The link is not the file itself but a folder on the way to it.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "y.log").write_text("top-secret")
    (folder / "deep").rmdir()
    (folder / "deep").symlink_to(tmp_path / "elsewhere")
    visitor = TestClient(page.app(lambda: own.store))
    for address in (
        "/runs/evil1", "/runs/evil1.json", "/runs/evil1/export", "/compare?run=evil1&run=evil3", "/runs",
        *(f"/runs/evil1/artifacts/{name}" for name in ("log", "output_file", "deep")),
    ):  # fmt: skip
        answer = visitor.get(address)
        assert answer.status_code == (404 if "artifacts" in address else 200), address
        assert "top-secret" not in answer.text, address


def test_the_page_waits_for_no_pipe(own: Recorded) -> None:
    """A pipe that nobody writes to, where a file should be."""
    _foreign(own, "evil3")
    folder = _foreign(own, "evil2", log="x.log", output_file="x.json")
    os.mkfifo(folder / "log" / "x.log")
    os.mkfifo(folder / "output_file" / "x.json")
    visitor = TestClient(page.app(lambda: own.store))
    answers: list[int] = []

    def visit() -> None:
        addresses = ("/runs/evil2", "/compare?run=evil2&run=evil3", "/runs/evil2/artifacts/log")
        answers.extend(visitor.get(address).status_code for address in addresses)

    thread = threading.Thread(target=visit, daemon=True)
    thread.start()
    thread.join(20)
    assert answers == [200, 200, 404]


@pytest.mark.parametrize(
    "wanted", ["bytes=999999999-", "bytes=5-1", "bytes=x", "lines=1-2", "bytes=0-0,2-3", "bytes=-"]
)
def test_a_bad_range_leaves_nothing_behind(
    own: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """A folder is packed for its download; no part of the archive stays, whatever is asked for."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    visitor = TestClient(page.app(lambda: own.store))
    address = f"/runs/{own.ids['train']}/artifacts/folder"
    for _ in range(5):
        assert visitor.get(address, headers={"Range": wanted}).status_code in {200, 416}
        assert list(scratch.iterdir()) == []
    with visitor.stream("GET", address):
        pass
    assert list(scratch.iterdir()) == []


def test_a_part_of_a_file_can_be_asked_for(visitor: TestClient, shown: Recorded) -> None:
    """As a browser does that goes on with a download."""
    address = f"/runs/{shown.ids['train']}/artifacts/page"
    whole = visitor.get(address).content
    answer = visitor.get(address, headers={"Range": "bytes=3-7"})
    assert (answer.status_code, answer.content) == (206, whole[3:8])
    assert answer.headers["content-range"] == f"bytes 3-7/{len(whole)}"
    answer = visitor.get(address, headers={"Range": f"bytes={len(whole)}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(whole)}")


def test_hostile_file_names_are_given_as_they_are(visitor: TestClient, shown: Recorded) -> None:
    """In a header that no name can break."""
    for run_id in shown.hostile:
        for name, artifact in shown.store.run(run_id).artifacts.items():
            answer = visitor.get(
                f"/runs/{run_id}/artifacts/{name}".replace("%", "%25").replace("#", "%23").replace("?", "%3F")
            )
            assert answer.status_code == 200, name
            assert answer.headers["content-disposition"].startswith("attachment; filename=")
            assert len(answer.content) == artifact.size_bytes


def test_only_our_own_name_is_answered(shown: Recorded) -> None:
    """A site that points its name at this machine gets nothing."""
    visitor = TestClient(
        page.app(lambda: shown.store, hosts=("127.0.0.1", "localhost")), base_url="http://127.0.0.1:8734"
    )
    assert visitor.get("/runs").status_code == 200
    assert visitor.get("/runs", headers={"Host": "localhost:8734"}).status_code == 200
    for host in ("evil.example", "evil.example:8734", "127.0.0.1.evil.example", "", "localhost@evil.example"):
        answer = visitor.get("/runs", headers={"Host": host})
        assert answer.status_code == 421
        assert "fast" not in answer.text
        assert "content-security-policy" in answer.headers


def test_a_visitor_of_one_project_sees_nothing_else(shown: Recorded) -> None:
    """Not by filters that try to leave their brackets, ids, comparisons, devices, lineage or counts."""
    visitor = TestClient(page.app(lambda: shown.store, projects=lambda _: ["vision"]))
    other = shown.hostile[0]
    everything = {run.id for run in shown.store.runs("project = 'vision'", archived=None)}
    assert [project["name"] for project in visitor.get("/projects.json").json()["projects"]] == ["vision"]
    for query in ("", "q=name+~+'e'", "q=name+~+'a')+or+(name+~+'a'", "q=name+~+'a'+or+project+~+'evil'",
                  "project=evil", "archived=both&sort=name", "sort=-metrics.latency"):  # fmt: skip
        answer = visitor.get(f"/runs.json?{query}").json()
        assert {run["id"] for run in answer["runs"]} <= everything, query
    assert visitor.get("/runs/count.json").json() == {"count": len(everything)}
    for address in (f"/runs/{other}", f"/runs/{other[:12]}", f"/runs/{other}/export", f"/runs/{other}/artifacts/input",
                    f"/compare?run={other}&run={shown.ids['fast']}", f"/device?name={HOSTILE[4]}"):  # fmt: skip
        assert visitor.get(address).status_code == 404, address
    assert "evil" not in visitor.get("/runs").text
    assert [device["name"] for device in visitor.get("/devices.json").json()["devices"]] == ["pi"]


def test_devices_show_their_health(own: Recorded) -> None:
    """The latest check, as far as it may be seen."""
    with Client("lab", own.store).start_run(name="health", device="pi <1>") as check:
        check.log_tag("health", "failed")
        check.finish(RunStatus.FAILED, error="disk: it is full. Clean <it>.")
    everyone = TestClient(page.app(lambda: own.store))
    rows = {row["name"]: row["health"] for row in everyone.get("/devices.json").json()["devices"]}
    assert (rows["pi <1>"]["state"], rows["pi <1>"]["run_id"]) == ("out", check.id)
    assert rows["pi <1>"]["reason"] == "disk: it is full. Clean <it>."
    html = everyone.get("/devices").text
    assert f'/runs/{check.id}" title="disk: it is full. Clean &lt;it&gt;.">out</a>' in html
    with Client("open", own.store).start_run(name="job", device="pi <1>"):
        pass
    guest = TestClient(page.app(lambda: own.store, projects=lambda _: ["open"]))
    (row,) = guest.get("/devices.json").json()["devices"]
    assert row["health"]["state"] == "unknown"
    assert "not checked" in guest.get("/devices").text


def test_what_is_remembered_of_one_store_is_not_told_of_another(shown: Recorded, own: Recorded) -> None:
    """A server may give each visitor a store that shows less."""
    stores = iter([shown.store, own.store])
    visitor = TestClient(page.app(lambda: next(stores)))
    assert "evil" in visitor.get("/runs").text
    assert "evil" not in visitor.get("/runs").text


def test_a_visitor_of_no_project_sees_nothing(shown: Recorded) -> None:
    visitor = TestClient(page.app(lambda: shown.store, projects=lambda _: []))
    assert visitor.get("/runs.json").json()["runs"] == []
    assert visitor.get("/devices.json").json()["devices"] == []


def form_token(visitor: TestClient, run_id: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', visitor.get(f"/runs/{run_id}").text)
    assert found is not None
    return found[1]


def test_runs_are_labeled_archived_and_deleted(own: Recorded) -> None:
    """With the token of the form."""
    visitor = TestClient(page.app(lambda: own.store, read_only=False))
    run_id = own.ids["train"]
    token = form_token(visitor, run_id)
    label = {"token": token, "name": "stage", "value": "kept"}
    assert visitor.post(f"/runs/{run_id}/label", data=label, follow_redirects=False).status_code == 303
    assert own.store.run(run_id).tags["stage"] == "kept"
    for _ in range(2):  # a browser may send a form again; that is not the way back
        visitor.post(f"/runs/{run_id}/archive", data={"token": token, "archived": "yes"})
        assert own.store.run(run_id).archived
    visitor.post(f"/runs/{run_id}/archive", data={"token": token, "archived": "no"})
    assert not own.store.run(run_id).archived
    assert visitor.post(f"/runs/{run_id}/delete", data={"token": token}).status_code == 400
    visitor.post(f"/runs/{run_id}/delete", data={"token": token, "sure": "yes"})
    with pytest.raises(TrackingError):
        own.store.run(run_id)


def test_a_run_that_goes_on_is_left_alone(own: Recorded) -> None:
    """And why is said."""
    visitor = TestClient(page.app(lambda: own.store, read_only=False))
    client = Client("vision", own.store)
    with client.start_run(name="alive") as run:
        sent = {"token": form_token(visitor, run.id), "name": "stage", "value": "early", "sure": "yes"}
        for change in ("label", "archive", "delete"):
            answer = visitor.post(f"/runs/{run.id}/{change}", data=sent)
            assert answer.status_code == 409
            assert "going on in another process" in answer.text
    client.close()
    assert own.store.run(run.id).tags == {}


def test_forms_from_elsewhere_change_nothing(own: Recorded) -> None:
    """Without a token, with another visitor's, from another site, or on a page that is read-only."""
    run_id = own.ids["train"]
    application = page.app(lambda: own.store, read_only=False)
    visitor, other = TestClient(application), TestClient(application)
    token = form_token(visitor, run_id)
    sent = {"token": token, "name": "stage", "value": "bad"}
    cookie = visitor.get(f"/runs/{run_id}").request.headers["cookie"]
    assert cookie
    refused = [
        visitor.post(f"/runs/{run_id}/label", data={**sent, "token": ""}),
        visitor.post(f"/runs/{run_id}/label", data={**sent, "token": form_token(other, run_id)}),
        visitor.post(f"/runs/{run_id}/label", data=sent, headers={"Sec-Fetch-Site": "cross-site"}),
        TestClient(application).post(f"/runs/{run_id}/label", data=sent),
        TestClient(page.app(lambda: own.store)).post(f"/runs/{run_id}/label", data=sent),
        TestClient(page.app(lambda: own.store, read_only=lambda _: True)).post(f"/runs/{run_id}/label", data=sent),
    ]
    assert [answer.status_code for answer in refused] == [403] * 6
    assert "stage" not in own.store.run(run_id).tags
    assert visitor.post(f"/runs/{run_id}/label", data={**sent, "name": "x" * 70_000}).status_code == 413
    assert visitor.post(f"/runs/{run_id}/nothing", data=sent).status_code == 404
    assert visitor.get(f"/runs/{run_id}/label").status_code in {404, 405}


def test_the_cookie_is_for_our_own_site_alone(own: Recorded) -> None:
    visitor = TestClient(page.app(lambda: own.store, read_only=False))
    cookie = visitor.get(f"/runs/{own.ids['train']}").headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert "set-cookie" not in TestClient(page.app(lambda: own.store)).get("/runs").headers


def test_an_unchanged_page_is_not_sent_again(visitor: TestClient, shown: Recorded) -> None:
    first = visitor.get(f"/runs/{shown.ids['train']}.json")
    assert (
        visitor.get(f"/runs/{shown.ids['train']}.json", headers={"If-None-Match": first.headers["etag"]}).status_code
        == 304
    )


def test_a_mistake_of_ours_tells_nothing(shown: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The visitor gets an apology, the log the traceback."""

    def broken(*_: object) -> None:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(Store, "projects", broken)
    answer = TestClient(page.app(lambda: shown.store), raise_server_exceptions=False).get("/projects")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers


def test_a_store_that_fails_is_said(shown: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise TrackingError("The index is damaged; rebuild it with: embedl-hub reindex")

    monkeypatch.setattr(Store, "projects", damaged)
    answer = TestClient(page.app(lambda: shown.store)).get("/projects")
    assert answer.status_code == 503
    assert "embedl-hub reindex" in answer.text


def test_it_can_be_mounted_below_a_path(shown: Recorded) -> None:
    """Links keep the path."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    visitor = TestClient(Starlette(routes=[Mount("/hub", app=page.app(lambda: shown.store, sign_out="/logout"))]))
    html = visitor.get("/hub/runs").text
    links = [
        link for link in re.findall(r'(?:href|src|action|data-address)="([^"]*)"', html) if not link.startswith("#")
    ]
    assert all(link.startswith("/hub/") or link == "/logout" for link in links)
    assert visitor.get("/hub/static/page.css").status_code == 200


def test_what_is_missing_is_named_with_its_line(shown: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_entry, "_NEEDED", ("starlette", "no_such_package"))
    with pytest.raises(ValueError, match=r"needs no_such_package.*pip install 'edgeproof-hub\[ui\]'"):
        page.app(lambda: shown.store)


def test_a_sweep_is_a_heat_map_with_every_verdict(visitor: TestClient, shown: Recorded) -> None:
    """Every number in its place and color, what failed with its reason, each a link to its run."""
    sweep = shown.sweeps["sweep"]
    html = visitor.get(f"/sweeps/{sweep}").text
    rows = re.findall(r'<tr><th scope="row" class="text">(small|large)</th>(.*?)</tr>', html, re.DOTALL)
    assert [name for name, _ in rows] == ["small", "large"]
    for name, cells in rows:
        shades = "".join(re.findall(r"shade-(\d)", cells))
        assert shades == {"small": "0878", "large": "0527"}[name], "within a model by how many times the best"
        assert len(re.findall(r'href="/runs/[0-9a-f]+"', cells)) == 4
    assert "large does not fit" in html
    assert html.count('<span class="mark">drifting</span>') == 3
    both = re.findall(r"shade-(\d)", visitor.get(f"/sweeps/{sweep}?scale=all").text)
    assert both.count("0") < 3, "over all cells only the best are light"
    data = visitor.get(f"/sweeps/{sweep}.json").json()
    assert [cell["state"] for cell in data["cells"]].count("failed") == 1
    assert data["slots"]["nano"][0]["from_ms"] == 0


def test_a_sweep_ranks_its_cells(visitor: TestClient, shown: Recorded) -> None:
    """By the number of the plot, with so much of the other; what has too little and what failed come last."""
    address = f"/sweeps/{shown.sweeps['sweep']}"
    ranking = visitor.get(f"{address}.json?least=0.93").json()["ranking"]
    assert [each["target"] for each in ranking] == ["nano", "orin"]
    last = ranking[1]["places"][-1]
    assert (last["number"], last["why_not"]) == (None, "failed: RuntimeError: large does not fit")
    assert "accuracy 0.9 is below 0.93" in [place["why_not"] for place in ranking[0]["places"]]
    html = visitor.get(f"{address}?least=0.93").text
    assert "Ranking by latency_median, with accuracy at least 0.93" in html
    assert "not told apart" in html
    assert "latency_median, ms" in html or "Median, ms" in html
    assert visitor.get(f"{address}?least=much").status_code == 400
    assert "Ranking by latency_median" in visitor.get(f"{address}/export").text


@pytest.mark.parametrize("query", ["metric=nothing", "x=nothing", "scale=wide"])
def test_a_number_that_no_cell_has_is_said(visitor: TestClient, shown: Recorded, query: str) -> None:
    answer = visitor.get(f"/sweeps/{shown.sweeps['sweep']}?{query}")
    assert answer.status_code == 400
    assert "latency_median" in answer.text or "model" in answer.text


def test_a_run_that_is_no_sweep_has_no_matrix(visitor: TestClient, shown: Recorded) -> None:
    assert visitor.get(f"/sweeps/{shown.ids['fast']}").status_code == 404


def test_a_list_tells_float_from_int8(own: Recorded, tmp_path: Path) -> None:
    """By its column, and what is ruined by a mark: in the list, on the run's page, on that of its profile, compared."""
    client = Client("int8", own.store)
    model = tmp_path / "m.onnx"
    model.write_bytes(recorded.model_bytes(7.0))
    ids = []
    for kind, role, metrics in ((RunType.COMPILE, "path", {"calibration_cosine": 0.2}), (RunType.PROFILE, "input", {})):
        with client.start_run(kind, "step", device="pi") as run:
            run.log_artifact(model, name=role)
            run.log_param("precision", "int8")
            for name, value in metrics.items():
                run.log_metric(name, value)
        ids.append(run.id)
    visitor = TestClient(page.app(lambda: own.store))
    table = visitor.get("/runs?project=int8").text
    assert "Precision" in table
    assert table.count(">int8</td>") == 2
    assert table.count(">ruined</span>") == 1
    for run_id in ids:
        shown = visitor.get(f"/runs/{run_id}").text
        assert "FAIL: the answers are ruined (cosine 0.200 to those in float" in shown
    assert visitor.get(f"/compare?run={ids[0]}&run={ids[1]}").text.count(">ruined</span>") == 2


def test_warnings_stay_on_a_run(own: Recorded) -> None:
    with Client("vision", own.store).start_run(name="warned") as run:
        run.log_param("warnings", ["<b>hot</b>", "slow"])
    html = TestClient(page.app(lambda: own.store)).get(f"/runs/{run.id}").text
    assert "<li>&lt;b&gt;hot&lt;/b&gt;</li><li>slow</li>" in html


def test_a_note_is_kept_on_a_run(own: Recorded) -> None:
    """As its tag ``note``, shown as text above everything else."""
    visitor = TestClient(page.app(lambda: own.store, read_only=False))
    address = f"/runs/{own.ids['compile']}"
    token = re.search(r'name="token" value="([^"]+)"', visitor.get(address).text)
    assert token is not None
    answer = visitor.post(f"{address}/note", data={"token": token[1], "text": "<i>as before</i>"})
    assert '<p class="note">&lt;i&gt;as before&lt;/i&gt;</p>' in answer.text
    assert own.store.run(own.ids["compile"]).tags["note"] == "<i>as before</i>"


def test_devices_without_runs_are_listed(own: Recorded) -> None:
    """With their type, processor and memory; to those who may see everything, and a file that is broken is said."""
    (own.store.home / "devices.toml").write_text(
        '[devices.lab]\ntype = "local"\nspec = { cpu = "Cortex-A76", memory_bytes = 8000000000, cores = 4 }\n'
    )
    visitor = TestClient(page.app(lambda: own.store))
    rows = {row["name"]: row for row in visitor.get("/devices.json").json()["devices"]}
    assert (rows["lab"]["type"], rows["lab"]["cpu"], rows["lab"]["runs"]) == ("local", "Cortex-A76", 0)
    html = visitor.get("/devices").text
    assert "8 GB" in html
    assert "none yet" in html
    assert visitor.get("/device?name=lab").status_code == 200
    guest = TestClient(page.app(lambda: own.store, projects=lambda _: ["vision"]))
    assert [row["name"] for row in guest.get("/devices.json").json()["devices"]] == ["pi"]
    (own.store.home / "devices.toml").write_text("[devices.lab\n")
    assert 'class="message"' in visitor.get("/devices").text


def test_a_device_tells_changes_that_the_statistics_tell(own: Recorded) -> None:
    """Of profiles of one model that were stable; two that differ are not told from the noise between sessions."""
    few = recorded.record_history(own.store, [2.0, 4.0], device="npu", number=1, spread=0.01)
    many = recorded.record_history(own.store, [2.0 + 0.01 * (day % 3) + day // 8 for day in range(16)], device="npu",
                                   model="other.onnx", number=2, metric="latency", spread=0.001)  # fmt: skip
    recorded.record_history(own.store, [2.0 + day // 8 for day in range(16)], device="npu", number=3, metric="latency",
                            verdict="estimated")  # fmt: skip
    models = TestClient(page.app(lambda: own.store)).get("/device.json?name=npu").json()["models"]
    marked = [(point["run_id"], point["change"]) for points in models.values() for point in points if point["change"]]
    assert marked == [(many[8], "slower")]
    assert few[1] not in {point["run_id"] for points in models.values() for point in points if point["change"]}


def test_the_graph_of_a_run(visitor: TestClient, shown: Recorded) -> None:
    """Its own model, colored by its profile; one that is not there, and a run without any, are said."""
    run_id = shown.ids["fast"]
    (graph,) = visitor.get(f"/runs/{run_id}/graph.json").json()["graphs"]
    assert [coloring["key"] for coloring in graph["colorings"]] == ["time", "placement", "precision"]
    assert [node[8] for node in graph["nodes"]] == [1, 1, 1, 2, 2, 2, 3, 5, 6, 6]
    for address, code in ((f"/runs/{run_id}/graph?of={run_id}/none", 404), ("/runs/none/graph", 404),
                          (f"/runs/{shown.ids['train']}/graph", 404),
                          (f"/runs/{run_id}/graph?of={run_id}/output_file", 400)):  # fmt: skip
        assert visitor.get(address).status_code == code, address
    guest = TestClient(page.app(lambda: shown.store, projects=lambda _: ["fleet"]))
    assert guest.get(f"/runs/{run_id}/graph").status_code == 404


def test_what_every_run_has_of_its_own_is_no_difference(own: Recorded) -> None:
    """When a device was held is not told as one; versions are lines, not JSON."""
    client = Client("vision", own.store)
    ids = []
    for number in range(2):
        with client.start_run(RunType.CUSTOM, f"run {number}") as run:
            run.log_batch({"$claimed": {"from_ms": number}, "$versions": {"numpy": f"2.{number}", "onnx": "1.17"}})
        ids.append(run.id)
    client.close()
    visitor = TestClient(page.app(lambda: own.store))
    compared = visitor.get(f"/compare?run={ids[0]}&run={ids[1]}").text
    assert "$claimed" not in compared
    assert "$versions" in compared
    html = visitor.get(f"/runs/{ids[0]}").text
    assert '<span class="step">numpy: 2.0</span><span class="step">onnx: 1.17</span>' in html
