"""One store, many threads: on SQLite, and on a real PostgreSQL that may restart."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.postgres import Cluster

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Client, Redactor, RunStatus, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster().start()
    yield cluster
    cluster.end()


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def any_store(request: pytest.FixtureRequest, home: Path) -> Iterator[Store]:
    address = None
    if request.param == "PostgreSQL":
        address = request.getfixturevalue("cluster").database(f"d{os.urandom(4).hex()}")
    with Store(home, database=address) as store:
        yield store


def log(store: Store, project: str, number: int) -> str:
    client = Client(project, store, Redactor({}))
    with client.start_run("EVAL", f"run {number}") as run:
        run.log_param("p", number)
        run.log_param("odd", 'quote " and % and ? and \x00')
        run.log_tag("t", "a\0b")
        run.log_metric("m", number / 3)
        run.log_metric("m", float("inf"))
        run.log_metric("nan", float("nan"))
    client.close()
    return run.id


def test_many_threads_write_and_read_at_once(any_store: Store) -> None:
    """Nothing waits for ever, nothing is lost."""
    with ThreadPoolExecutor(16) as threads:
        writing = [threads.submit(log, any_store, "p", number) for number in range(40)]
        reading = [threads.submit(any_store.find, "metrics.m > 0", order="-metrics.m") for _ in range(40)]
        ids = {task.result() for task in writing}
        assert all(len(task.result().runs) <= 40 for task in reading)
    assert {run.id for run in any_store.runs()} == ids
    assert any_store.count("status = 'FINISHED' and tags.t = 'a\\x00b'") == 40


def test_a_reader_does_not_wait_for_a_writer(any_store: Store) -> None:
    """While a transaction is open, another thread reads what was there before it."""
    run_id = log(any_store, "p", 1)
    with any_store._transaction() as connection:
        connection.execute("UPDATE run SET name = 'changed' WHERE id = ?", (run_id,))
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.append(any_store.run(run_id).name))
        reader.start()
        reader.join(10)
        assert seen == ["run 1"]
    assert any_store.run(run_id).name == "changed"


def test_words_mean_the_same_in_both_databases(any_store: Store) -> None:
    """Filters, orders, pages, lineage and removal."""
    ids = [log(any_store, "p", number) for number in range(5)]
    assert [run.id for run in any_store.find("params.p >= 3").runs] == ids[:2:-1]
    assert any_store.run(ids[0]).params["odd"].value == 'quote " and % and ? and \x00'
    page = any_store.find(order="-metrics.m", limit=2)
    rest = any_store.find(order="-metrics.m", limit=3, after=page.after)
    assert {run.id for run in (*page.runs, *rest.runs)} == set(ids)
    assert any_store.find("name ~ '4'").runs[0].id == ids[4]
    for run_id, text in zip(ids, ("12:30", "1e999", "-1.5e3", "9" * 400, "-"), strict=True):
        any_store.label(run_id, "size", text)
    assert [run.id for run in any_store.find("tags.size < 0").runs] == [ids[2]]
    assert any_store.count("tags.size = '12:30'") == 1
    assert len(any_store.find(order="params.odd").runs) == len(any_store.find(order="-tags.size").runs) == 5
    any_store.label(ids[0], "stage", "ci")
    any_store.archive(ids[1])
    any_store.delete(ids[2])
    assert any_store.count("tags.stage = 'ci'") == 1
    assert any_store.count() == 3
    assert any_store.lineage(ids[0]).made_from == ()
    assert any_store.reindex() == 4
    assert any_store.run(ids[1]).archived


def test_a_view_of_some_projects_shows_nothing_else(any_store: Store) -> None:
    """Whatever the question is."""
    ours, theirs = log(any_store, "ours", 1), log(any_store, "theirs", 2)
    view = any_store.for_projects(["ours"])
    assert [run.id for run in view.runs()] == [ours]
    assert view.count("project = 'theirs' or project = 'ours'") == 1
    assert [summary.name for summary in view.projects()] == ["ours"]
    assert view.run(ours).id == ours
    with pytest.raises(TrackingError, match="is no run"):
        view.run(theirs)
    with pytest.raises(TrackingError, match="is no run"):
        view.delete(theirs)
    assert view.value_names("theirs").params == ()
    assert view.value_names().params == ("odd", "p")
    assert any_store.for_projects([]).runs() == []
    assert len(any_store.for_projects(["ours", "theirs"]).runs()) == 2


def test_a_restarted_database_is_found_again(home: Path) -> None:
    """The first question after it fails or not; the next one is answered."""
    cluster = Cluster().start()
    try:
        with Store(home, database=cluster.database("hub")) as store:
            log(store, "p", 1)
            cluster.stop()
            with pytest.raises(TrackingError, match="cannot be used"):
                store.count()
            cluster.start()
            assert store.count() == 1
            log(store, "p", 2)
            assert store.count() == 2
    finally:
        cluster.end()


def test_a_new_database_is_filled_from_the_run_folders(home: Path, cluster: Cluster) -> None:
    """Moving from SQLite to PostgreSQL is opening the home with the other address."""
    with Store(home) as store:
        run_id = log(store, "p", 1)
    with Store(home, database=cluster.database("moved")) as store:
        assert store.run(run_id).status is RunStatus.FINISHED


def test_a_closed_store_says_so(home: Path) -> None:
    """Also through a view of it."""
    with Store(home) as store:
        view = store.for_projects(["p"])
    with pytest.raises(TrackingError, match="is not open"):
        view.count()


def test_an_address_of_another_kind_is_refused(home: Path) -> None:
    """Without showing the password."""
    with pytest.raises(ConfigError, match="starts with postgresql://") as caught:
        Store(home, database="mysql://user:secret@host/db")
    assert "secret" not in str(caught.value).partition("@")[2]
