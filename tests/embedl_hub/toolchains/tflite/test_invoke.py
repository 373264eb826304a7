"""Invoking: the user's arrays, names and layouts go in and come out, here and on a board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.tflite import picture_net, pictures

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.invoke import InvokeError, TFLiteInvoker


def _expected(data: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(picture_net().SerializeToString())
    parts: list[Any] = [session.run(["y", "map"], {"x:0": one[None]}) for one in data]
    return {name: np.concatenate([part[at] for part in parts]) for at, name in enumerate(("y", "map"))}


@pytest.mark.parametrize("where", ["here", "board"])
def test_arrays_keep_their_names_and_layouts(
    compiled: dict[str, TFLiteCompiledModel],
    where: str,
    here: Device,
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tmp_path: Path,
) -> None:
    """Three pictures through a model for one, as ONNX Runtime answers them."""
    device = here if where == "here" else make_board(board)
    data = pictures(3, seed=5)
    with HubContext("invoke", [device], home=tmp_path / "home") as ctx:
        result = TFLiteInvoker().run(ctx, compiled["float"], {"x:0": data})
    for name, wanted in _expected(data).items():
        np.testing.assert_allclose(result.output[name], wanted, atol=1e-5, rtol=0)
    assert result.output_file.file_name == "output.npz"


@pytest.mark.parametrize("kind", ["int8", "int8 ends"])
def test_int8_answers_in_the_users_numbers(
    compiled: dict[str, TFLiteCompiledModel], kind: str, here: Device, tmp_path: Path
) -> None:
    """Whatever the model's ends are, floats go in and come out."""
    data = pictures(1, seed=5)
    with HubContext("invoke", [here], home=tmp_path / "home") as ctx:
        result = TFLiteInvoker().run(ctx, compiled[kind], {"x:0": data})
        assert {array.dtype.name for array in result.output.values()} == {"float32"}
        np.testing.assert_allclose(result.output["map"], _expected(data)["map"], atol=0.1, rtol=0)
        assert result.compare(_expected(data)).cosine > 0.99


def test_compiled_names_are_the_models_own_world(
    compiled: dict[str, TFLiteCompiledModel], here: Device, tmp_path: Path
) -> None:
    """Its names, its layout and its integers, untouched."""
    data = np.zeros((1, 8, 10, 3), np.int8)
    with HubContext("invoke", [here], home=tmp_path / "home") as ctx:
        name = compiled["int8 ends"].tensors["inputs"][0]["compiled_name"]
        result = TFLiteInvoker().run(ctx, compiled["int8 ends"], {name: data}, use_compiled_names=True)
    assert sorted(array.dtype.name for array in result.output.values()) == ["int8", "int8"]
    assert sorted(array.shape for array in result.output.values()) == [(1, 4), (1, 8, 10, 4)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"z": pictures(1)}, "'z' is no input.*'x:0'.*'x__0'"),
        (
            {"x:0": pictures(1).transpose(0, 2, 3, 1)},
            r"'x:0' has shape \[1, 8, 10, 3\], the model takes \[1, 3, 8, 10\]",
        ),
        ({"x:0": pictures(1).astype(np.float64)}, "'x:0' is float64, the model takes float32"),
        ({}, "'x:0' is missing"),
        ({"x:0": pictures(1), "x__0": pictures(1)}, "given twice"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    compiled: dict[str, TFLiteCompiledModel], here: Device, tmp_path: Path, data: dict[str, np.ndarray], words: str
) -> None:
    """In the user's names and layouts."""
    with HubContext("bad", [here], home=tmp_path / "home") as ctx, pytest.raises(InvokeError, match=words):
        TFLiteInvoker().run(ctx, compiled["float"], data)


def test_a_file_that_is_no_model_is_refused(here: Device, tmp_path: Path) -> None:
    """Cut short or of another kind."""
    path = tmp_path / "fake.tflite"
    for content in (b"", b"hello world, hello", b"\x1c\0\0\0TFL3" + b"\xff" * 40):
        path.write_bytes(content)
        with HubContext("bad", [here], home=tmp_path / "home") as ctx:
            with ctx.client.start_run("CUSTOM", "model") as run:
                model = TFLiteCompiledModel(path=run.log_artifact(path, name="path"))
            with pytest.raises(InvokeError, match="is not a TFLite model"):
                TFLiteInvoker().run(ctx, model, {})
