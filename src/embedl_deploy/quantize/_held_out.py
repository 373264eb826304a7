"""Data that no range is taken from, and what it says about two models: only a difference beyond noise counts.

A sample is a row of a batch where every output has as many rows, else a whole batch. Its measure is the signal-to-noise
ratio of the outputs in dB, the mean over outputs, so that a large output does not hide a small one.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph.run import evaluating
from embedl_deploy.errors import CalibrationError
from embedl_deploy.quantize._calibrate import as_call, describe
from embedl_deploy.quantize._quantization import Gain
from embedl_deploy.quantize._rows import Sample, rows_of, tensors_of

LEAST = 4  # a comparison on fewer samples says nothing
ENOUGH_ROWS = 16  # rows of one to three batches, of which the last quarter is held out
_EVERY = 4
_MOST = 64
_MOST_BYTES = 256 * 2**20
_TOP_DB, _BOTTOM_DB = 120.0, -60.0


class Split:
    """Batches, less those that are held out: every fourth, or the last quarter of the rows of three and fewer.

    `held` has the held-out calls after the batches were gone through. A loader that shuffles holds others out in every
    pass; only those of the first pass are judged by.
    """

    def __init__(self, data: Iterable[Any], inputs: int, takes: Callable[[Sample], bool]) -> None:
        self._data, self._inputs, self._takes = data, inputs, takes
        self.held: list[Sample] = []
        self.number = 0  # of the batch that is out, as the user counts

    def __iter__(self) -> Iterator[Any]:
        self.held, self.number = [], 0
        space = _MOST_BYTES
        batches = iter(self._data)
        first = list(itertools.islice(batches, _EVERY))
        if len(first) < _EVERY:
            yield from self._few(first)
            return
        for self.number, batch in enumerate(itertools.chain(first, batches), start=1):
            call = as_call(batch, self._inputs)
            room = space > 0 and sum(rows_of(other) for other in self.held) < _MOST
            if self.number % _EVERY or not room:
                yield batch
            else:
                space -= sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(call))
                self.held.append(call)

    def _few(self, batches: list[Any]) -> Iterator[Any]:
        """Cut the last rows off every batch, where there are enough and the model takes fewer."""
        calls = [as_call(batch, self._inputs) for batch in batches]
        cuts = [_cut(call) for call in calls] if sum(map(rows_of, calls)) >= ENOUGH_ROWS else []
        apart = bool(cuts) and all(cut is not None and all(map(self._takes, cut)) for cut in cuts)
        for self.number, batch in enumerate(batches, start=1):
            cut = cuts[self.number - 1] if apart else None
            if cut is None:
                yield batch
                continue
            (args, kwargs), held = cut
            self.held.append(held)
            yield kwargs or args


def _cut(call: Sample) -> tuple[Sample, Sample] | None:
    rows = rows_of(call)
    if rows < _EVERY:
        return None
    middle = rows - rows // _EVERY

    def part(rows: slice) -> Sample:
        cut: Sample = pytree.tree_map(lambda leaf: leaf[rows] if isinstance(leaf, torch.Tensor) else leaf, call)
        return cut

    return part(slice(middle)), part(slice(middle, None))


def takes(model: nn.Module, call: Sample) -> bool:
    """Say whether a model runs a call and gives a row for each of its rows."""
    try:
        found = run_sample(model, call)
    except Exception:  # noqa: BLE001 (whatever torch raises for a batch size that was traced as a constant)
        return False
    return _has_rows(found, rows_of(call))


def _has_rows(outputs: Sequence[torch.Tensor], rows: int) -> bool:
    return all(output.ndim and output.shape[0] == rows for output in outputs)


class Judge:
    """The float model's outputs for held-out calls, to compare quantized models by."""

    def __init__(self, model: nn.Module, calls: Sequence[Sample]) -> None:
        self.calls = tuple(calls)
        self.names: list[str] = []
        self._references: list[list[torch.Tensor]] = []
        for number, call in enumerate(calls, start=1):
            try:
                found = run_sample(model, call)
            except Exception as exc:
                raise CalibrationError(
                    f"the model does not take held-out batch {number} ({describe(list(tensors_of(call)))}): {exc}. "
                    "Batches are a tensor or array, a tuple of the model's inputs, or a dictionary of them."
                ) from exc
            if not all(bool(torch.isfinite(output).all()) for output in found):
                raise CalibrationError(
                    f"held-out batch {number} makes an output of the model that is not finite; look for NaN or "
                    "infinity in it, or for a layer that overflows."
                )
            self._references.append(found)
        if calls:
            self.names = output_names(model, calls[0])
        # A mask that is the same for all rows has no noise to tell of.
        self._by_rows = all(
            _has_rows(found, rows_of(call)) for found, call in zip(self._references, self.calls, strict=True)
        )

    @property
    def samples(self) -> int:
        """How many samples there are to compare by."""
        return sum(rows_of(call) if self._by_rows else 1 for call in self.calls)

    @property
    def can_tell(self) -> bool:
        """Whether there is enough to compare by: samples, and outputs of numbers."""
        return self.samples >= LEAST and bool(self.names)

    def scores(self, model: nn.Module) -> torch.Tensor:
        """Return a row per sample with the ratio of every output in dB."""
        rows = []
        for call, wanted in zip(self.calls, self._references, strict=True):
            found = run_sample(model, call)
            pairs = zip(wanted, found, strict=True)
            rows.append(torch.stack([_ratios(one, other, by_rows=self._by_rows) for one, other in pairs], 1))
        return torch.cat(rows)


def output_names(model: nn.Module, call: Sample) -> list[str]:
    """Name the outputs that are numbers by their keys or places; a single one is 'output'."""
    with evaluating([model]):
        found, _ = pytree.tree_flatten_with_path(model(*call[0], **call[1]))
    paths = [path for path, leaf in found if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    keys = [".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path in paths]
    if len(keys) == 1 and keys[0] in ("", "0"):
        return ["output"]
    return [f"output {key}" if key.isdigit() else key for key in keys]


def _ratios(wanted: torch.Tensor, found: torch.Tensor, *, by_rows: bool) -> torch.Tensor:
    if not by_rows:
        wanted, found = wanted[None], found[None]
    wanted, found = wanted.double().flatten(1), found.double().flatten(1)
    noise = (wanted - found).pow(2).sum(1)
    # Where the float model gives nothing, the typical row is what noise is held against.
    signal = wanted.pow(2).sum(1)
    signal = torch.where(signal > 0, signal, signal.mean()).clamp(min=1e-30)
    ratios = 10 * torch.log10(signal / noise.clamp(min=1e-300))
    return ratios.nan_to_num(_BOTTOM_DB).clamp(_BOTTOM_DB, _TOP_DB)


def gain(before: torch.Tensor, after: torch.Tensor) -> Gain:
    """Compare two models sample by sample: the mean difference, and within what it lies but for chance."""
    difference = (after - before).mean(1)
    count = len(difference)
    mean = float(difference.mean())
    # Two standard errors, and more for few samples, by the spread of Student's t.
    wide = 2 * math.sqrt((count - 1) / (count - 3)) if count >= LEAST else math.inf
    error = float(difference.std(correction=1)) / math.sqrt(count) if count > 1 else 0.0
    reach = wide * error if error else 0.0
    return Gain(mean, mean - reach, mean + reach, count)


def run_sample(model: nn.Module, sample: Sample) -> list[torch.Tensor]:
    with evaluating([model]):
        return float_tensors(model(*sample[0], **sample[1]))


def float_tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def ratio_db(reference: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """Return the signal-to-noise ratio in dB, over all tensors together."""
    signal = sum(float(tensor.double().pow(2).sum()) for tensor in reference)
    pairs = zip(reference, found, strict=True)
    noise = sum(float((wanted.double() - value.double()).pow(2).sum()) for wanted, value in pairs)
    return float(10 * torch.log10(torch.tensor(max(signal, 1e-300) / noise))) if noise else float("inf")
