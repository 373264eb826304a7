"""Records that arrive in any pieces, some twice, are written down once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Receiver, Store
from embedl_hub.tracking._journal import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN = "0123456789abcdef"


def records_of(count: int) -> list[dict[str, Any]]:
    start = {"seq": 0, "kind": "start", "time_ms": 1, "format": 1, "project": "p", "type": "EVAL", "name": "x"}
    more = [
        {"seq": 2 * n + 1, "kind": "metric", "time_ms": n, "name": "m", "value": n, "step": n} for n in range(count)
    ]
    return [start, *more]


def _any(_: object) -> bool:
    return True


def send(receiver: Receiver, records: Sequence[dict[str, Any]], first: int, end: int) -> int:
    after = records[first - 1]["seq"] if first else -1
    return receiver.append(RUN, after, records[first:end], is_ours=_any, admit=_any).last


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 13), st.booleans()), max_size=20))
def test_any_pieces_give_the_same_run(pieces: list[tuple[int, int, bool]]) -> None:
    """Pieces overlap, repeat and come too early; the run in the end is the client's."""
    records = records_of(12)
    with tempfile.TemporaryDirectory() as home, Store(Path(home), recovers=False) as store:
        receiver = Receiver(store)
        here = 0
        for first, count, anew in [*pieces, (0, 13, True)]:
            end = min(first + count, len(records))
            last = send(receiver, records, first, end)
            if first <= here:
                here = max(here, end)
            assert last == (records[here - 1]["seq"] if here else -1)
            if anew:
                # Another process of the server goes on.
                receiver = Receiver(store)
        assert store.manifest(RUN).read_bytes() == b"".join(map(encode, records))
        assert [metric.step for metric in store.run(RUN).metrics] == list(range(12))


def test_an_index_that_failed_is_made_good(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has the records; sending again, or starting again, brings them into the index."""
    records = records_of(4)
    with Store(home, recovers=False) as store:
        receiver = Receiver(store)
        send(receiver, records, 0, 2)

        def fail(_: object) -> None:
            raise TrackingError("away")

        with monkeypatch.context() as broken:
            broken.setattr(store, "apply", fail)
            for end in (3, 4):
                with pytest.raises(TrackingError, match="away"):
                    send(receiver, records, 2, end)
        assert len(store.run(RUN).metrics) == 1
        assert send(receiver, records, 2, 4) == records[3]["seq"]
        assert len(store.run(RUN).metrics) == 3
        with monkeypatch.context() as broken:
            broken.setattr(store, "apply", fail)
            with pytest.raises(TrackingError, match="away"):
                send(receiver, records, 4, 5)
        assert receiver.catch_up(0) == 1
        assert len(store.run(RUN).metrics) == 4


def test_a_run_whose_start_failed_leaves_nothing(home: Path) -> None:
    """Neither a folder nor a row."""

    def refuse(_: object) -> bool:
        raise ValueError("not today")

    with Store(home, recovers=False) as store:
        with pytest.raises(ValueError, match="not today"):
            Receiver(store).append(RUN, -1, records_of(1), is_ours=_any, admit=refuse)
        assert not store.run_dir(RUN).exists()
        assert store.count() == 0


def test_a_torn_line_of_a_killed_server_is_passed_over(home: Path) -> None:
    """What it held is sent again."""
    records = records_of(3)
    with Store(home, recovers=False) as store:
        send(Receiver(store), records, 0, 2)
        with store.manifest(RUN).open("ab") as file:
            file.write(encode(records[2])[:20])
        assert send(Receiver(store), records, 2, 4) == records[3]["seq"]
        assert [metric.step for metric in store.run(RUN).metrics] == [0, 1, 2]


def test_a_deleted_run_stays_deleted(home: Path) -> None:
    """Whoever asks is told."""
    with Store(home, recovers=False) as store:
        receiver = Receiver(store)
        send(receiver, records_of(1), 0, 2)
        assert receiver.project_of(RUN) == "p"
        receiver.delete(RUN)
        assert receiver.is_deleted(RUN)
        assert receiver.project_of(RUN) is None
        assert store.count() == 0
