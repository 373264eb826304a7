"""Models in turns with LiteRT: here and on a board; a board with Google's benchmark alone says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.profile import ProfileError, TFLitePairedProfiler
from embedl_hub.core.toolchain import paired_profiler


@pytest.mark.parametrize("where", ["here", "board"])
def test_float_and_int8_in_turns(
    compiled: dict[str, TFLiteCompiledModel],
    where: str,
    here: Device,
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tmp_path: Path,
) -> None:
    """Ratios with intervals, and a ranking of all."""
    device = here if where == "here" else make_board(board)
    with HubContext("pair", [device], home=tmp_path / "home") as ctx:
        result = TFLitePairedProfiler().run(ctx, [compiled["float"], compiled["int8"], compiled["float"]], samples=30)
    assert len(result.models) == 3
    assert sorted(each.number for each in result.ranking) == [0, 1, 2]
    for ratio in result.ratios[1:]:
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.low <= ratio.value <= ratio.high
    assert paired_profiler("tflite") is TFLitePairedProfiler


def test_a_benchmark_alone_cannot_take_turns(
    compiled: dict[str, TFLiteCompiledModel], make_board: Callable[..., Device], board: SSHCommandRunner, tmp_path: Path
) -> None:
    """The message has the other ways."""
    device = make_board(board, benchmark_model_path="/opt/benchmark_model")
    with (
        HubContext("pair", [device], home=tmp_path / "home") as ctx,
        pytest.raises(ProfileError, match=r"cannot take turns.*embedl-hub gate"),
    ):
        TFLitePairedProfiler().run(ctx, [compiled["float"], compiled["int8"]])
