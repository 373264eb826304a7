"""What is measured by running a file's float graph over samples: ranges it does not hold, and what layers read."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from embedl_deploy.dialect._fitting import rows_wanted
from embedl_deploy.dialect._model import QdqModel, attribute, copy_model
from embedl_deploy.errors import InputError, ModelFileError, first_line
from embedl_kernels import Window, sample_patches, sample_rows, window_pads

Sample = Any


def to_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a tensor; files need no torch
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def by_input(sample: Sample, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a sample as arrays by the names of a model's inputs.

    Args:
        sample: A tensor or array, a tuple of them in the order of the inputs, or any of them by name.
        names: The inputs.
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


def float_model(qdq: QdqModel) -> onnx.ModelProto:
    model = copy_model(qdq.model)
    model.graph.initializer.extend(numpy_helper.from_array(weight.real, name) for name, weight in qdq.weights.items())
    return model


def observe(qdq: QdqModel, samples: Iterable[Sample]) -> None:
    """Add the range of every float tensor whose range is not known."""
    model = float_model(qdq)
    made = [name for node in model.graph.node for name in node.output if name]
    made += [value.name for value in model.graph.output]
    names = [name for name in dict.fromkeys(made) if name not in qdq.ranges]
    session = _session_of_all(with_outputs(model, names))
    inputs = [value.name for value in session.get_inputs()]
    found: dict[str, tuple[float, float]] = {}
    count = 0
    for sample in samples:
        count += 1
        feed = by_input(sample, inputs)
        # Asked for no name, ONNX Runtime gives every output.
        for name, values in zip(names, run(session, names, feed) if names else (), strict=True):
            if np.issubdtype(values.dtype, np.floating) and values.size:
                low, high = float(values.min()), float(values.max())
                if not np.isfinite([low, high]).all():
                    raise InputError(f"Values of {name!r} are not finite for a sample; look at the data.")
                before = found.get(name, (low, high))
                found[name] = min(low, before[0]), max(high, before[1])
    if not count:
        raise InputError("There are no samples to observe ranges on; give at least one.")
    qdq.ranges |= found


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    copy = copy_model(model)
    known = {value.name for value in (*copy.graph.output, *copy.graph.input)}
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in known)
    return copy


def make_session(model: onnx.ModelProto, *, integer_kernels: bool = True, **settings: Any) -> ort.InferenceSession:
    """Open a quiet session of one thread on the CPU; settings are session options."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not integer_kernels:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _session_of_all(model: onnx.ModelProto) -> ort.InferenceSession:
    """Open a session whose tensors are asked for; without optimizing the graph where that fails.

    ONNX Runtime's optimizer stumbles over names that it gave itself, in files that went through it before.

    Raises:
        ModelFileError: ONNX Runtime does not take the model at all.
    """
    try:
        return make_session(model)
    except Exception:  # noqa: BLE001 (onnxruntime raises classes of its own, made in C++)
        try:
            return make_session(model, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        except Exception as exc:
            raise ModelFileError(f"ONNX Runtime does not take the model: {first_line(exc)}") from exc


def run(session: ort.InferenceSession, names: list[str] | None, sample: Mapping[str, np.ndarray]) -> list[np.ndarray]:
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


Rows = dict[str, np.ndarray]
# Samples that are run.
_SAMPLES = 16


def gather_rows(qdq: QdqModel, nodes: Sequence[onnx.NodeProto], samples: Iterable[object] | None) -> Rows:
    """Return rows of the inputs of layers by node name, (groups, rows, K), rounded as the layer reads them."""
    if samples is None or not nodes:
        return {}
    names = list(dict.fromkeys(node.input[0] for node in nodes))
    session = _session_of_all(with_outputs(float_model(qdq), names))
    inputs = [value.name for value in session.get_inputs()]
    given = [name for name in names if name in inputs]
    asked = [name for name in names if name not in inputs]
    random = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {}
    feeds = [by_input(sample, inputs) for sample in itertools.islice(samples, _SAMPLES)]
    for feed in feeds:
        values = {name: feed[name] for name in given}
        values |= dict(zip(asked, run(session, asked, feed), strict=True)) if asked else {}
        for node in nodes:
            found.setdefault(node.name, []).append(_rows(qdq, node, values[node.input[0]], len(feeds), random))
    return {name: np.concatenate(pieces, axis=1) for name, pieces in found.items()}


def _rows(
    qdq: QdqModel, node: onnx.NodeProto, value: np.ndarray, share: int, random: np.random.Generator
) -> np.ndarray:
    weight = qdq.weights[node.input[1]].values
    params = qdq.params[qdq.edges[node.name, 0]]
    length = max(1, int(np.prod(weight.shape[1:])) if node.op_type == "Conv" else weight.shape[-1])
    count = rows_wanted(length, share)
    if node.op_type == "Conv":
        drawn = sample_patches(value, window_of(node, value.shape[2:], weight.shape[2:]), count, random)
    else:
        is_turned = node.op_type == "Gemm" and attribute(node, "transA", 0)
        drawn = sample_rows(np.moveaxis(value, 0, -1) if is_turned else value, count, random)
    return params.dequantize(params.quantize(drawn))


def window_of(node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return how a window operator walks over an input of some size."""
    rank = len(kernel)
    strides = list(attribute(node, "strides") or [1] * rank)
    dilations = list(attribute(node, "dilations") or [1] * rank)
    auto_pad = attribute(node, "auto_pad", b"NOTSET")
    auto_pad = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    pads = window_pads(auto_pad, attribute(node, "pads") or [], sizes, kernel, strides, dilations)
    return Window(tuple(kernel), strides, pads, dilations, int(attribute(node, "group", 1)))
