"""Place, calibrate, choose on held-out data, correct, and find float islands: one call."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import fx, nn

from embedl_deploy.backend import Backend
from embedl_deploy.errors import InputError, QuantizationError
from embedl_deploy.quantize._calibrate import ForwardLoop, as_call, describe
from embedl_deploy.quantize._config import MaxDrop, QuantConfig
from embedl_deploy.quantize._data_evidence import no_evidence
from embedl_deploy.quantize._held_out import run_sample
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._insert import transformed_network
from embedl_deploy.quantize._job import Job
from embedl_deploy.quantize._plan import dialect_name
from embedl_deploy.quantize._quantization import Correction, Corrections, put_quantization, quantization_of
from embedl_deploy.quantize._search import search
from embedl_deploy.quantize._training import freeze_weights as bake_weights
from embedl_deploy.target import TargetLike, choose_backend


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
    held_out: Iterable[Any] | None = None,
    corrections: Corrections | None = None,
    goal: MaxDrop | None = None,
    check_data: bool = True,
    progress: bool = False,
) -> fx.GraphModule:
    """Quantize a transformed model: place, calibrate, choose what helps on held-out data, and meet a goal.

    What the config and `corrections` leave open is chosen on samples that no range is taken from: the range method,
    and, where an output is below 20 dB, corrections and a few layers to leave float. A choice other than the plain one
    is made only where it is better by more than noise. `quantization_of` the result has the evidence.

    Args:
        model: What `transform` made; it is not changed, and the result has weights of its own.
        args: Example inputs, for rules that look at shapes; they are the only calibration batch when there is no other,
            and the report says so.
        config: How tensors are quantized and what is left out. With a calibration method of its own, ranges are taken
            from all the data by this method, and no layer is left float that was not asked for.
        forward_loop: The calibration data, as `calibrate` takes it.
        freeze_weights: Bake the quantized weights in; the result is then not made for training.
        backend: Whose placement, itself or by name; the active one when neither it nor `target` is given.
        target: What the model is for, instead of a backend.
        kwargs: Example keyword inputs.
        held_out: Batches to judge choices by. Without them every fourth batch of `forward_loop` is held out, or the
            last quarter of the rows of fewer batches, where that leaves four samples and more.
        corrections: What may be tried against errors, where its symptom shows: one or several, themselves or by name;
            ``tuple(Correction)`` for all, ``()`` for none. Needs data that can be run twice. Left open, all but learned
            rounding are tried where an output is poor, and all of them where a goal is not met.
        goal: What a metric must reach; range methods, corrections and float islands are tried until it does.
        check_data: Compare some of the data with the statistics that the network keeps of its training data; the report
            says what came of it.
        progress: Count batches and tell the steps of the search on the error stream.

    Raises:
        QuantizationError: A choice cannot be met.
        CalibrationError: The data is missing or unusable.
        InputError: The model does not take the example inputs.
        UnknownBackendError: No installed backend has this name.
        BackendSelectionError: Neither backend nor target was given and no backend is active.
    """
    chosen = None if corrections is None else Correction.chosen(corrections)
    data = _data(args, kwargs, forward_loop, again=bool(chosen))
    if forward_loop is not None and not (args is None and kwargs is None):
        _try_example(model, args, kwargs)
    inputs = sum(node.op == "placeholder" for node in transformed_network(model).graph.nodes)
    held = None if held_out is None else tuple(as_call(batch, inputs) for batch in held_out)
    job = Job(
        model, args, kwargs, config or QuantConfig(), choose_backend(backend, target), dialect_name(backend, target),
        data, held, chosen, example_only=forward_loop is None, progress=progress,
        evidence=[] if check_data else None,
    )  # fmt: skip
    result = job.run() if goal is None else search(job, goal)
    evidence = job.evidence[0] if job.evidence else None
    if check_data and evidence is None:
        evidence = no_evidence("it was given as statistics, without the data.")
    put_quantization(result, replace(quantization_of(result), example_only=forward_loop is None, evidence=evidence))
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
