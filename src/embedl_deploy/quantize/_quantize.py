"""Place, calibrate, cure, and find float islands: one call."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph import Example
from embedl_deploy.backend import Backend, get_backend
from embedl_deploy.errors import InputError, QuantizationError
from embedl_deploy.nn.samples import carry_samples, keeping_samples
from embedl_deploy.pattern import Pattern
from embedl_deploy.quantize._calibrate import ForwardLoop, as_call, calibrate, describe
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._config import MaxDrop, ModulesToSkip, QuantConfig
from embedl_deploy.quantize._cures import Cure, Cures, Patient, Sample, halves, run_sample, treat
from embedl_deploy.quantize._insert import insert_qdq, network_of
from embedl_deploy.quantize._placement import Placement, plan_placement
from embedl_deploy.quantize._report import QuantReport, put_report
from embedl_deploy.quantize._search import find_islands
from embedl_deploy.quantize._sensitivity import sensitivity
from embedl_deploy.quantize._skip import Skip
from embedl_deploy.quantize._training import freeze_weights as bake_weights

_SAMPLE = 32


def plan_qdq(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    *,
    backend: Backend | str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Placement:
    """Say for every layer of a transformed model whether it will be quantised, and why; print it to read it.

    Raises:
        QuantizationError: The model was not transformed, the backend quantises nothing, or a skip means no layer.
        BackendSelectionError: No backend was given and none is active.
    """
    config = config or QuantConfig()
    backend = get_backend(backend)
    patterns = _patterns(backend)
    network = network_of(model)
    if args is not None or kwargs is not None:
        network.example = Example(tuple(args or ()), kwargs or {})
    placement = plan_placement(network, patterns, Skip(network, config.skip))
    if not any(one.pattern for one in placement.layers):
        raise QuantizationError(
            f"no layer of this model is one the backend '{backend.name}' quantises; "
            "call transform(model, args) with the patterns of the same backend first."
        )
    return replace(placement, integer_kernels=backend.integer_kernels, symmetric=backend.symmetric_activations)


def _patterns(backend: Backend) -> Sequence[type[Pattern]]:
    """Return a backend's placement patterns."""
    if not backend.quantized_patterns:
        raise QuantizationError(
            f"the backend '{backend.name}' has no quantised patterns; choose another with set_backend."
        )
    return (*backend.smooth_patterns, *backend.quantized_patterns)


def quantize(  # noqa: PLR0913 (the contract's five, and what a user may add to each stage)
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    forward_loop: ForwardLoop | Calibration | None = None,
    freeze_weights: bool = False,
    *,
    backend: Backend | str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    cures: Cures = (),
    target: MaxDrop | None = None,
    progress: bool = False,
) -> fx.GraphModule:
    """Quantise a transformed model: place, calibrate, cure, and find float islands where a goal is given.

    Args:
        model: What `transform` made; it is not changed, and the result has weights of its own.
        args: Example inputs, for rules that look at shapes; they are the only calibration batch when there is no other,
            and the report says so.
        config: How tensors are quantised and what is left out.
        forward_loop: The calibration data, as `calibrate` takes it.
        freeze_weights: Bake the quantised weights in; the result is then not made for training.
        backend: The target, itself or by name; the active one when `None`.
        kwargs: Example keyword inputs.
        cures: What may be tried against errors, where its symptom shows: one or several, themselves or by name;
            ``tuple(Cure)`` for all. Needs data that can be run twice.
        target: A goal for a metric; layers are left float until it is met.
        progress: Count batches on the error stream.

    Raises:
        QuantizationError: A choice cannot be met.
        CalibrationError: The data is missing or unusable.
        InputError: The model does not take the example inputs.
        UnknownBackendError: No installed backend has this name.
        BackendSelectionError: No backend was given and none is active.
    """
    backend = get_backend(backend)
    config = config or QuantConfig()
    chosen = Cure.chosen(cures)
    data = _data(args, kwargs, forward_loop, again=bool(chosen))
    if forward_loop is not None and not (args is None and kwargs is None):
        _try_example(model, args, kwargs)
    job = _Job(model, args, kwargs, config, backend, data, chosen)
    first, report = job.run(progress=progress)
    result = first
    if target is not None:
        result, report = job.search(first, report, target)
        carry_samples(first, result)
    put_report(result, replace(report, example_only=forward_loop is None))
    if freeze_weights:
        bake_weights(result)
    return result


def _try_example(model: nn.Module, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Run the example inputs: rules look at their shapes, so those that do not fit would be answered wrongly.

    Raises:
        InputError: The model does not take them.
    """
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
    """Return what to calibrate with.

    Raises:
        QuantizationError: There is nothing, or it can be run only once and is needed again.
    """
    if given is None:
        if args is None and kwargs is None:
            raise QuantizationError("there is nothing to calibrate with; give forward_loop=batches, or args at least.")
        return [tuple(args)] if args is not None else [dict(kwargs or {})]
    if again and (isinstance(given, Calibration | Iterator)):
        what = "statistics of an earlier run" if isinstance(given, Calibration) else "an iterator, which runs only once"
        raise QuantizationError(f"cures need the data again and forward_loop is {what}; give a list or a data loader.")
    return given


@dataclass(frozen=True)
class _Job:
    """One quantisation, to be run with this or that layer left float."""

    model: nn.Module
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    config: QuantConfig
    backend: Backend
    data: ForwardLoop | Calibration
    cures: Collection[Cure]

    def run(self, *, progress: bool = False) -> tuple[fx.GraphModule, QuantReport]:
        """Place, calibrate and cure."""
        placement = plan_qdq(self.model, self.args, self.config, backend=self.backend, kwargs=self.kwargs)
        result = insert_qdq(self.model, placement, self.config)
        with keeping_samples(result):
            calibration = calibrate(result, self.data, progress=progress)
        if not self.cures or isinstance(self.data, Calibration):
            return result, QuantReport(placement, calibration)
        sample, held = halves(self.sample(result))
        patient = Patient(result, self.data, sample, held, run_sample(self.model, held), calibration)
        treatments = tuple(treat(patient, self.cures))
        return result, QuantReport(placement, patient.calibration, treatments)

    def sample(self, model: fx.GraphModule) -> Sample:
        """Return one call to judge by: the first batches, or the example inputs when the user runs the data."""
        if isinstance(self.data, Calibration) or callable(self.data):
            return tuple(self.args or ()), dict(self.kwargs or {})
        return _first_batches(model, self.data)

    def search(
        self, result: fx.GraphModule, report: QuantReport, target: MaxDrop
    ) -> tuple[fx.GraphModule, QuantReport]:
        """Leave layers float until the goal is met."""
        args, kwargs = self.sample(result)
        costs = sensitivity(result, args, kwargs=kwargs)
        ranking = [one.place for one in costs.layers]
        reports: dict[tuple[str, ...], QuantReport] = {(): report}

        def build(islands: tuple[str, ...]) -> fx.GraphModule:
            skip = self.config.skip
            wider = ModulesToSkip((*skip.stub, *islands), (*skip.weight, *islands), (*skip.smooth, *islands))
            # Without cures the statistics of the first run serve every placement: no data is run again.
            source = self.data if self.cures else report.calibration
            job = replace(self, config=replace(self.config, skip=wider), data=source)
            built, found = job.run()
            reports[islands] = replace(found, placement=found.placement.with_islands(islands))
            return built

        assert isinstance(self.model, fx.GraphModule)
        found, search = find_islands(build, result, self.model, ranking, target)
        return found, replace(reports[search.islands], search=search, sensitivity=costs)


def _first_batches(model: fx.GraphModule, data: Iterable[Any]) -> Sample:
    """Return the first batches as one, where they can be put together; else the first one."""
    inputs = sum(node.op == "placeholder" for node in model.graph.nodes)
    calls = []
    count = 0
    for batch in data:
        calls.append(as_call(batch, inputs))
        leaves = [one for one in pytree.tree_leaves(calls[-1]) if isinstance(one, torch.Tensor) and one.ndim]
        count += leaves[0].shape[0] if leaves else 1
        if count >= _SAMPLE:
            break
    plain = all(not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor) for args, kwargs in calls)
    if plain and len({call[0][0].shape[1:] for call in calls}) == 1:
        return (torch.cat([call[0][0] for call in calls])[:_SAMPLE],), {}
    return calls[0]
