"""Quantization-aware training in a loop of plain torch."""

import task
import torch
from torch.nn import functional

from embedl_deploy.quantize import QatSchedule


def main() -> None:
    """Train on and print accuracies."""
    model, (images, labels), testing = task.quantized()
    before = task.handwritten.accuracy(model, testing)
    schedule = QatSchedule(model, task.RECIPE, task.STEPS)
    optimizer = torch.optim.Adam(schedule.groups(), lr=task.RECIPE.rate)
    model.train()
    for _ in range(task.RECIPE.epochs):
        for index in torch.split(torch.randperm(len(images)), task.BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[index]), labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step(optimizer)
    model.eval()
    task.report(before, task.handwritten.accuracy(model, testing))


if __name__ == "__main__":
    main()
