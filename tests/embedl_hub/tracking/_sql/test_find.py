"""Finding runs by what they are and what they logged."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.postgres import Cluster

from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Client, RunType, Store, check_filter
from embedl_hub.tracking._filter import parse
from embedl_hub.tracking._sql import find as _find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=["SQLite", "PostgreSQL"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with thirty runs named r0 to r29 of two projects, on either database."""
    cluster = Cluster().start() if request.param == "PostgreSQL" else None
    address = None if cluster is None else cluster.database("full")
    with Store(tmp_path_factory.mktemp("full") / "home", database=address) as store:
        model = tmp_path_factory.mktemp("models") / "net.onnx"
        for number in range(30):
            client = Client("even" if number % 2 == 0 else "odd", store)
            kind = RunType.PROFILE if number % 3 == 0 else RunType.CUSTOM
            try:
                with client.start_run(kind, f"r{number}", device="Pi 5" if number % 5 == 0 else None) as run:
                    run.log_param("batch", number % 4)
                    run.log_param("precision", "int8" if number % 2 else "float32")
                    run.log_tag("stage", "ci" if number < 10 else "dev")
                    run.log_metric("latency", 1000.0)
                    run.log_metric("latency", 30.0 - number)
                    if number % 2:
                        run.log_metric("top-1 %", number)
                    if number == 7:
                        run.log_metric("odd", math.nan)
                        run.log_metric("late", math.inf)
                    if number == 3:
                        model.write_bytes(b"a model")
                        run.log_artifact(model, name="input")
                        raise RuntimeError("the board caught 100 % fire")  # noqa: TRY301 - a failed run is wanted
            except RuntimeError:
                pass
            client.close()
        store.archive(store.runs("name = 'r29'")[0].id)
        yield store
    if cluster is not None:
        cluster.end()


def names(store: Store, where: str = "", **options: object) -> list[str]:
    return [run.name for run in store.runs(where, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("metrics.latency < 4", ["r28", "r27"]),
        ("metrics.latency > 900", []),
        ("metrics.latency <= 3 or metrics.latency = 30", ["r28", "r27", "r0"]),
        ("tags.stage = 'ci' and metrics.latency < 23", ["r9", "r8"]),
        ("params.batch = 3 and params.precision = 'int8' and tags.stage = 'ci'", ["r7", "r3"]),
        ("params.batch >= 3 and tags.stage != 'dev'", ["r7", "r3"]),
        ("params.precision ~ 'FLOAT' and tags.stage = 'ci'", ["r8", "r6", "r4", "r2", "r0"]),
        ("params.precision < 'g' and tags.stage = 'ci'", ["r8", "r6", "r4", "r2", "r0"]),
        ('metrics."top-1 %" >= 25', ["r27", "r25"]),
        ("metrics.`top-1 %` >= 25", ["r27", "r25"]),
        ("status = 'failed'", ["r3"]),
        ("error ~ '100 % fire'", ["r3"]),
        ("error ~ '100 x'", []),
        ("type = 'PROFILE' and project = 'odd' and tags.stage = 'ci'", ["r9", "r3"]),
        ("device = 'Pi 5' and not project = 'even'", ["r25", "r15", "r5"]),
        ("device is null and tags.stage = 'ci'", ["r9", "r8", "r7", "r6", "r4", "r3", "r2", "r1"]),
        ("name in ('r1', 'r2', 'r99')", ["r2", "r1"]),
        ("name not in ('r1', 'r2') and tags.stage = 'ci' and metrics.latency > 26", ["r3", "r0"]),
        ("metrics.odd is not null", []),
        ("metrics.late > 1e300", ["r7"]),
        ("metrics.late is not null", ["r7"]),
        ("artifacts.input = 'net.onnx'", ["r3"]),
        ("model ~ 'ONNX'", ["r3"]),
        ("archived = true", []),
        ("started > '1h' and name = 'r4'", ["r4"]),
        ("started < '2020-01-01'", []),
        ("started >= '2020-01-01T10:00+02:00' and duration < 60 and name = 'r4'", ["r4"]),
        ("((name = 'r4'))", ["r4"]),
        ("not (not name = 'r4')", ["r4"]),
        ("params.missing != 4", []),
        ("tags.stage in ('ci') and params.batch in (0) and not params.precision = 'x'", ["r8", "r4", "r0"]),
    ],
)
def test_the_words_mean_what_they_say(full: Store, where: str, found: list[str]) -> None:
    """Each kind of field with each kind of comparison."""
    assert names(full, where) == found
    assert full.count(where) == len(found)


def test_a_content_is_found_by_the_beginning_of_its_hash(full: Store) -> None:
    """As a model is named on the page."""
    sha256 = full.run(full.runs("name = 'r3'")[0].id).artifacts["input"].sha256
    assert names(full, f"model = '{sha256[:12]}'") == ["r3"]
    assert names(full, f"artifacts.input = '{sha256}'") == ["r3"]
    assert names(full, f"artifacts.other = '{sha256}'") == []


@pytest.mark.parametrize("rare", [0, 5000])
@pytest.mark.parametrize("size", [1, 4, 500])
@pytest.mark.parametrize(
    "order",
    ["-started", "started", "metrics.latency", "-metrics.latency", 'metrics."top-1 %"', "-metrics.late",
     "params.batch", "-params.precision", "tags.stage", "name", "-duration"],
)  # fmt: skip
def test_pages_follow_each_other_without_gap_or_double(
    full: Store, order: str, size: int, rare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order, the page size and where the search starts."""
    monkeypatch.setattr(_find, "_RARE", rare)
    where = "tags.stage = 'ci' or metrics.latency < 10"
    paged, after = [], None
    while True:
        page = full.find(where, order=order, limit=size, after=after)
        paged += [run.name for run in page.runs]
        assert len(page.runs) == size or page.after is None
        after = page.after
        if after is None:
            break
    whole = [run.name for run in full.find(where, order=order, limit=500).runs]
    assert paged == whole
    assert sorted(paged) == sorted(names(full, where))
    counted = [
        run.name
        for offset in range(0, len(whole), size)
        for run in full.find(where, order=order, limit=size, offset=offset).runs
    ]
    assert counted == whole


def test_runs_without_the_metric_come_last_in_either_direction(full: Store) -> None:
    """A failed run does not vanish from a table because it is sorted by a column it lacks."""
    for order in ('metrics."top-1 %"', '-metrics."top-1 %"'):
        found = full.runs(order=order)
        assert [run.metric("top-1 %") is None for run in found] == [False] * 14 + [True] * 15
        having = [run.metrics[-1].value for run in found if run.metric("top-1 %")]
        assert having
    assert names(full, order="-metrics.latency")[:3] == ["r0", "r1", "r2"]
    assert names(full, order="metrics.latency")[:3] == ["r28", "r27", "r26"]
    assert names(full, order="params.batch")[:8] == ["r28", "r24", "r20", "r16", "r12", "r8", "r4", "r0"]


def test_archived_runs_are_shown_when_asked_for(full: Store) -> None:
    """They are put aside, not gone."""
    assert "r29" not in names(full)
    assert names(full, archived=True) == ["r29"]
    assert len(names(full, archived=None)) == 30
    assert full.count(archived=None) == 30


def test_a_page_holds_the_values_of_its_runs(full: Store) -> None:
    """Each metric with its last value; a run on its own has the whole series."""
    run = full.runs("name = 'r7'")[0]
    assert {name: param.value for name, param in run.params.items()} == {"batch": 3, "precision": "int8"}
    assert run.tags == {"stage": "ci"}
    values = {metric.name: metric.value for metric in run.metrics}
    assert math.isnan(values.pop("odd"))
    assert values == {"latency": 23.0, "top-1 %": 7.0, "late": math.inf}
    assert len([metric for metric in full.run(run.id).metrics if metric.name == "latency"]) == 2


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("metrics.latency", "one of = != < <= > >= ~"),
        ("metrics.latency <", "a value is expected"),
        ("metrics.latency < fast", "'fast'"),
        ("latency < 5", "metrics.NAME"),
        ("metrics.latency < 5 tags.stage = 'ci'", "'and', 'or' or the end"),
        ("(name = 'x'", "')' is expected"),
        ("name = 'x", "cannot be read"),
        ("name = 5", "quotation marks"),
        ("metrics.latency < 'x'", "is a number"),
        ("metrics.latency ~ 5", "contains"),
        ("status = 'done'", "'FINISHED'"),
        ("type = 'PROFILING'", "'PROFILE'"),
        ("started > 'yesterday'", "'7d'"),
        ("started > 5", "'7d'"),
        ("archived = 1", "archived = true"),
        ("archived is null", "never null"),
        ("artifacts.input < 'x'", "beginning of a hash"),
        ("name is 5", "'null' is expected"),
        ("name not = 'x'", "one of ="),
        ("name in ()", "a value is expected"),
        ("name = 'x' and", "a field is expected"),
        ("x" * 5000, "characters"),
        ("name = '\x00'", "NUL"),
        ("(" * 60 + "name = 'x'" + ")" * 60, "nested"),
        ("not " * 60 + "name = 'x'", "nested"),
    ],
)
def test_what_cannot_be_understood_is_said_with_its_place(full: Store, where: str, hint: str) -> None:
    """One error that names the place, the reason and an example or the known words."""
    with pytest.raises(ConfigError) as caught:
        full.find(where)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"limit": 501}, {"offset": -1}, {"after": "nonsense"}, {"order": "speed"}, {"order": "model"},
     {"after": "WyJjIiwgLTFd"}, {"order": "metrics.x", "after": "WyJtIiwgIngiLCAieSJd"}, {"order": ""}],
)  # fmt: skip
def test_a_page_that_cannot_be_is_refused(full: Store, options: dict[str, object]) -> None:
    """Sizes out of bounds, orders nobody knows, and the end of another list."""
    with pytest.raises(ConfigError):
        full.find(**options)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="abcmetrics.latency<>=!~()'\",and or not in is null 0123456789\\%_\x00é", max_size=60))
def test_any_text_is_understood_or_refused(full: Store, where: str) -> None:
    """Never another error, never a statement of the user's making."""
    try:
        parse(where)
    except ConfigError:
        return
    try:
        full.find(where, limit=1)
    except ConfigError:
        return


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=30))
def test_any_value_can_be_asked_for(full: Store, text: str) -> None:
    """Quotes, wildcards and control characters are values like others."""
    quoted = "'" + text.replace("'", "''") + "'"
    assert names(full, f"name = {quoted}") == [name for name in names(full) if name == text]
    assert names(full, f"name ~ {quoted}") == [name for name in names(full) if text.lower() in name]


def test_a_filter_by_a_metric_looks_at_each_run_once(store: Store) -> None:
    """The work grows with the runs, not with their square."""

    def steps(runs: int) -> int:
        store.apply({f"{number:05}": _records(number) for number in range(runs)})
        count = 0

        def step() -> None:
            nonlocal count
            count += 1

        with store._reading() as connection:
            assert isinstance(connection, sqlite3.Connection)
            connection.set_progress_handler(step, 100)
            assert store.find("metrics.latency >= 0 and metrics.latency < 0").runs == ()
            connection.set_progress_handler(None, 0)
        return count

    few = steps(200)
    assert few > 0
    assert steps(1600) < 16 * few


def _records(number: int) -> list[dict[str, object]]:
    made: list[dict[str, object]] = [
        {"kind": "start", "project": "p", "type": "CUSTOM", "name": "n", "format": 1},
        {"kind": "metric", "name": "latency", "value": number, "step": None},
        {"kind": "end", "status": "FINISHED"},
    ]
    return [{"seq": seq, "time_ms": 1, **record} for seq, record in enumerate(made)]


def test_a_filter_is_whole_by_itself_or_refused() -> None:
    """So that it can stand in brackets within another."""
    check_filter("metrics.latency < 5 and (name ~ 'a' or name ~ ')')")
    for where in ("name ~ 'a') or (name ~ 'b'", "name = 'a", "(name = 'a'"):
        with pytest.raises(ConfigError):
            check_filter(where)


def test_projects_devices_and_names_are_summed_up(full: Store) -> None:
    """What the first page of a list needs."""
    assert [(project.name, project.runs) for project in full.projects()] == [("even", 15), ("odd", 15)]
    assert [(device.name, device.runs, device.failed) for device in full.devices()] == [("Pi 5", 6, 0)]
    assert full.value_names("even").metrics == ("latency",)
    assert full.value_names().metrics == ("late", "latency", "odd", "top-1 %")
    assert full.value_names("odd").params == ("batch", "precision")
    assert full.value_names("nobody") == full.value_names("odd", newest=0)


def test_lineage_follows_the_contents(store: Store, tmp_path: Path) -> None:
    """What was compiled from what, profiled as what, and which run is part of which."""
    source, compiled = tmp_path / "source.onnx", tmp_path / "compiled.onnx"
    source.write_bytes(b"source")
    compiled.write_bytes(b"compiled")
    client = Client("p", store)
    with client.start_run(RunType.COMPILE, "compile") as compile_run:
        compile_run.log_artifact(source, name="input")
        compile_run.log_artifact(compiled, name="path")
        with client.start_run(RunType.CUSTOM, "part") as part:
            pass
    with client.start_run(RunType.PROFILE, "profile") as profile_run:
        profile_run.log_artifact(compiled, name="input")
    client.close()
    lineage = store.lineage(compile_run.id)
    assert lineage.made_from == ()
    assert [run.name for run in lineage.used_by] == ["profile"]
    assert [run.name for run in lineage.parts] == ["part"]
    assert [run.name for run in store.lineage(profile_run.id).made_from] == ["compile"]
    parent = store.lineage(part.id).parent
    assert parent is not None
    assert parent.name == "compile"


def test_random_filters_agree_with_plain_python(full: Store) -> None:
    """The same question asked of the index and of the runs themselves."""
    runs = full.runs(archived=None)
    latency = {run.id: next(one.value for one in run.metrics if one.name == "latency") for run in runs}
    chance = random.Random(7)  # noqa: S311 - a test
    for _ in range(60):
        limit, batch = chance.randint(0, 31), chance.randint(0, 4)
        where = f"metrics.latency < {limit} and params.batch != {batch} or project = 'odd' and not metrics.latency >= 9"
        expected = [
            run.name
            for run in runs
            if (latency[run.id] < limit and run.params["batch"].value != batch)
            or (run.project == "odd" and not latency[run.id] >= 9)
        ]
        assert names(full, where, archived=None) == expected


def test_runs_of_a_tag_come_all_at_once(full: Store) -> None:
    """Oldest first, archived ones too, with tags, last metrics and the parameters that are asked for."""
    found = full.tagged("stage", ["ci", "nothing"], params=["batch"])
    assert [run.name for run in found] == [f"r{number}" for number in range(10)]
    assert found[3].tags == {"stage": "ci"}
    assert set(found[3].params) == {"batch"}
    assert not full.tagged("stage", ["ci"])[3].params
    assert found[3].metric("latency") == full.find("name = 'r3'").runs[0].metric("latency")
    assert "r29" in [run.name for run in full.tagged("stage", ["dev"])]
    assert [run.name for run in full.for_projects(["odd"]).tagged("stage", ["ci"])] == ["r1", "r3", "r5", "r7", "r9"]
    assert full.tagged("stage", []) == []
    full.check()


@pytest.mark.parametrize("text", ["1", '"x"', '{"a": [1.5, null, NaN]}', "-Infinity", " 7 ", "[1,\n2]  ", '""', "true"])
def test_values_are_what_json_says(text: str) -> None:
    """Read by the scanner alone where nothing stands around them, and by the whole decoder elsewhere."""
    assert repr(_find._value_of(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", " ", "1 2", "{", "x", '"'])
def test_values_that_are_no_json_are_refused(text: str) -> None:
    """As json.loads does."""
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated"):
        _find._value_of(text)
