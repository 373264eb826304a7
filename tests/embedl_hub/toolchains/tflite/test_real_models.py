"""Trained networks from the registry: converted as a whole, float and INT8, and held against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.real_models import TFLITE_MODELS, samples
from support.tflite import SHARED_CACHE

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiler
from embedl_hub.core.invoke import TFLiteInvoker
from embedl_hub.models.onnx_file import fix_input_shape, inputs_of, read_model


@pytest.mark.slow
@pytest.mark.parametrize("name", TFLITE_MODELS)
def test_a_real_network_keeps_its_answers(name: str, cache: Path, tmp_path: Path) -> None:
    """Within a thousandth of the range of each output; the invoker gives the source's shapes back."""
    real = TFLITE_MODELS[name]
    source = real.fetch(SHARED_CACHE / "models")
    model = read_model(source)
    if real.input_shape is not None:
        fix_input_shape(model, real.input_shape)
    data = {
        tensor.name: samples(tensor.name, tuple(map(int, tensor.shape)), tensor.dtype, 2)  # type: ignore[arg-type]
        for tensor in inputs_of(model)
    }
    with HubContext("real", home=tmp_path / "home") as ctx:
        made = TFLiteCompiler().run(ctx, source, input_shape=real.input_shape)
        store = ctx.client.store
        assert store is not None
        error = store.run(str(made.path.run_id)).metric("conversion_error")
        assert error is not None
        assert error.value < 1e-3
        answer = TFLiteInvoker().run(ctx, made, data)
        (output,) = answer.output.values()
        assert list(output.shape[1:]) == made.tensors["outputs"][0]["shape"][1:]
        assert answer.compare(_reference(source, data)).cosine > 0.9999


def _reference(source: Path, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime answers, sample by sample."""
    session = onnxruntime.InferenceSession(source)
    names = [value.name for value in session.get_outputs()]
    count = len(next(iter(data.values())))
    parts = [session.run(None, {key: array[at : at + 1] for key, array in data.items()}) for at in range(count)]
    return {name: np.concatenate([part[index] for part in parts]) for index, name in enumerate(names)}
