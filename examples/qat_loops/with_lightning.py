"""Quantization-aware training with Lightning: the schedule is stepped in a hook of the module."""

from typing import Any

import lightning
import task
import torch
from torch import fx
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from embedl_deploy.quantize import QatSchedule


class Digits(lightning.LightningModule):
    """A quantized network and its schedule."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__()
        self.model = model
        self.schedule = QatSchedule(model, task.RECIPE, task.STEPS)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer from the schedule's groups."""
        return torch.optim.Adam(self.schedule.groups(), lr=task.RECIPE.rate)

    def on_train_batch_end(self, *_rest: Any) -> None:
        """Go on by one step."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, torch.optim.Optimizer | lightning.pytorch.core.optimizer.LightningOptimizer)
        self.schedule.step(getattr(optimizer, "optimizer", optimizer))  # type: ignore[arg-type]


def main() -> None:
    """Train on and print accuracies."""
    model, training, testing = task.quantized()
    before = task.handwritten.accuracy(model, testing)
    trainer = lightning.Trainer(
        max_epochs=task.RECIPE.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model.train()
    trainer.fit(Digits(model), DataLoader(TensorDataset(*training), task.BATCH, shuffle=True))
    model.eval()
    task.report(before, task.handwritten.accuracy(model, testing))


if __name__ == "__main__":
    main()
