"""Quantization-aware training with the Hugging Face Trainer: the schedule is stepped by a callback."""

import tempfile
from typing import Any

import task
import torch
from torch import fx, nn
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments

from embedl_deploy.quantize import QatSchedule


class Digits(nn.Module):
    """A quantized network with the loss that the Trainer expects of a model."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and outputs."""
        logits = self.model(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Stepping(TrainerCallback):
    """Steps a schedule after the optimizer."""

    def __init__(self, schedule: QatSchedule) -> None:
        self.schedule = schedule

    def on_step_end(self, *_rest: Any, optimizer: Any = None, **_more: Any) -> None:
        """Go on by one step."""
        self.schedule.step(getattr(optimizer, "optimizer", optimizer))


def main() -> None:
    """Train on and print accuracies."""
    model, (images, labels), testing = task.quantized()
    before = task.handwritten.accuracy(model, testing)
    schedule = QatSchedule(model, task.RECIPE, task.STEPS)
    optimizer = torch.optim.Adam(schedule.groups(), lr=task.RECIPE.rate)
    # The schedule sets the rates; the Trainer's own stays out of the way.
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
    data = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, per_device_train_batch_size=task.BATCH, num_train_epochs=task.RECIPE.epochs, report_to=[],
            save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(
            Digits(model), options, train_dataset=data, callbacks=[Stepping(schedule)],
            optimizers=(optimizer, constant),
        )  # fmt: skip
        model.train()
        trainer.train()
    model.eval()
    task.report(before, task.handwritten.accuracy(model, testing))


if __name__ == "__main__":
    main()
