"""Ranges that a file does not tell, measured by running its float graph over samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from embedl_deploy.dialect._model import Parts
from embedl_deploy.errors import InputError

Sample = Any


def to_array(value: Any) -> np.ndarray:
    """Return a tensor or array-like as an array."""
    if hasattr(value, "detach"):  # a tensor; files need no torch
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def by_input(sample: Sample, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a sample as arrays by the names of a model's inputs.

    Args:
        sample: A tensor or array, a tuple of them in the order of the inputs, or any of them by name.
        names: The inputs.

    Raises:
        InputError: It has another number of inputs, or holds a number that is not finite.
    """
    if not isinstance(sample, Mapping):
        values = sample if isinstance(sample, list | tuple) else (sample,)
        if len(values) != len(names):
            raise InputError(f"A sample has {len(values)} inputs; the file wants {len(names)}: {list(names)}.")
        sample = dict(zip(names, values, strict=True))
    feed = {str(name): to_array(value) for name, value in sample.items()}
    for name, value in feed.items():
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise InputError(f"A sample holds NaN or infinity in {name!r}; look at the data.")
    return feed


def float_model(parts: Parts) -> onnx.ModelProto:
    """Return the graph with its weights in float and no Q/DQ."""
    model = onnx.ModelProto()
    model.CopyFrom(parts.model)
    model.graph.initializer.extend(numpy_helper.from_array(weight.real, name) for name, weight in parts.weights.items())
    return model


def observe(parts: Parts, samples: Iterable[Sample]) -> None:
    """Add the range of every float tensor whose range is not known.

    Raises:
        InputError: There is no sample, or one does not fit the model or is not finite.
    """
    model = float_model(parts)
    session, names = _session(model, parts)
    inputs = [value.name for value in session.get_inputs()]
    count = 0
    for sample in samples:
        count += 1
        feed = by_input(sample, inputs)
        # Asked for no name, ONNX Runtime gives every output.
        for name, values in zip(names, run(session, names, feed) if names else (), strict=True):
            if np.issubdtype(values.dtype, np.floating) and values.size:
                _widen(parts, name, values, first=count == 1)
    if not count:
        raise InputError("There are no samples to observe ranges on; give at least one.")


def _widen(parts: Parts, name: str, values: np.ndarray, *, first: bool) -> None:
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise InputError(f"Values of {name!r} are not finite for a sample; look at the data.")
    old = (low, high) if first else parts.ranges[name]
    parts.ranges[name] = (min(low, old[0]), max(high, old[1]))


def _session(model: onnx.ModelProto, parts: Parts) -> tuple[ort.InferenceSession, list[str]]:
    known = set(parts.ranges) | {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in known]
    names += [value.name for value in model.graph.output if value.name not in parts.ranges]
    for name in names:
        if name not in known:
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    return make_session(model), names


def make_session(model: onnx.ModelProto, **settings: Any) -> ort.InferenceSession:
    """Open a quiet session of one thread on the CPU; settings are session options."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, names: list[str] | None, sample: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a session.

    Raises:
        InputError: The sample does not fit.
    """
    wanted = {value.name for value in session.get_inputs()}
    if set(sample) != wanted:
        raise InputError(f"A sample has the inputs {sorted(sample)}; the model wants {sorted(wanted)}.")
    try:
        return list(session.run(names, dict(sample)))
    except Exception as exc:  # onnxruntime raises classes of its own, made in C++
        wanted_shapes = {value.name: value.shape for value in session.get_inputs()}
        given = {name: list(value.shape) for name, value in sample.items()}
        reason = " ".join(str(exc).split())[:300]
        raise InputError(
            f"A sample does not fit the model: it has the shapes {given}, the model takes {wanted_shapes}. {reason}"
        ) from exc
