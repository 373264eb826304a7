"""The ranking of a sweep: places with ties, what comes last and why, and the front."""

from __future__ import annotations

from embedl_device.statistics import Verdict
from embedl_hub.fleet import CellState, Matrix, MatrixCell, RankedOption, Ranking
from embedl_hub.page._ranking import Place, standings_of
from embedl_hub.page._sweeps import _shades


def _cell(option: str, metrics: dict[str, float], state: CellState = CellState.DONE, reason: str = "") -> MatrixCell:
    return MatrixCell("net", option, "pi", state, reason or None, Verdict.STABLE, {}, metrics)


def _ranked(
    *cells: MatrixCell, metric: str = "latency_median", least: float | None = None, spread: float | None = 0.01,
    paired: tuple[Ranking, ...] = (),
) -> list[Place]:  # fmt: skip
    by_key = {(cell.model, cell.option, cell.target): cell for cell in cells}
    matrix = Matrix("sweep", ("net",), tuple(cell.option for cell in cells), ("pi",), by_key, {})

    def ends_of(cell: MatrixCell) -> tuple[float | None, float | None]:
        value = cell.metrics[metric]
        return (None, None) if spread is None else (value * (1 - spread), value * (1 + spread))

    (standings,) = standings_of(
        matrix, metric, quality="accuracy", least=least, front=frozenset({("net", "a", "pi")}), ends_of=ends_of,
        paired=paired,
    )  # fmt: skip
    return list(standings.places)


def test_what_intervals_do_not_tell_apart_has_one_place() -> None:
    """And the one after them has the place that it would have anyway."""
    cells = [_cell(name, {"latency_median": value}) for name, value in (("c", 2.0), ("b", 1.005), ("a", 1.0))]
    places = _ranked(*cells)

    assert [(place.cell.option, place.number, place.is_tied) for place in places] == [
        ("a", 1, True), ("b", 1, True), ("c", 3, False),
    ]  # fmt: skip
    assert [place.told_by for place in places] == ["", "", "intervals"]
    assert places[2].to_best == 2.0
    assert [place.on_front for place in places] == [True, False, False]


def test_a_time_without_an_interval_tells_nothing_and_a_size_does() -> None:
    times = [_cell(name, {"latency_median": value}) for name, value in (("a", 1.0), ("b", 9.0))]
    sizes = [_cell(name, {"model_size_mb": value}) for name, value in (("a", 1.0), ("b", 9.0))]

    assert [place.number for place in _ranked(*times, spread=None)] == [1, 1]
    assert [place.told_by for place in _ranked(*sizes, metric="model_size_mb", spread=None)] == ["", "value"]


def test_more_is_better_where_it_is() -> None:
    cells = [_cell(name, {"accuracy": value}) for name, value in (("a", 0.7), ("b", 0.9))]
    assert [place.cell.option for place in _ranked(*cells, metric="accuracy", spread=None)] == ["b", "a"]


def test_what_was_measured_in_turns_is_told_by_that() -> None:
    """Either way: a difference that intervals do not show, and none where they claim one."""
    close = [_cell(name, {"latency_median": value}) for name, value in (("a", 1.0), ("b", 1.005))]
    apart = [_cell(name, {"latency_median": value}) for name, value in (("a", 1.0), ("b", 1.5))]

    def turns(is_significant: bool) -> tuple[Ranking, ...]:
        options = (RankedOption("a", 1.0, 1.1, is_significant), RankedOption("b", 1.1, None, None))
        return (Ranking("net", "pi", options, "run"),)

    assert [place.told_by for place in _ranked(*close, paired=turns(is_significant=True))] == ["", "in turns"]
    assert [place.number for place in _ranked(*apart, paired=turns(is_significant=False))] == [1, 1]
    turned = [_cell(name, {"latency_median": value}) for name, value in (("b", 1.0), ("a", 1.5))]
    places = _ranked(*turned, paired=turns(is_significant=True))
    assert [place.number for place in places] == [1, 1]
    assert places[1].tied_in_turns


def test_a_color_tells_how_many_times_the_best() -> None:
    """The same in every row: a gap of a tenth is never as dark as one of a half, whatever else is in the row."""
    assert _shades([1.0, 1.1, 1.5, 2.0, 9.0], [1.0, 9.0], is_more=False) == [0, 1, 7, 7, 8]
    assert _shades([1.0, 1.1], [1.0, 1.1], is_more=False) == [0, 1]
    assert _shades([0.9, 0.8, None], [0.9, 0.8], is_more=True) == [0, 1, None]
    assert _shades([-1.0, 0.0, 1.0], [-1.0, 1.0], is_more=False) == [0, 4, 8]
    assert _shades([None], [None], is_more=False) == [None]


def test_what_cannot_be_used_comes_last_with_the_reason() -> None:
    """However fast it is: ruined answers, too little accuracy, no number, a failure."""
    cells = [
        _cell("failed", {}, CellState.FAILED, "no memory"),
        _cell("ruined", {"latency_median": 0.1, "accuracy": 0.9, "cosine": 0.1}),
        _cell("poor", {"latency_median": 0.2, "accuracy": 0.5}),
        _cell("unknown", {"latency_median": 0.2}),
        _cell("slow", {"latency_median": 3.0, "accuracy": 0.8}),
        _cell("good", {"latency_median": 1.0, "accuracy": 0.75, "cosine": 0.99}),
        _cell("waiting", {}, CellState.WAITING),
    ]
    places = _ranked(*cells, least=0.7)

    assert [place.cell.option for place in places[:2]] == ["good", "slow"]
    why = {place.cell.option: place.why_not for place in places[2:]}
    assert why == {
        "poor": "accuracy 0.5 is below 0.7",
        "ruined": "ruined: cosine 0.100 to the answers in float",
        "unknown": "has no accuracy",
        "waiting": "waiting",
        "failed": "failed: no memory",
    }
    assert [place.number for place in places[2:]] == [None] * 5
    assert places[-1].cell.option == "failed"
