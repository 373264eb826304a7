"""The REST API: what it answers, and what it refuses without telling anything."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.hub_server import HubServer
from support.processes import wait_until
from support.s3 import bucket_of_its_own

from embedl_hub.server import KeyRing
from embedl_hub.tracking import folder_content, project_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUN = "0123456789abcdef"
MODEL = b"a model"
SHA = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture(scope="module", params=["files", pytest.param("postgresql and s3", marks=pytest.mark.slow)])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """One server for all tests of this file: with a file and a folder, and with a database server and a bucket."""
    home, options, environment = tmp_path_factory.mktemp("server") / "home", list[str](), dict[str, str]()
    with contextlib.ExitStack() as stack:
        if request.param != "files":
            cluster = request.getfixturevalue("cluster")
            options += ["--database", cluster.database(f"rest{time.time_ns()}"), "--artifacts", "s3://models/hub"]
            environment = stack.enter_context(bucket_of_its_own())
        server = HubServer(home, *options, environment=environment).start()
        yield server
        server.end()


def start(project: str, **more: Any) -> dict[str, Any]:
    facts = {"format": 1, "project": project, "type": "CUSTOM", "name": "sweep", "host": "here", "pid": 1, **more}
    return {"seq": 0, "kind": "start", "time_ms": 1_700_000_000_000, **facts}


def record(seq: int, kind: str, **facts: Any) -> dict[str, Any]:
    return {"seq": seq, "kind": kind, "time_ms": 1_700_000_001_000, **facts}


class Project:
    """A project of its own on a server, with a key."""

    def __init__(self, server: HubServer, name: str) -> None:
        self.server = server
        self.name = name
        self.id = project_id(name)
        self.key = server.key(name)
        self.base = f"/api/projects/{self.id}"

    def run_id(self, number: int = 0) -> str:
        return hashlib.sha256(f"{self.name} {number}".encode()).hexdigest()[:20]

    def send(self, run_id: str, *records: dict[str, Any], after: int = -1) -> tuple[int, Any]:
        body = {"after": after, "records": list(records)}
        return self.server.ask("POST", f"{self.base}/runs/{run_id}/records", self.key, body)[:2]

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        return self.server.ask("GET", self.base + path, key or self.key)[:2]

    def put(self, content: bytes, sha256: str | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        sha256 = sha256 or hashlib.sha256(content).hexdigest()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.ask("PUT", f"{self.base}/contents/{sha256}", self.key, content, named)


def test_a_run_begins_with_its_start(shared: HubServer) -> None:
    """Another first record would say of no project that the run is its own, and let every key write to it."""
    ours, theirs = Project(shared, "first ours"), Project(shared, "first theirs")
    for number, first in enumerate((record(1, "param", name="a", value=1), record(7, "end", status="FINISHED"))):
        run_id = ours.run_id(number)
        status, document = ours.send(run_id, first)
        assert (status, document["errors"][0]["code"]) == (400, "bad_request")
        assert "first record of a run is its start" in document["errors"][0]["message"]
        assert theirs.send(run_id, record(8, "tag", name="x", value="y"), after=7)[0] == 409
        assert not (shared.home / "runs" / run_id).exists()
    # One that an earlier version took belongs to nobody.
    planted = shared.home / "runs" / ours.run_id(9)
    planted.mkdir(parents=True)
    (planted / "manifest.jsonl").write_text(json.dumps(record(1, "param", name="a", value=1)) + "\n")
    for project in (ours, theirs):
        assert project.send(ours.run_id(9), record(2, "tag", name="x", value="y"), after=1)[0] == 404


def test_a_run_that_began_a_moment_ago_takes_no_records_of_others(shared: HubServer) -> None:
    """Two projects send to one id at the same time; whoever came first has it, and nobody else writes to it."""
    ours, theirs = Project(shared, "race ours"), Project(shared, "race theirs")
    for number in range(20):
        run_id = ours.run_id(number)
        answers: list[int] = []

        def intrude(run_id: str = run_id, answers: list[int] = answers) -> None:
            tags = [record(seq, "tag", name="mine", value="x") for seq in range(1, 6)]
            answers.extend(theirs.send(run_id, tag, after=tag["seq"] - 1)[0] for tag in tags)

        thread = threading.Thread(target=intrude)
        thread.start()
        assert ours.send(run_id, start(ours.name))[0] == 200
        thread.join()
        assert 200 not in answers
        assert ours.get(f"/runs/{run_id}?include=tags")[1]["data"]["tags"] == []


@pytest.mark.parametrize(
    "query",
    [
        "order=name&after={c_huge}", "order=name&after={c_negative}", "order=metrics.m&after={m_huge}",
        "order=metrics.m&after={m_deep}", "after={t_list}", "offset=9223372036854775808", "offset=-1", "limit=1e3",
        "limit=99999999999999999999", "limit=%2B5", "offset=0x10", "after=%00", "after=" + "A" * 1000,
        "where=started+%3E+%27999999999999999999999999d%27", "where=duration+%3E+1e999",
        "where=params.a+%3E+99999999999999999999999999999999",
    ],
)  # fmt: skip
def test_no_number_is_too_large_to_be_answered(shared: HubServer, query: str) -> None:
    """With 400 where it makes no sense, never with 500."""
    ours = Project(shared, "numbers")
    ours.send(ours.run_id(), start(ours.name))

    def packed(*values: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")

    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    filled = query.format(
        c_huge=packed("c", 2**70), c_negative=packed("c", -1), m_huge=packed("m", 10**400, "a"),
        m_deep=packed("m", nested, "a"), t_list=packed("t", [1]),
    )  # fmt: skip
    status, document = ours.get(f"/runs?{filled}")
    assert status == (200 if query.startswith("where") else 400), document


@pytest.fixture
def project(shared: HubServer, request: pytest.FixtureRequest) -> Project:
    return Project(shared, request.node.name)


def artifact(seq: int, content: bytes = MODEL, **changes: Any) -> dict[str, Any]:
    facts = {"name": "path", "file_name": "m.bin", "sha256": hashlib.sha256(content).hexdigest()}
    return record(seq, "artifact", **{**facts, "size_bytes": len(content), **changes})


def test_lists_are_paged_newest_first(project: Project) -> None:
    """With the words of the public API."""
    for number in range(5):
        run_id = f"{number:013x}00000000"
        assert project.send(run_id + project.id[:8], start(project.name), record(1, "end", status="FINISHED"))[0] == 200
    status, document = project.get("/runs?limit=2&offset=1")
    assert status == 200
    assert [item["id"][:13] for item in document["data"]["items"]] == [f"{3:013x}", f"{2:013x}"]
    pagination = document["data"]["pagination"]
    after = pagination.pop("nextAfter")
    assert pagination == {"limit": 2, "offset": 1, "total": 5, "hasMore": True, "nextOffset": 3}
    _, rest = project.get(f"/runs?limit=500&after={after}")
    assert [item["id"][:13] for item in rest["data"]["items"]] == [f"{1:013x}", f"{0:013x}"]
    assert rest["data"]["pagination"]["hasMore"] is False
    assert project.get("/runs?limit=501")[0] == 400
    assert project.get("/runs?limit=-1")[0] == 400
    assert project.get("/runs?color=red")[0] == 400


def test_runs_are_found_by_what_they_are_and_logged(project: Project) -> None:
    """Status, type, custom type, and the filter's words."""
    project.send(project.run_id(1), start(project.name), record(1, "metric", name="latency", value=3.0))
    project.send(project.run_id(2), start(project.name, type="EVAL", name="o'clock"), record(1, "end", status="FAILED"))
    found = {
        query: [item["id"] for item in project.get(f"/runs?{query}")[1]["data"]["items"]]
        for query in (
            "status=FAILED", "type=CUSTOM", "customType=sweep", "customType=o%27clock",
            "where=metrics.latency%20%3C%205",
            "order=metrics.latency&type=EVAL",
        )
    }  # fmt: skip
    one, two = [project.run_id(1)], [project.run_id(2)]
    assert list(found.values()) == [two, one, one, [], one, two]
    status, document = project.get("/runs?where=latency%20%3C%205")
    assert status == 400
    assert "a field is expected here" in document["errors"][0]["message"]
    # Brackets of one's own do not reach other projects.
    assert project.get("/runs?where=project%20!%3D%20%27x%27)%20or%20(project%20!%3D%20%27y%27")[1]["errors"]


def test_a_run_comes_with_the_values_asked_for(project: Project) -> None:
    """Numbers that are none are text; a value is shown as it was logged."""
    run_id = project.run_id()
    values = [record(1, "param", name="p", value={"deep": [1, None, "x\0"]}), record(2, "tag", name="t", value="<b>")]
    values += [record(3, "metric", name="m", value="nan"), record(4, "metric", name="m", value=2, step=7)]
    project.send(run_id, start(project.name), *values)
    assert "params" not in project.get(f"/runs/{run_id}")[1]["data"]
    data = project.get(f"/runs/{run_id}?include=params,metrics,tags")[1]["data"]
    assert data["params"] == [{"name": "p", "value": {"deep": [1, None, "x\0"]}}]
    assert [(metric["value"], metric["step"]) for metric in data["metrics"]] == [("nan", None), (2.0, 7)]
    assert data["tags"] == [{"name": "t", "value": "<b>"}]
    assert data["customType"] == "sweep"
    assert "artifacts" in project.get(f"/runs/{run_id}?include=all")[1]["data"]
    assert project.get(f"/runs/{run_id}?include=secrets")[0] == 400


def test_records_are_taken_once_and_in_order(project: Project) -> None:
    """Sent again: nothing changes. With a hole: not taken, and the answer says where to go on."""
    run_id = project.run_id()
    assert project.send(run_id)[1] == {"data": {"last": -1, "missing": []}}
    first = [start(project.name), record(1, "metric", name="m", value=1)]
    for _ in range(3):
        assert project.send(run_id, *first)[1]["data"]["last"] == 1
    status, document = project.send(run_id, record(9, "metric", name="m", value=2), after=5)
    assert (status, document["errors"][0]["code"], document["errors"][0]["details"]) == (409, "hole", {"last": 1})
    # A number that was never written is no hole.
    assert project.send(run_id, record(4, "metric", name="m", value=2), after=1)[1]["data"]["last"] == 4
    assert project.send(run_id, *first, record(4, "metric", name="m", value=3))[1]["errors"][0]["code"] == "differs"
    assert [m["value"] for m in project.get(f"/runs/{run_id}?include=metrics")[1]["data"]["metrics"]] == [1, 2]


def test_an_artifact_waits_for_its_content(project: Project) -> None:
    """The records before it are taken, and the answer says what is missing."""
    run_id = project.run_id()
    sent = [
        start(project.name),
        record(1, "tag", name="t", value="x"),
        artifact(2),
        record(3, "end", status="FINISHED"),
    ]
    assert project.send(run_id, *sent)[1]["data"] == {"last": 1, "missing": [{"sha256": SHA, "sizeBytes": 7}]}
    assert project.put(MODEL)[0] == 200
    assert project.send(run_id, *sent)[1]["data"] == {"last": 3, "missing": []}
    path = f"{project.base}/runs/{run_id}/artifacts/path"
    status, body, headers = project.server.ask("GET", path, project.key)
    assert (status, body) == (200, MODEL)
    assert headers["content-disposition"] == "attachment; filename*=UTF-8''m.bin"
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert project.server.ask("GET", path, project.key, headers={"Range": "bytes=2-4"})[:2] == (206, b"mod")
    assert project.server.ask("GET", path, project.key, headers={"Range": "bytes=99-"})[0] == 416
    assert project.get(f"/runs/{run_id}/artifacts/other")[0] == 404
    assert project.get(f"/runs/{run_id}/artifacts/..%2f..%2fkeys.jsonl")[0] == 404


def test_a_folder_comes_file_by_file(project: Project) -> None:
    """Only files that the run logged, by the names it logged them under."""
    run_id = project.run_id()
    files = (("deep/a b.txt", SHA, 7),)
    whole = folder_content(files)
    folder = record(
        1, "artifact", name="data", file_name="data", sha256=whole.sha256, size_bytes=7, files=[list(files[0])]
    )
    project.put(MODEL)
    assert project.send(run_id, start(project.name), folder)[1]["data"]["last"] == 1
    base = f"/runs/{run_id}/artifacts/data"
    assert project.get(base)[0] == 409
    assert project.get(f"{base}?path=deep/a%20b.txt") == (200, MODEL)
    for wrong in ("deep", "../../../keys.jsonl", "deep/../deep/a%20b.txt", "%2fetc%2fpasswd"):
        assert project.get(f"{base}?path={wrong}")[0] == 404
    (found,) = project.get(f"/runs/{run_id}?include=artifacts")[1]["data"]["artifacts"]
    assert found["files"] == [{"path": "deep/a b.txt", "sha256": SHA, "sizeBytes": 7}]


def test_an_upload_goes_on_where_it_stopped(project: Project) -> None:
    """HEAD says how far it came."""
    content = bytes(range(256)) * 10
    address = f"{project.base}/contents/{hashlib.sha256(content).hexdigest()}"
    assert project.put(content[:1000], hashlib.sha256(content).hexdigest(), Content_Range="bytes 0-999/2560")[0] == 202
    headers = project.server.ask("HEAD", address, project.key)[2]
    assert (headers["upload-offset"], headers["upload-complete"]) == ("1000", "false")
    sha256 = hashlib.sha256(content).hexdigest()
    again = project.put(content[:1000], sha256, Content_Range="bytes 0-999/2560")
    assert (again[0], again[2]["upload-offset"]) == (409, "1000")
    assert project.put(content[1000:], sha256, Content_Range="bytes 1000-2559/2560")[0] == 200
    assert project.server.ask("HEAD", address, project.key)[2]["upload-complete"] == "true"
    assert project.put(content, sha256)[0] == 200


@pytest.mark.parametrize(
    ("content", "content_range", "status"),
    [
        (b"another", None, 422),
        (b"a model and more", "bytes 0-15/7", 400),
        (b"a model", "bytes 0-6/3", 400),
        (b"a model", "bytes 6-0/7", 400),
        (b"a model", "bits 0-6/7", 400),
        (b"a mod", "bytes 0-4/99999999999999999", 413),
    ],
)
def test_an_upload_that_lies_is_not_kept(
    project: Project, content: bytes, content_range: str | None, status: int
) -> None:
    """Neither about its hash nor about its size."""
    assert project.put(content, SHA, **({"Content-Range": content_range} if content_range else {}))[0] == status
    headers = project.server.ask("HEAD", f"{project.base}/contents/{SHA}", project.key)[2]
    assert (headers["upload-offset"], headers["upload-complete"]) == ("0", "false")


def test_a_record_that_lies_about_a_content_is_refused(project: Project) -> None:
    """The size must be the content's, and a folder's hash that of its files."""
    project.put(MODEL)
    assert project.send(project.run_id(), start(project.name), artifact(1, size_bytes=8))[0] == 422
    folder = artifact(1, name="data", files=[["a", SHA, 7]])
    status, document = project.send(project.run_id(), start(project.name), folder)
    assert status == 400
    assert "hash or size" in document["errors"][0]["message"]


HOSTILE = [
    record(1, "artifact", name="../../x", file_name="m", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x", file_name="..", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x", file_name="a/b", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x", file_name="a\\b", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x", file_name="m\0", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x" * 300, file_name="m", sha256=SHA, size_bytes=7),
    record(1, "artifact", name="x", file_name="m", sha256="../" + SHA[3:], size_bytes=7),
    record(1, "artifact", name="x", file_name="m", sha256=SHA, size_bytes=-1),
    record(1, "artifact", name="x", file_name="m", sha256=SHA, size_bytes=7, files=[["../../keys.jsonl", SHA, 7]]),
    record(1, "artifact", name="x", file_name="m", sha256=SHA, size_bytes=7, files=[["/etc/passwd", SHA, 7]]),
    record(1, "artifact", name="x", file_name="m", sha256=SHA, size_bytes=7, files=[["a", SHA, 7], ["a/b", SHA, 7]]),
    record(1, "artifact", name="x", file_name="m", sha256=SHA, size_bytes=7, files=[["a\0b", SHA, 7]]),
    record(1, "metric", name="m", value="1"),
    record(1, "metric", name="m", value=True),
    record(1, "metric", name="m", value=10**400),
    record(1, "metric", name="m", value=1, step=2**64),
    record(1, "metric", name="m\n", value=1),
    record(1, "metric", name="", value=1),
    record(1, "tag", name="t", value="\ud800"),
    record(1, "tag", name="t", value="a\0b"),
    record(1, "tag", name="t", value=["no text"]),
    record(1, "param", name="p", value="x", extra=1),
    record(1, "end", status="GREAT"),
    record(1, "rm -rf"),
    record(1, "start"),
    record(2**60, "tag", name="t", value="x"),
    {"seq": 1, "kind": "tag", "time_ms": 10**18, "name": "t", "value": "x"},
    "text",
]


@pytest.mark.parametrize("sent", HOSTILE, ids=lambda value: json.dumps(value)[:60])
def test_a_hostile_record_is_refused(project: Project, sent: Any) -> None:
    """With a reason, and nothing of it is kept."""
    status, document = project.send(project.run_id(), start(project.name), sent)
    assert status == 400, document
    assert document["errors"][0]["message"]
    assert project.get(f"/runs/{project.run_id()}")[0] == 404
    assert not (project.server.home / "runs" / project.run_id()).exists()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'{"after": -1}', b'{"after": "x", "records": []}',
        b'{"after": 1e999, "records": []}',
        b'{"after": -1, "records": NaN}', b"[" * 100_000, b"\xff\xfe",
        b'{"after": ' + b"9" * 5000 + b', "records": []}',
    ],
)  # fmt: skip
def test_a_hostile_body_is_refused(project: Project, body: bytes) -> None:
    """Whatever it is."""
    address = f"{project.base}/runs/{project.run_id()}/records"
    headers = {"Content-Type": "application/json"}
    assert project.server.ask("POST", address, project.key, body, headers)[0] == 400


def test_a_body_that_is_too_large_is_refused(project: Project) -> None:
    """Before it is all read."""
    body = b'{"after": -1, "records": [' + b" " * (9 << 20) + b"]}"
    address = f"{project.base}/runs/{project.run_id()}/records"
    assert project.server.ask("POST", address, project.key, body, {"Content-Type": "application/json"})[0] == 413


def test_a_key_of_another_project_learns_nothing(project: Project) -> None:
    """What is there and what is not are answered alike, to the letter."""
    run_id = project.run_id()
    project.put(MODEL)
    project.send(run_id, start(project.name), artifact(1))
    stranger = project.server.key("another project")
    paths = ("", "/runs", f"/runs/{run_id}", f"/runs/{run_id}?include=all", f"/runs/{run_id}/artifacts/path")
    answers = [project.get(path, stranger) for path in paths]
    answers += [project.server.ask("GET", f"/api/projects/{'0' * 32}{path}", stranger)[:2] for path in paths]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 404
    for method, path in (("DELETE", f"/runs/{run_id}"), ("HEAD", f"/contents/{SHA}"), ("PUT", f"/contents/{SHA}")):
        assert project.server.ask(method, project.base + path, stranger)[0] == 404
    listed = project.server.ask("GET", "/api/projects?limit=500", stranger)[1]["data"]
    assert (listed["items"], listed["pagination"]["total"]) == ([], 0)


def test_a_content_of_another_project_cannot_be_claimed(project: Project) -> None:
    """Knowing its hash is not having it."""
    project.put(b"a secret model")
    other = Project(project.server, "claimer")
    claimed = artifact(1, b"a secret model")
    status, document = other.send(other.run_id(), start(other.name), claimed)
    assert (status, document["data"]["last"], len(document["data"]["missing"])) == (200, 0, 1)
    headers = other.server.ask("HEAD", f"{other.base}/contents/{claimed['sha256']}", other.key)[2]
    assert headers["upload-offset"] == "0"


def test_a_run_cannot_be_taken_over(project: Project) -> None:
    """By a key that writes to another project, under the same id."""
    run_id = project.run_id()
    project.send(run_id, start(project.name))
    other = Project(project.server, "taker")
    assert other.send(run_id, start(other.name))[0] == 404
    assert other.send(run_id, record(1, "tag", name="t", value="mine"), after=0)[0] == 404
    # Nor can a run be put into a project whose address is another one's.
    assert other.send(other.run_id(5), start(project.name))[0] == 400
    assert project.get(f"/runs/{run_id}?include=tags")[1]["data"]["tags"] == []


def test_without_a_key_nothing_opens(project: Project) -> None:
    """No key, a wrong one, a revoked one, one in another place."""
    server = project.server
    ring = KeyRing(server.home)
    key, text = ring.add("gone", ["*"], "write")
    assert server.ask("GET", "/api/projects", text)[0] == 200
    ring.revoke(key.id)
    for shown in (None, "eh_", "eh_" + "x" * 43, text, "Basic"):
        status, document, headers = server.ask("GET", "/api/projects", shown)
        assert (status, document["errors"][0]["code"]) == (401, "no_key")
        assert headers["www-authenticate"] == "Bearer"
    good = project.key
    assert server.ask("GET", f"/api/projects?key={good}", None)[0] == 401
    assert server.ask("GET", "/api/projects", None, headers={"Cookie": f"key={good}"})[0] == 401
    assert server.ask("GET", "/metrics")[0] == 401
    assert server.ask("GET", "/api/no/such/thing")[0] == 401
    assert server.ask("GET", "/api/no/such/thing", good)[0] == 404


def test_a_key_for_reading_does_not_write(project: Project) -> None:
    """It reads, and everything else is 403."""
    project.send(project.run_id(), start(project.name))
    reader = project.server.key(project.name, access="read")
    assert project.get("/runs", reader)[0] == 200
    address = f"{project.base}/runs/{project.run_id()}"
    for method, path in (("DELETE", ""), ("POST", "/records"), ("PATCH", "")):
        assert project.server.ask(method, address + path, reader, {})[0] == 403
    assert project.server.ask("PUT", f"{project.base}/contents/{SHA}", reader, MODEL)[0] == 403


def test_a_run_that_has_ended_can_be_archived_and_tagged(project: Project) -> None:
    """Not before: until then its own client writes to it."""
    run_id = project.run_id()
    address = f"{project.base}/runs/{run_id}"
    project.send(run_id, start(project.name))
    change = {"archived": True, "tags": {"stage": "ci"}}
    assert project.server.ask("PATCH", address, project.key, change)[0] == 409
    project.send(run_id, record(1, "end", status="FINISHED"), after=0)
    status, document, _ = project.server.ask("PATCH", address, project.key, change)
    assert (status, document["data"]["archived"], document["data"]["tags"][0]["value"]) == (200, True, "ci")
    assert project.get("/runs")[1]["data"]["items"] == []
    assert len(project.get("/runs?archived=any")[1]["data"]["items"]) == 1
    wrongs: list[dict[str, Any]] = [
        {"archived": 1},
        {"tags": {"": "x"}},
        {"tags": {"a": 1}},
        {"name": "x"},
        {"tags": []},
    ]
    for wrong in wrongs:
        assert project.server.ask("PATCH", address, project.key, wrong)[0] == 400
    assert project.server.ask("DELETE", address, project.key)[0] == 204
    assert project.server.ask("DELETE", address, project.key)[0] == 404
    assert project.send(run_id, start(project.name))[0] == 410


def test_every_answer_has_safe_headers(shared: HubServer) -> None:
    """Also the refusals, and the ones of the page."""
    for path in ("/api/projects", "/healthz", "/api/openapi.json", "/", "/login", "/no/such/page"):
        headers = shared.ask("GET", path)[2]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "'unsafe-inline'" not in headers["content-security-policy"]
        assert "server" not in headers


def test_the_log_holds_no_secret(project: Project) -> None:
    """One JSON object per line, with the key's id and not the key."""
    project.send(project.run_id(), start(project.name))
    project.get("/runs?where=name%20%3D%20%27confidential%27")
    # The line is written after the answer is sent.
    wait_until(lambda: f'{project.base}/runs"' in project.server.log.read_text(), 10)
    text = project.server.log.read_text()
    assert project.key not in text
    assert "confidential" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    last = [line for line in lines if line["message"] == "request" and line["path"] == f"{project.base}/runs"][-1]
    assert (last["method"], last["status"], len(last["key"])) == ("GET", 200, 8)


def test_metrics_count_requests(project: Project) -> None:
    """In Prometheus' format, without names."""
    project.send(project.run_id(), start(project.name))
    status, text, _ = project.server.ask("GET", "/metrics", project.key)
    assert status == 200
    lines = text.decode().splitlines()
    assert any(
        line.startswith('edgeproof_requests_total{method="POST",route="/api/projects/{project}/runs') for line in lines
    )
    assert project.name not in text.decode()
    assert project.id not in text.decode()


def test_too_many_requests_are_told_to_wait(new_server: Callable[..., HubServer]) -> None:
    """Per key; and whoever guesses keys is slowed down as well."""
    server = new_server("--rate", "1", "--burst", "5")
    key, other = server.key(), server.key()
    answers = [server.ask("GET", "/api/projects", key) for _ in range(8)]
    assert [status for status, _, _ in answers].count(429) >= 2
    assert answers[-1][2]["retry-after"] == "1"
    assert server.ask("GET", "/api/projects", other)[0] == 200
    assert 429 in {server.ask("GET", "/api/projects", "eh_guess")[0] for _ in range(40)}


def test_a_stopped_server_ends_clean(new_server: Callable[..., HubServer]) -> None:
    """SIGTERM: exit code 0, and no trace of trouble."""
    server = new_server()
    server.ask("GET", "/api/projects", server.key())
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
    assert (server.home / "clean-stop").exists()


def test_a_full_disk_is_said_and_gets_over(new_server: Callable[..., HubServer], small_disk: Path) -> None:
    """507 while it lasts; nothing half-written stays; afterwards everything goes on."""
    server = new_server("--no-durable", home=small_disk / "home")
    project = Project(server, "p")
    assert project.send(project.run_id(), start("p"))[0] == 200
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 65536
        while size >= 1:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    long = [record(seq, "tag", name=f"t{seq}", value="x" * 5000) for seq in range(1, 40)]
    assert project.send(project.run_id(), *long, after=0)[0] == 507
    assert project.put(b"y" * 200_000)[0] == 507
    filler.unlink()
    assert project.send(project.run_id(), *long, after=0)[1]["data"]["last"] == 39
    assert project.put(b"y" * 200_000)[0] in {200, 409}
    assert len(project.get(f"/runs/{project.run_id()}?include=tags")[1]["data"]["tags"]) == 39
