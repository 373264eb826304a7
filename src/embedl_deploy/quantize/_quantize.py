"""Place, calibrate, correct, and find float islands: one call."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph.clone import copy_deep
from embedl_deploy._graph.network import Example, Network
from embedl_deploy.backend import Backend, discover_backends, get_backend
from embedl_deploy.dialect import Dialect, dialects, get_dialect
from embedl_deploy.errors import InputError, QuantizationError, quoted_list
from embedl_deploy.quantize._calibrate import ForwardLoop, as_call, calibrate, describe, keeping_samples
from embedl_deploy.quantize._config import MaxDrop, ModulesToSkip, QuantConfig
from embedl_deploy.quantize._corrections import QuantState, Sample, apply_corrections, halves, run_sample
from embedl_deploy.quantize._fit import fit_weights, is_fitted
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._insert import insert_qdq, transformed_network, wire
from embedl_deploy.quantize._placement import Placement, Skip, plan_placement
from embedl_deploy.quantize._quantization import Correction, Corrections, Trial, put_quantization, quantization_of
from embedl_deploy.quantize._sensitivity import find_islands, sensitivity
from embedl_deploy.quantize._settle import settle_formats
from embedl_deploy.quantize._targeting import targeted
from embedl_deploy.quantize._training import freeze_weights as bake_weights
from embedl_deploy.target import TargetLike, choose_backend, choose_dialect, get_target

_SAMPLE = 32


def plan_qdq(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    *,
    backend: Backend | str | None = None,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Placement:
    """Say for every layer of a transformed model whether it will be quantized, and why; print it to read it.

    Raises:
        QuantizationError: The model was not transformed, the backend quantizes nothing, or a skip means no layer.
        BackendSelectionError: Neither backend nor target was given and no backend is active.
    """
    config = config or QuantConfig()
    dialect = _dialect(backend, target)
    backend = choose_backend(backend, target)
    if not backend.quantized_patterns:
        raise QuantizationError(
            f"the backend '{backend.name}' has no quantized patterns; transform and quantize with one that has: "
            f"{quoted_list(each.name for each in discover_backends() if each.quantized_patterns)}."
        )
    network = transformed_network(model)
    if args is not None or kwargs is not None:
        network.example = Example(tuple(args or ()), kwargs or {})
    patterns = (*backend.smooth_patterns, *backend.quantized_patterns)
    placement = plan_placement(network, patterns, Skip(network, config.skip))
    if not any(decision.pattern for decision in placement.layers):
        raise QuantizationError(
            f"no layer of this model is one the backend '{backend.name}' quantizes: it has {_operators(network)}. "
            "Call transform(model, args) with the patterns of the same backend first, or export the model in float."
        )
    placement = replace(
        placement, integer_kernels=backend.integer_kernels, symmetric=backend.symmetric_activations, dialect=dialect
    )
    return targeted(network, placement)


def _dialect(backend: Backend | str | None, target: TargetLike | None) -> str:
    """Return the name of the dialect that a target's files are written in; empty where nobody says."""
    if target is None:
        # A backend of one runtime: whoever names it means that runtime's files.
        name = get_backend(backend).name
        return name if name in (dialect.name for dialect in dialects()) else ""
    chosen = get_target(target).dialect
    return get_dialect(chosen).name if chosen else ""


def retarget(model: nn.Module, target: TargetLike | Dialect) -> fx.GraphModule:
    """Return a quantized model as it is in another target's file: where that rounds, in its number formats.

    One calibration serves every target. The model given is not changed.

    Args:
        model: What `quantize` made, trained since or not.
        target: A target or a dialect, itself or by name.

    Raises:
        QuantizationError: The model has no pairs, or it was placed before the dialect was known.
        TargetError: The target is unknown, or names no dialect.
    """
    dialect = target if isinstance(target, Dialect) else choose_dialect(None, target)
    assert dialect is not None
    placement = quantization_of(model).placement
    if dialect.name not in placement.variants:
        raise QuantizationError(
            f"this model was quantized before the dialect '{dialect.name}' was registered, so nobody watched what that "
            f"rounds; quantize it again. It can be exported for: {quoted_list(placement.variants)}."
        )
    assert isinstance(model, fx.GraphModule)
    result = copy_deep(model)
    same = placement.dialect == dialect.name
    if not same:
        wire(result, replace(placement, dialect=dialect.name))
    settle_formats(result)
    if not (same and is_fitted(result)):
        fit_weights(result)
    return result


def _operators(network: Network) -> str:
    """Name the operators of a network, a few of them."""
    names = []
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None:
            names.append(type(module).__name__)
        elif node.op in ("call_function", "call_method"):
            names.append(str(getattr(node.target, "__name__", node.target)).partition(".")[0])
    found = list(dict.fromkeys(names))
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def quantize(  # noqa: PLR0913 (the contract's five, and what a user may add to each stage)
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    forward_loop: ForwardLoop | Calibration | None = None,
    freeze_weights: bool = False,
    *,
    backend: Backend | str | None = None,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
    corrections: Corrections = (),
    goal: MaxDrop | None = None,
    progress: bool = False,
) -> fx.GraphModule:
    """Quantize a transformed model: place, calibrate, correct, and find float islands where a goal is given.

    How it was done is `quantization_of` the result.

    Args:
        model: What `transform` made; it is not changed, and the result has weights of its own.
        args: Example inputs, for rules that look at shapes; they are the only calibration batch when there is no other,
            and the report says so.
        config: How tensors are quantized and what is left out.
        forward_loop: The calibration data, as `calibrate` takes it.
        freeze_weights: Bake the quantized weights in; the result is then not made for training.
        backend: Whose placement, itself or by name; the active one when neither it nor `target` is given.
        target: What the model is for, instead of a backend.
        kwargs: Example keyword inputs.
        corrections: What may be tried against errors, where its symptom shows: one or several, themselves or by name;
            ``tuple(Correction)`` for all. Needs data that can be run twice.
        goal: What a metric must reach; layers are left float until it does.
        progress: Count batches on the error stream.

    Raises:
        QuantizationError: A choice cannot be met.
        CalibrationError: The data is missing or unusable.
        InputError: The model does not take the example inputs.
        UnknownBackendError: No installed backend has this name.
        BackendSelectionError: Neither backend nor target was given and no backend is active.
    """
    chosen = Correction.chosen(corrections)
    data = _data(args, kwargs, forward_loop, again=bool(chosen))
    if forward_loop is not None and not (args is None and kwargs is None):
        _try_example(model, args, kwargs)
    job = _Job(model, args, kwargs, config or QuantConfig(), choose_backend(backend, target), data, chosen,
               _dialect(backend, target))  # fmt: skip
    result = job.run(progress=progress)
    if goal is not None:
        result = job.search(result, goal)
    put_quantization(result, replace(quantization_of(result), example_only=forward_loop is None))
    if freeze_weights:
        bake_weights(result)
    return result


def _try_example(model: nn.Module, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Run the example inputs: rules look at their shapes, so those that do not fit would be answered wrongly."""
    try:
        run_sample(model, (tuple(args or ()), dict(kwargs or {})))
    except Exception as exc:
        raise InputError(
            f"the model does not take the example inputs ({describe((args or (), *(kwargs or {}).values()))}): {exc}; "
            "give args like one batch of the data."
        ) from exc


def _data(
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    given: ForwardLoop | Calibration | None,
    *,
    again: bool,
) -> ForwardLoop | Calibration:
    if given is None:
        if args is None and kwargs is None:
            raise QuantizationError("there is nothing to calibrate with; give forward_loop=batches, or args at least.")
        return [tuple(args)] if args is not None else [dict(kwargs or {})]
    if again and (isinstance(given, Calibration | Iterator)):
        what = "statistics of an earlier run" if isinstance(given, Calibration) else "an iterator, which runs only once"
        raise QuantizationError(
            f"corrections need the data again and forward_loop is {what}; give a list or a data loader."
        )
    return given


@dataclass(frozen=True)
class _Job:
    """One quantization, to be run with this or that layer left float."""

    model: nn.Module
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    config: QuantConfig
    backend: Backend
    data: ForwardLoop | Calibration
    corrections: Collection[Correction]
    dialect: str  # whose file the model rounds like; empty for the backend's patterns alone

    def run(self, *, progress: bool = False) -> fx.GraphModule:
        placement = plan_qdq(self.model, self.args, self.config, backend=self.backend, kwargs=self.kwargs)
        placement = replace(placement, dialect=self.dialect)
        result = insert_qdq(self.model, placement, self.config)
        with keeping_samples(result) as samples:
            calibration = calibrate(result, self.data, progress=progress)
        trials: list[Trial] = []
        if self.corrections and not isinstance(self.data, Calibration):
            sample, held = halves(self.sample(result))
            state = QuantState(result, self.data, sample, held, run_sample(self.model, held), calibration)
            trials = apply_corrections(state, self.corrections)
            calibration = state.calibration
        record = replace(quantization_of(result), calibration=calibration, trials=tuple(trials), samples=tuple(samples))
        put_quantization(result, record)
        fit_weights(result)
        return result

    def sample(self, model: fx.GraphModule) -> Sample:
        """Return one call to judge by: the first batches, or the example inputs when the user runs the data."""
        if isinstance(self.data, Calibration) or callable(self.data):
            return tuple(self.args or ()), dict(self.kwargs or {})
        return _first_batches(model, self.data)

    def search(self, first: fx.GraphModule, goal: MaxDrop) -> fx.GraphModule:
        args, kwargs = self.sample(first)
        costs = sensitivity(first, args, kwargs=kwargs)
        record = quantization_of(first)

        def build(islands: tuple[str, ...]) -> fx.GraphModule:
            skip = self.config.skip
            wider = ModulesToSkip((*skip.stub, *islands), (*skip.weight, *islands), (*skip.smooth, *islands))
            # Without corrections the statistics of the first run serve every placement: no data is run again.
            source = self.data if self.corrections else record.calibration
            return replace(self, config=replace(self.config, skip=wider), data=source).run()

        assert isinstance(self.model, fx.GraphModule)
        result, search = find_islands(build, first, self.model, [cost.place for cost in costs.layers], goal)
        found = quantization_of(result)
        placement = found.placement.with_islands(search.islands)
        samples = found.samples or record.samples
        put_quantization(result, replace(found, placement=placement, search=search, sensitivity=costs, samples=samples))
        return result


def _first_batches(model: fx.GraphModule, data: Iterable[Any]) -> Sample:
    """Return the first batches as one, where they can be put together; else the first one."""
    inputs = sum(node.op == "placeholder" for node in model.graph.nodes)
    calls = []
    count = 0
    for batch in data:
        calls.append(as_call(batch, inputs))
        leaves = [leaf for leaf in pytree.tree_leaves(calls[-1]) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        count += leaves[0].shape[0] if leaves else 1
        if count >= _SAMPLE:
            break
    plain = all(not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor) for args, kwargs in calls)
    if plain and len({call[0][0].shape[1:] for call in calls}) == 1:
        return (torch.cat([call[0][0] for call in calls])[:_SAMPLE],), {}
    return calls[0]
