"""A recipe for quantization-aware training: what moves, how fast, and from when on it stands still.

Weights train at a rate far below that of training from nothing. Learned scales move slower still, and stop before the
weights do: a weight that settles next to a moving step settles nowhere. Batch norm stops last but one, so that the end
of training sees the statistics that are exported.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import QuantizedConv
from embedl_deploy.quantize._insert import layers_of
from embedl_deploy.quantize._quantization import before_compile, quantization_of
from embedl_deploy.quantize._training import freeze_batch_norm, learn_ranges


@dataclass(frozen=True)
class QatRecipe:
    """How a calibrated model is trained on; the defaults serve INT8 weights, `four_bits` those of four.

    Attributes:
        epochs: Passes over the data.
        rate: The learning rate of the weights at the beginning; it falls along a cosine to nothing.
        scale_rate: The learning rate of learned scales, as a part of `rate`.
        learn_activations: Learn the scales of activations.
        learn_weights: Learn the scales of weights; otherwise they follow the weights.
        freeze_ranges_at: The part of all steps after which learned scales stand still.
        freeze_batch_norm_at: The part of all steps after which batch norm uses its running statistics.
        distillation: How much of the loss is the distance to the float model's outputs: 0 for none, 1 for all.
        temperature: What outputs are divided by before they are compared with the float model's.
    """

    epochs: int = 3
    rate: float = 1e-3
    scale_rate: float = 0.01
    learn_activations: bool = True
    learn_weights: bool = False
    freeze_ranges_at: float = 0.8
    freeze_batch_norm_at: float = 0.6
    distillation: float = 0.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in ("freeze_ranges_at", "freeze_batch_norm_at", "distillation")}
        for name, value in parts.items():
            if not 0 <= value <= 1:
                raise QuantizationError(f"{name} is {value}; it is a part of the whole, between 0 and 1.")
        for name in ("epochs", "rate", "temperature"):
            if not getattr(self, name) > 0:
                raise QuantizationError(f"{name} is {getattr(self, name)}; it must be positive.")

    @classmethod
    def four_bits(cls, **changed: Any) -> "QatRecipe":
        """Return the recipe for weights of four bits: longer, faster, weight scales learned too, and with a teacher.

        Args:
            changed: Any field that should be another.
        """
        return cls(**{"epochs": 6, "rate": 3e-3, "learn_weights": True, "distillation": 0.5, **changed})


class QatState(TypedDict):
    """Where a schedule stands, as plain data."""

    step: int
    steps: int


class QatSchedule:
    """Moves a model through a recipe, whatever runs the loop: make the optimizer from `groups`, call `step` after it.

    Learned scales stand still by a learning rate of zero, not by leaving the optimizer: parameters that come and go
    are what `DistributedDataParallel` cannot do.
    """

    def __init__(self, model: nn.Module, recipe: QatRecipe, steps: int) -> None:
        """Make scales learnable as the recipe says.

        Args:
            model: A calibrated model, compiled or not.
            recipe: What to do when.
            steps: How many steps the whole training has.

        Raises:
            QuantizationError: The model has no pairs, or there is no step.
        """
        model = before_compile(model)  # names in a compiled one are others
        quantization_of(model)
        if steps < 1:
            raise QuantizationError("there is no step to train; give the number of batches times the epochs.")
        self.model, self.recipe, self.steps, self.done = model, recipe, steps, 0
        self._scales = learn_ranges(model, activations=recipe.learn_activations, weights=recipe.learn_weights)

    def groups(self) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: weights, then learned scales, without weight decay."""
        scales = {id(one) for one in self._scales}
        weights = [one for one in self.model.parameters() if id(one) not in scales and one.requires_grad]
        groups: list[dict[str, Any]] = [{"params": weights, "lr": self.recipe.rate}]
        if self._scales:
            groups.append({"params": self._scales, "lr": self.recipe.rate * self.recipe.scale_rate, "weight_decay": 0})
        return groups

    def factors(self) -> tuple[float, float]:
        """Return what the rates of weights and of scales are multiplied with now."""
        progress = self.done / self.steps
        falling = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return falling, falling if progress < self.recipe.freeze_ranges_at else 0.0

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on by one step: set the rates, and freeze what is due."""
        self.done += 1
        self._apply()
        recipe = self.recipe
        rates = (recipe.rate, recipe.rate * recipe.scale_rate)
        for group, rate, factor in zip(optimizer.param_groups, rates, self.factors(), strict=False):
            group["lr"] = rate * factor

    def _apply(self) -> None:
        due = self.done >= self.recipe.freeze_batch_norm_at * self.steps
        convs = (layer for _, layer in layers_of(self.model) if isinstance(layer, QuantizedConv))
        if due and not all(conv.batch_norm_frozen for conv in convs):
            freeze_batch_norm(self.model)

    def loss(self, loss: torch.Tensor, outputs: torch.Tensor, teachers: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss with the recipe's part of distillation, from the outputs of both models."""
        part, heat = self.recipe.distillation, self.recipe.temperature
        if not part or teachers is None:
            return loss
        wanted = functional.log_softmax(teachers.detach() / heat, -1)
        apart = functional.kl_div(functional.log_softmax(outputs / heat, -1), wanted, reduction="none", log_target=True)
        return (1 - part) * loss + part * heat * heat * apart.sum(-1).mean()

    def state_dict(self) -> QatState:
        """Return where it stands."""
        return {"step": self.done, "steps": self.steps}

    def load_state_dict(self, state: QatState) -> None:
        """Go on from where another stood."""
        self.done, self.steps = state["step"], state["steps"]
        self._apply()


Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train_quantized(
    model: nn.Module,
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]],
    *,
    loss: Loss = functional.cross_entropy,
    recipe: QatRecipe | None = None,
    teacher: nn.Module | None = None,
) -> list[float]:
    """Train a calibrated model by a recipe, in place, and return the mean loss of every epoch; it ends in eval mode.

    Args:
        model: What `quantize` or `calibrate` made, or `torch.compile` of it.
        batches: Pairs of inputs and targets: a list or a `DataLoader`, gone through in each epoch, or a function that
            gives those of an epoch by its number, as many each time.
        loss: Outputs and targets to a loss.
        recipe: What to do when.
        teacher: The float model, where the recipe distills; it is not changed.

    Raises:
        QuantizationError: The model has no pairs, there is no batch or each is given only once, or the recipe distills
            and there is no teacher.
    """
    recipe = recipe or QatRecipe()
    if recipe.distillation and teacher is None:
        raise QuantizationError("the recipe distills and there is no teacher; give teacher=the float model.")
    elder = None if teacher is None or not recipe.distillation else copy.deepcopy(teacher).eval()
    batches_of = _by_epoch(batches)
    first = list(batches_of(0))
    schedule = QatSchedule(model, recipe, recipe.epochs * len(first))
    optimizer = torch.optim.Adam(schedule.groups(), lr=recipe.rate)
    means = []
    model.train()
    for epoch in range(recipe.epochs):
        losses = []
        for value, target in first if epoch == 0 else batches_of(epoch):
            optimizer.zero_grad()
            outputs = model(value)
            with torch.no_grad():
                taught = None if elder is None else elder(value)
            total = schedule.loss(loss(outputs, target), outputs, taught)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step(optimizer)
            losses.append(total.detach())
        means.append(float(torch.stack(losses).mean()))
    model.eval()
    return means


def _by_epoch(batches: Iterable[Batch] | Callable[[int], Iterable[Batch]]) -> Callable[[int], Iterable[Batch]]:
    """Return a function of the epoch."""
    if callable(batches):
        return batches
    if iter(batches) is batches:
        raise QuantizationError(
            "the batches are an iterator, which gives each of them once; give a list, a DataLoader, or a function of "
            "the epoch: batches=lambda epoch: ..."
        )
    return lambda _epoch: batches
