"""Calibration data on trial: before quantizing by what the network remembers, after it by resampling."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx, nn

from embedl_deploy._table import Printed, html_page, html_table, table
from embedl_deploy._transform.pipeline import transform
from embedl_deploy.backend import Backend
from embedl_deploy.errors import CalibrationError
from embedl_deploy.nn import QuantizableModule, QuantStub
from embedl_deploy.quantize._batch_norm_evidence import find_norms
from embedl_deploy.quantize._calibrate import apply_calibration, as_call, describe, not_taken
from embedl_deploy.quantize._config import QuantConfig
from embedl_deploy.quantize._data_evidence import MOST, DataEvidence, DataVerdict, judge_data, refuse_damage
from embedl_deploy.quantize._held_out import Judge, run_sample, takes
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._insert import insert_qdq
from embedl_deploy.quantize._plan import plan_qdq
from embedl_deploy.quantize._quantization import quantization_of
from embedl_deploy.quantize._resampling import (
    CHANGE,
    Drop,
    ScaleStability,
    collect_groups,
    mean_interval,
    merged,
    paired_interval,
    redrawn,
    stability,
)
from embedl_deploy.quantize._rows import Sample, rows_of, split_rows, spread_rows, tensors_of
from embedl_deploy.target import TargetLike, choose_backend

CALIBRATIONS = 4  # resamples of the calibration data that a drop is measured with
_LEAST_SAMPLES = 16
_EVERY = 4
_ROWS = 12
_COLORS = {"fits": "#2a7a2a", "differs": "#b07000", "faulty": "#b02020", "no evidence": "#888888"}
_STYLE = ".verdict { font-size: 1.15rem; margin: 1rem 0; } td:nth-child(n+2), th:nth-child(n+2) { width: 7rem; }"


@dataclass(frozen=True, repr=False)
class CalibrationVerdict(Printed):
    """What was found out about calibration data; prints as a table."""

    evidence: DataEvidence  # by what the network keeps of its training data
    scales: ScaleStability | None = None  # whether more data would change them; None where nothing was quantized
    drop: Drop | None = None  # what quantizing costs; None where there was nothing to measure it on
    reason: str = ""  # why there is no drop, where there is none

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return self.evidence.verdict is not DataVerdict.FAULTY

    @property
    def lines(self) -> tuple[str, ...]:
        """The findings, a sentence each; of what faulty data would give, none."""
        if not self.passed and (self.scales is not None or self.drop is not None):
            return (
                self.evidence.line,
                "Scales and drop: not told, they are of this data. Prepare it as said, and check again.",
            )
        scales = () if self.scales is None else (str(self.scales),)
        drop = (f"Drop: not measured, {self.reason}",) if self.drop is None and self.reason else ()
        return (self.evidence.line, *scales, *(drop if self.drop is None else (str(self.drop),)))

    def _line(self) -> str:
        return self.evidence.line

    def _layers(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        head = ("layer", "channels", "distance", "mean, off by", "deviation")
        return head, [fit.row() for fit in self.evidence.layers]

    def _scales(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        changes = () if self.scales is None or not self.passed else self.scales.unsettled[:_ROWS]
        return ("scale", "growth", "spread"), [
            (change.name, f"{change.growth:+.1%}", f"{change.spread:.1%}") for change in changes
        ]

    def __str__(self) -> str:
        parts = ["\n".join(self.lines)]
        parts += [table(*rows) for rows in (self._layers(), self._scales()) if rows[1]]
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        scales = self.scales
        return {
            "format": 1,
            "lines": list(self.lines),
            "evidence": self.evidence.to_dict(),
            "scales": None if scales is None else {
                "total": len(scales.changes), "unsettled": len(scales.unsettled), "change": CHANGE,
                "groups": scales.groups, "reason": scales.reason,
                "changes": [{"name": each.name, "growth": each.growth, "spread": each.spread}
                            for each in scales.changes],
            },
            "drop": None if self.drop is None else vars(self.drop),
            "reason": self.reason,
        }  # fmt: skip

    def to_html(self) -> str:
        """Return a page of its own."""
        verdict = self.evidence.verdict.value
        body = [f"<h1>Calibration data: {escape(verdict)}</h1>"]
        dot = f'<span class="dot" style="background:{_COLORS[verdict]}"></span>'
        body += [f"<p class='verdict'>{dot}{escape(self.evidence.line)}</p>"]
        body += [f"<p>{escape(line)}</p>" for line in self.lines[1:]]
        for title, (head, rows) in (
            ("Layers, from the input on", self._layers()),
            ("Scales that more data would change", self._scales()),
        ):
            if rows:
                body += [f"<h2>{title}</h2>", html_table(head, rows)]
        if self.evidence.tried:
            tried = sorted(self.evidence.tried.items(), key=lambda each: each[1])[:_ROWS]
            rows = [(what, f"{left:.2f}") for what, left in tried]
            body += ["<h2>Explanations that were tried</h2>", html_table(("explanation", "distance left"), rows)]
        return html_page(f"Calibration data: {verdict}", _STYLE, body)

    def save_html(self, path: str | Path) -> Path:
        """Write the page and return its path."""
        target = Path(path)
        target.write_text(self.to_html(), encoding="utf-8")
        return target


def check_calibration(
    model: nn.Module,
    args: tuple[Any, ...] | None,
    batches: Iterable[Any],
    *,
    evaluation: Iterable[Any] | None = None,
    config: QuantConfig | None = None,
    backend: Backend | str | None = None,
    target: TargetLike | None = None,
    confidence: float = 0.99,
    quantized: bool = True,
) -> CalibrationVerdict:
    """Say whether calibration data is what a network was trained on, whether there is enough, and what it will cost.

    Before quantizing, the mean and variance that batch norms keep are compared with what the data produces, layer by
    layer, and the preparation is looked for that explains a difference. After it, scales are solved again for resampled
    data, and the drop gets an interval that holds for another choice of the calibration data too.

    Args:
        model: The model as trained, or what `transform` made of it; it is not changed.
        args: Example inputs; the first batch when they are left out.
        batches: The calibration data: a tensor or array, a tuple of inputs, or a dictionary of them, each.
        evaluation: Batches to measure the drop on, as `batches` are; with the classes behind the inputs, accuracy is
            measured, else the signal-to-noise ratio. Without them a part of `batches` is held out for it.
        config: How tensors are quantized; min-max ranges where it names no method.
        backend: Whose placement; the active one when neither it nor `target` is given.
        target: What the model is for, instead of a backend.
        confidence: Of the drop's interval.
        quantized: Whether to quantize at all; without, there is the evidence alone.

    Raises:
        CalibrationError: There is no batch, the model does not take one, or a value is not finite.
    """
    items = _items(batches, args)
    if args is None:
        args = items[0].call[0]
    _check_taken(model, items)
    refuse_damage(item.call for item in items)
    judged = _with_norms(model, args)
    evidence = judge_data(judged, spread_rows([item.call for item in items], MOST, lambda call: _runs(judged, call)))
    if not quantized:
        return CalibrationVerdict(evidence)
    chosen = choose_backend(backend, target)
    fused = model if _is_transformed(model) else transform(model, args, chosen, kwargs=items[0].call[1] or None).model
    assert isinstance(fused, fx.GraphModule)
    config = config or QuantConfig()
    placed = insert_qdq(fused, plan_qdq(fused, args, config, backend=chosen), config)

    def fits(call: Sample) -> bool:
        return takes(fused, call)

    if evaluation is None:
        items, judged_items = _held_out(items, fits)
    else:
        judged_items = _items(evaluation, args)
    groups = collect_groups(placed, split_rows([item.call for item in items], fits))
    apply_calibration(placed, merged(groups))
    form = config.activation.format(symmetric=quantization_of(placed).symmetric)
    labels = {name: stub.label for name, stub in placed.named_modules() if isinstance(stub, QuantStub)}
    scales = stability(groups, config.activation, form, labels)
    samples = sum(rows_of(item.call) for item in judged_items)
    if samples < _LEAST_SAMPLES:
        reason = f"as there are {samples} unseen samples and {_LEAST_SAMPLES} are needed; give more, or evaluation="
        return CalibrationVerdict(evidence, scales, reason=f"{reason}batches.")
    return CalibrationVerdict(evidence, scales, measure_drop(fused, placed, groups, judged_items, confidence))


@dataclass(frozen=True)
class Item:
    """A batch: what the model is given, and the classes of its samples where they are known."""

    call: Sample
    labels: torch.Tensor | None = None


def _items(batches: Iterable[Any], args: tuple[Any, ...] | None) -> list[Item]:
    """Read batches; what stands behind the inputs is taken for classes where it is integers, one for each sample."""
    items = []
    for batch in batches:
        inputs = len(args) if args else 1
        call = as_call(batch, inputs)
        more = batch[inputs:] if isinstance(batch, list | tuple) else ()
        labels = torch.as_tensor(more[0]) if len(more) == 1 and not isinstance(more[0], str) else None
        usable = labels is not None and not labels.is_floating_point() and labels.ndim and len(labels) == rows_of(call)
        items.append(Item(call, labels if usable else None))
    if not items:
        raise CalibrationError("there is no batch: the loader is empty.")
    return items


def _held_out(items: list[Item], fits: Any) -> tuple[list[Item], list[Item]]:
    """Hold out every fourth batch, of batches cut into eight and more."""
    if len(items) < _EVERY * 2:
        calls = split_rows([item.call for item in items], fits)
        if len(calls) > len(items):
            labels = [item.labels for item in items]
            known = torch.cat([each for each in labels if each is not None]) if None not in labels else None
            starts = [sum(map(rows_of, calls[:index])) for index in range(len(calls))]
            items = [
                Item(call, None if known is None else known[start : start + rows_of(call)])
                for call, start in zip(calls, starts, strict=True)
            ]
    held = items[_EVERY - 1 :: _EVERY]
    return [item for index, item in enumerate(items) if (index + 1) % _EVERY], held


def measure_drop(
    model: nn.Module, quantized: fx.GraphModule, groups: Sequence[Calibration], items: Sequence[Item], confidence: float
) -> Drop:
    """Measure what a quantized model loses, with its own calibration and with resampled ones."""
    known = [item.labels for item in items if item.labels is not None]
    measure: _Measure = _Accuracy(model, items) if len(known) == len(items) else _Noise(model, items)
    found = [measure.interval(quantized, confidence)]
    other = copy.deepcopy(quantized)
    for calibration in redrawn(groups, CALIBRATIONS) if len(groups) > 1 else ():
        apply_calibration(other, calibration)
        found.append(measure.interval(other, confidence))
    return Drop(
        measure.name, found[0][0], min(low for _, low, _ in found), max(high for _, _, high in found), confidence,
        measure.samples, len(found),
    )  # fmt: skip


class _Measure(Protocol):
    """What a drop is measured in."""

    name: str
    samples: int

    def interval(self, model: nn.Module, confidence: float) -> tuple[float, float, float]:
        """Return what a model loses, and within what that lies."""


class _Accuracy:
    """Classes that are right in float and wrong when quantized, less those the other way round; in points."""

    name = "accuracy"

    def __init__(self, model: nn.Module, items: Sequence[Item]) -> None:
        self._items = items
        self._float = self._right(model)
        self.samples = len(self._float)

    def _right(self, model: nn.Module) -> torch.Tensor:
        found = []
        for item in self._items:
            assert item.labels is not None
            answer = run_sample(model, item.call)[0].argmax(1)
            if answer.shape != item.labels.shape:
                raise CalibrationError(
                    f"the classes of a batch are {describe(item.labels)}, the model answers {describe(answer)}; "
                    "give one class for each."
                )
            found.append((answer == item.labels.to(answer.device)).double().flatten(1 - (answer.ndim == 1)).cpu())
        return torch.cat([part.mean(1) if part.ndim > 1 else part for part in found])

    def interval(self, model: nn.Module, confidence: float) -> tuple[float, float, float]:
        difference = self._float - self._right(model)
        if bool((difference.abs() % 1 == 0).all()):
            low, high = paired_interval(
                int((difference > 0).sum()), int((difference < 0).sum()), self.samples, confidence
            )
        else:
            low, high = mean_interval(difference, confidence)
        return 100 * float(difference.mean()), 100 * low, 100 * high


class _Noise:
    """The signal-to-noise ratio of the outputs, in dB."""

    name = "SQNR"

    def __init__(self, model: nn.Module, items: Sequence[Item]) -> None:
        self._judge = Judge(model, [item.call for item in items])
        self.samples = self._judge.samples

    def interval(self, model: nn.Module, confidence: float) -> tuple[float, float, float]:
        ratios = self._judge.scores(model).mean(1)
        return (float(ratios.mean()), *mean_interval(ratios, confidence))


def _runs(model: nn.Module, call: Sample) -> bool:
    try:
        run_sample(model, call)
    except Exception:  # noqa: BLE001 (whatever a model raises for a batch it does not take)
        return False
    return True


def _is_transformed(model: nn.Module) -> bool:
    return isinstance(model, fx.GraphModule) and any(isinstance(part, QuantizableModule) for part in model.modules())


def _check_taken(model: nn.Module, items: Sequence[Item]) -> None:
    """Run one batch of each kind that there is: another shape or type in the middle is told before the work begins."""
    seen: set[tuple[object, ...]] = set()
    for number, item in enumerate(items, start=1):
        leaves = tensors_of(item.call)
        given = [*item.call[0], *item.call[1].values()]
        if any(leaf.ndim and not len(leaf) for leaf in leaves):
            raise not_taken(number, given, "it has no samples")
        kind = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        if kind in seen:
            continue
        seen.add(kind)
        try:
            run_sample(model, item.call)
        except Exception as exc:
            raise not_taken(number, given, exc) from exc


def _with_norms(model: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    """Return the model with its normalization layers as modules: in exported graphs they are calls of functions."""
    if not isinstance(model, fx.GraphModule) or _is_transformed(model):
        return model
    called = {str(node.target) for node in model.graph.nodes if node.op == "call_module"}
    if any(name in called or any(name.startswith(f"{each}.") for each in called) for name in find_norms(model)[0]):
        return model
    return transform(model, args, (), verify=False).model
