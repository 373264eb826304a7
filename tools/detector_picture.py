"""Train a small detector on drawn shapes, quantize it, and draw its boxes in float and in INT8.

    python tools/detector_picture.py docs/images/detector.png

One column is a picture that the detector has not seen. Rows: float; INT8; INT8 with one broken pixel in the calibration
data, by min-max ranges alone; the same with the defaults of `quantize`. Green boxes are where a shape is (IoU
0.5 and more, right class), red ones are not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.quantize import CalibrationMethod, QuantConfig, TensorQuantConfig, quantization_of, quantize

SIZE, CELL = 64, 8
GRID = SIZE // CELL
TARGET = "onnxruntime-x86"
Truth = list[tuple[int, float, float, float, float]]  # class, then center and size in pixels


def scene(seed: int) -> tuple[torch.Tensor, Truth]:
    """Return a noisy picture with one to three rectangles (class 0) and ellipses (class 1), and where they are."""
    random = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random))

    picture = Image.new("RGB", (SIZE, SIZE), tuple(int(between(20, 90)) for _ in range(3)))
    pencil, truth = ImageDraw.Draw(picture), Truth()
    for _ in range(int(between(1, 3.99))):
        width, height = between(12, 28), between(12, 28)
        x, y = between(width / 2, SIZE - width / 2), between(height / 2, SIZE - height / 2)
        if any(abs(x - other[1]) < 20 and abs(y - other[2]) < 20 for other in truth):
            continue
        kind, color = int(between(0, 1.99)), tuple(int(between(110, 255)) for _ in range(3))
        (pencil.rectangle, pencil.ellipse)[kind]((x - width / 2, y - height / 2, x + width / 2, y + height / 2), color)
        truth.append((kind, x, y, width, height))
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(SIZE, SIZE, 3)
    value = pixels.permute(2, 0, 1).float() / 255
    return value + 0.03 * torch.randn(value.shape, generator=random), truth


class Detector(nn.Module):
    """A YOLO-like network without anchors: for each of 8 × 8 cells a box in pixels and a score for each class."""

    cells: torch.Tensor

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int, groups: int = 1, kernel: int = 3) -> nn.Sequential:
            conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())

        deep = [part for _ in range(3) for part in (block(64, 64, 1, 64), block(64, 64, 1, kernel=1))]
        self.body = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 64, 2), *deep)
        self.box = nn.Sequential(block(64, 32, 1), nn.Conv2d(32, 4, 1))
        self.score = nn.Sequential(block(64, 32, 1), nn.Conv2d(32, 2, 1))
        y, x = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        self.register_buffer("cells", torch.stack([x, y])[None].float())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return boxes (center and size, in pixels) and scores of every cell."""
        x = self.body(x)
        box = self.box(x)
        center = (self.cells + torch.sigmoid(box[:, :2]) * 2 - 0.5) * CELL
        size = torch.exp(box[:, 2:].clamp(-3, 3)) * CELL
        return {"boxes": torch.cat([center, size], 1), "scores": torch.sigmoid(self.score(x))}


def targets(truths: list[Truth]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for every cell the box whose center is in it, and its class."""
    boxes, scores = torch.zeros(len(truths), 4, GRID, GRID), torch.zeros(len(truths), 2, GRID, GRID)
    for row, truth in enumerate(truths):
        for kind, *box in truth:
            column, line = (min(int(box[axis] / CELL), GRID - 1) for axis in (0, 1))
            boxes[row, :, line, column] = torch.tensor(box)
            scores[row, kind, line, column] = 1
    return boxes, scores


def trained(pictures: int = 1536, epochs: int = 24) -> Detector:
    """Train: a minute on one core."""
    torch.manual_seed(0)
    model = Detector()
    values, truths = zip(*(scene(seed) for seed in range(pictures)), strict=True)
    inputs, (boxes, scores) = torch.stack(values), targets(list(truths))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, epochs * (pictures // 64))
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(pictures), 64):
            found = model(inputs[rows])
            here = scores[rows].amax(1, keepdim=True)
            far = functional.smooth_l1_loss(found["boxes"] * here, boxes[rows] * here, reduction="sum") / here.sum()
            weight = torch.where(scores[rows] > 0, 8.0, 1.0)
            loss = 0.2 * far + 20 * functional.binary_cross_entropy(found["scores"], scores[rows], weight)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return model.eval()


def detect(model: nn.Module, value: torch.Tensor) -> Truth:
    """Return the boxes above a score of one half, without those that overlap a better one."""
    with torch.no_grad():
        found = model(value[None])
    best, kinds = found["scores"][0].flatten(1).max(0)
    boxes = found["boxes"][0].flatten(1).T
    kept: Truth = []
    for index in best.argsort(descending=True).tolist():
        box = tuple(boxes[index].tolist())
        if float(best[index]) > 0.5 and all(overlap(box, other[1:]) < 0.4 for other in kept):
            kept.append((int(kinds[index]), *box))
    return kept


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return intersection over union of two boxes."""
    shared = 1.0
    for axis in (0, 1):
        low = max(box[axis] - box[axis + 2] / 2 for box in (one, other))
        high = min(box[axis] + box[axis + 2] / 2 for box in (one, other))
        shared *= max(high - low, 0.0)
    return shared / max(one[2] * one[3] + other[2] * other[3] - shared, 1e-9)


def quality(model: nn.Module, seeds: range) -> tuple[float, float]:
    """Return the part of shapes and boxes that belong together (F1), and their mean IoU."""
    hits, count, overlaps = 0, 0, []
    for seed in seeds:
        value, truth = scene(seed)
        found = detect(model, value)
        count += len(truth) + len(found)
        for kind, *box in truth:
            match = max((overlap(tuple(box), other[1:]) for other in found if other[0] == kind), default=0.0)
            hits += match >= 0.5
            overlaps += [match] if match >= 0.5 else []
    return 2 * hits / max(count, 1), sum(overlaps) / max(len(overlaps), 1)


def draw(models: dict[str, nn.Module], seeds: list[int], titles: list[str]) -> Image.Image:
    """Draw a row for each model and a column for each picture."""
    side, gap, head = 3 * SIZE, 6, 22
    sheet = Image.new("RGB", (len(seeds) * (side + gap) + gap, len(models) * (side + head + gap)), "white")
    pencil = ImageDraw.Draw(sheet)
    for line, (model, title) in enumerate(zip(models.values(), titles, strict=True)):
        top = line * (side + head + gap)
        pencil.text((gap, top + 6), title, fill="black")
        for column, seed in enumerate(seeds):
            value, truth = scene(seed)
            pixels = (value.clamp(0, 1) * 255).byte().permute(1, 2, 0).contiguous().numpy()
            left = gap + column * (side + gap)
            sheet.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST), (left, top + head))
            for kind, *box in detect(model, value):
                right = any(kind == other[0] and overlap(tuple(box), other[1:]) >= 0.5 for other in truth)
                x, y, width, height = (number * side / SIZE for number in box)
                edges = (
                    left + x - width / 2,
                    top + head + y - height / 2,
                    left + x + width / 2,
                    top + head + y + height / 2,
                )
                pencil.rectangle(edges, outline="#00e05a" if right else "#ff2020", width=3)
    return sheet


def main() -> None:
    """Train, quantize, measure, draw."""
    torch.set_num_threads(1)
    model = trained()
    batches = [torch.stack([scene(10_000 + 8 * number + row)[0] for row in range(8)]) for number in range(16)]
    network = transform(model, (batches[0][:1],), target=TARGET).model
    minmax = QuantConfig(TensorQuantConfig(calibration_method=CalibrationMethod.MINMAX))
    broken = [batch.clone() for batch in batches]
    broken[5][2, 0, 7, 7] = 1e6
    models: dict[str, nn.Module] = {
        "float": model,
        "INT8": quantize(network, (batches[0][:1],), None, batches, target=TARGET),
        "INT8, a broken pixel, min-max alone": quantize(network, (batches[0][:1],), minmax, broken, target=TARGET),
        "INT8, a broken pixel, defaults": quantize(network, (batches[0][:1],), None, broken, target=TARGET),
    }
    print(quantization_of(models["INT8, a broken pixel, defaults"]))
    titles = []
    for name, candidate in models.items():
        score, mean = quality(candidate, range(20_000, 20_200))
        titles.append(f"{name}: F1 {score:.3f}, mean IoU {mean:.3f} on 200 pictures")
        print(titles[-1])
    draw(models, list(range(20_000, 20_005)), titles).save(Path(sys.argv[1]), optimize=True)


if __name__ == "__main__":
    main()
