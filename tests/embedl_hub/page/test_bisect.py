"""A bisection on the page: its tree, what cannot be switched, and texts that are no markup."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.testclient import TestClient

from embedl_hub import page
from embedl_hub.bisection import BISECTION, Answer, BisectionResult, Cause, Decision, Found, Switch, read_bisection
from embedl_hub.page._bisect import tree_of
from embedl_hub.tracking import Client, Store

_EVIL = "<script>alert(1)</script>"


def _decisions() -> list[Decision]:
    none, whole = frozenset[str](), frozenset({"model", "threads", "level"})
    return [
        Decision("differ", none, whole, whole, Answer.BAD, "they differ", 1.5, 1.4, 1.6, effect=1.5, sittings=4),
        Decision("trial", none, frozenset({"threads"}), whole, Answer.GOOD, "as GOOD", 1.0, 0.9, 1.1, sittings=4),
        Decision("trial", none, frozenset({"model", "level"}), whole, Answer.BAD, "as BAD", 1.5, 1.4, 1.6, sittings=4),
        Decision("trial", none, frozenset({"model"}), whole, Answer.BAD, "as BAD", 1.5, 1.4, 1.6, sittings=4),
        Decision("trial", none, frozenset({"model: w1"}), frozenset({"model: w1", "model: w2"}), Answer.OPEN, _EVIL),
    ]  # fmt: skip


def test_a_trial_stands_inside_the_question_that_holds_it() -> None:
    """Each decision hangs on the last one, answered with BAD, whose switches hold its own; no two boxes overlap."""
    nodes = tree_of(_decisions())

    assert [node.parent for node in nodes] == [None, 0, 0, 2, 3]
    assert len({(node.x, node.y) for node in nodes}) == len(nodes)
    assert nodes[0].numbers == "× 1.500 (1.400 to 1.600)"


def _kept(store: Store, folder: Path) -> str:
    switches = (Switch("threads", "4", "1"), Switch("device", "pi4", "pi5", "fact", "another board cannot be switched"))
    found = Found((Cause((Switch("model: w1", "weights: 1", _EVIL, "part"),)),))
    with Client("bisected", store).start_run("CUSTOM", "bisect latency_median", component=BISECTION) as run:
        result = BisectionResult(run.id, "g", "b", "latency_median", "this machine", 0.01, 0.02, switches, found,
                                 tuple(_decisions()))  # fmt: skip
        path = folder / "bisection.json"
        path.write_text(json.dumps(result.as_dict()), encoding="utf-8")
        run.log_artifact(path, name="bisection")
    return run.id


def test_the_page_has_the_tree_the_refusals_and_the_bound(tmp_path: Path) -> None:
    """As HTML, as JSON and as one file; text of a record stays text."""
    with Store(tmp_path / "home") as store:
        run_id = _kept(store, tmp_path)
        visitor = TestClient(page.app(lambda: store))
        html = visitor.get(f"/bisections/{run_id}").text
        data = visitor.get(f"/bisections/{run_id}.json").json()
        exported = visitor.get(f"/bisections/{run_id}/export").text
        listed = visitor.get("/bisections").text
        missing = visitor.get("/bisections/nothing").status_code

    assert html.count("<rect") == 5
    assert "no: another board cannot be switched" in html
    assert "alpha / (k (k + 1))" in html
    assert _EVIL not in html
    assert _EVIL not in exported
    assert exported.count("<rect") == 5
    assert data["causes"][0]["switches"][0]["name"] == "model: w1"
    assert run_id in listed
    assert missing == 404


def test_what_is_undecided_stands_apart_from_the_cause(tmp_path: Path) -> None:
    """The page and the sentence name it, and not among the causes; the question about it is a box of its own."""
    none, whole = frozenset[str](), frozenset({"model", "threads"})
    decisions = (
        Decision("differ", none, whole, whole, Answer.BAD, "they differ", 1.5, 1.4, 1.6, level=0.005),
        Decision("needed", none, frozenset({"model"}), whole, Answer.OPEN, "neither is shown in 80 sittings"),
    )
    found = Found((Cause((Switch("model", "a", "b"),), undecided=(Switch("threads", "4", "1"),)),))
    with Store(tmp_path / "home") as store:
        with Client("bisected", store).start_run("CUSTOM", "bisect", component=BISECTION) as run:
            result = BisectionResult(run.id, "g", "b", "latency_median", "here", 0.01, 0.02, (), found, decisions)
            (tmp_path / "bisection.json").write_text(json.dumps(result.as_dict()), encoding="utf-8")
            run.log_artifact(tmp_path / "bisection.json", name="bisection")
        html = TestClient(page.app(lambda: store)).get(f"/bisections/{run.id}").text
        read = read_bisection(store, run.id)

    assert read.sentence() == result.sentence()
    assert [each.name for each in read.undecided] == ["threads"]
    assert ": model: a -> b;" in result.sentence()
    assert "undecided: threads (neither shown to matter nor to be harmless" in result.sentence()
    assert "Undecided: threads." in html
    assert "without threads" in html


def test_one_that_ended_without_an_answer_shows_its_plan(tmp_path: Path) -> None:
    """A bisection without a result says so and does not claim to go on."""
    with Store(tmp_path / "home") as store:
        with Client("bisected", store).start_run("CUSTOM", "bisect", component=BISECTION) as run:
            result = BisectionResult(run.id, "g", "b", "latency_median", "here", 0.01, 0.02, (), Found(), ())
            (tmp_path / "plan.json").write_text(json.dumps(result.as_dict()), encoding="utf-8")
            run.log_artifact(tmp_path / "plan.json", name="plan")
        html = TestClient(page.app(lambda: store)).get(f"/bisections/{run.id}").text

    assert "It ended before it had an answer" in html


def test_the_list_names_the_ends_and_the_answer(tmp_path: Path) -> None:
    """A long answer is folded in the list and at the top of the page, where all of it can be unfolded."""
    switches = tuple(
        Switch(f"model: layer {number}", "Conv, Relu, Add, Mul, Sub", "Conv", "part") for number in range(9)
    )
    differ = Decision(
        "differ", frozenset(), frozenset({"model"}), frozenset({"model"}), Answer.BAD, _EVIL, 1.5, 1.4, 1.6
    )
    with Store(tmp_path / "home") as store:
        client = Client("bisected", store)
        with client.start_run("PROFILE", f"good {_EVIL}") as good:
            pass
        with client.start_run("CUSTOM", "bisect", component=BISECTION) as run:
            run.log_batch({"good": good.id, "bad": "gone"})
            result = BisectionResult(run.id, good.id, "gone", "latency_median", "here", 0.01, 0.02, (),
                                     Found((Cause(switches),)), (differ,))  # fmt: skip
            (tmp_path / "bisection.json").write_text(json.dumps(result.as_dict()), encoding="utf-8")
            run.log_artifact(tmp_path / "bisection.json", name="bisection")
        with client.start_run("CUSTOM", "empty", component=BISECTION) as other:
            pass
        visitor = TestClient(page.app(lambda: store))
        listed, rows = visitor.get("/bisections").text, visitor.get("/bisections.json").json()["bisections"]
        html = visitor.get(f"/bisections/{run.id}").text

    assert [row["id"] for row in rows] == [other.id, run.id]
    assert "has kept nothing yet" in rows[0]["answer"]
    assert rows[1]["good"] == [good.id, f"good {_EVIL}"]
    assert rows[1]["bad"] == ["gone", ""]
    assert "layer 2 (Conv, Relu, Add and 2 more -&gt; Conv) and 6 more" in listed
    assert f'href="/runs/{good.id}"' in listed
    assert _EVIL not in listed
    assert "All 9 parts that explain it" in html
    assert "model: layer 8 (Conv, Relu, Add, Mul, Sub -&gt; Conv)" in html
    assert "layer 8" not in html.partition("<details")[0]
