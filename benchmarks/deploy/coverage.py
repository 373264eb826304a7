"""Which models transform, with which fusions and refusals, and are the outputs equal?

torchvision's classification and segmentation models and a list of Hugging Face ones, all with random weights (batch
norm statistics from a few batches), through the TensorRT backend; and four networks through the Lattice backend.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import report  # noqa: E402
from figures import Figure, bounded, declared  # noqa: E402
from support import deploy_zoo  # noqa: E402

from embedl_deploy import transform  # noqa: E402
from embedl_deploy.lattice import LATTICE_PATTERNS, check  # noqa: E402
from embedl_deploy.tensorrt import TENSORRT_PATTERNS  # noqa: E402

TOLERANCE = 1e-4
LATTICE_MODELS = ("resnet18", "mobilenet_v2", "vgg11", "yolo")


def measure(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Transform a model and note what came of it."""
    started = time.perf_counter()
    report = transform(model, args, TENSORRT_PATTERNS, kwargs=kwargs).report
    assert report.proof is not None
    fusions = [done for done in report.done if done.step.phase.value == "fusion"]
    worst = max((done.proof.relative_error for done in report.done if done.proof is not None), default=0.0)
    return {
        "route": report.route,
        "error": report.proof.relative_error,
        "range": report.proof.scale,
        "fault": report.proof.fault,
        "worst_step": worst,
        "conversions": len(report.done) - len(fusions),
        "fusions": len(fusions),
        "counts": report.counts(),
        "refusals": [str(refusal) for refusal in report.refusals],
        "left": report.left,
        "seconds": round(time.perf_counter() - started, 2),
    }


def lattice(name: str) -> dict[str, Any]:
    """Bring a network into Lattice's set and note what is outside before and after."""
    model, args = deploy_zoo.yolo() if name == "yolo" else deploy_zoo.torchvision_model(name, size=224)
    before = check(model, args)
    result = transform(model, args, LATTICE_PATTERNS)
    after = check(result.model, args)
    assert result.report.proof is not None
    return {
        "layers": " then ".join(f"{len(one.outside)} of {len(one.layers)} outside" for one in (before, after)),
        "convolutions_outside": [layer.place for layer in after.outside if "Conv" in layer.kind],
        "outside": sorted({layer.kind for layer in after.outside}),
        "error": result.report.proof.relative_error,
        "counts": result.report.counts(),
    }


def line(name: str, row: dict[str, Any]) -> str:
    """Set one model as a row of the table."""
    verdict = "equal" if not row["fault"] and row["error"] <= TOLERANCE else "WRONG"
    left = ", ".join(f"{count} {kind}" for kind, count in row["left"].items()) or "-"
    cells = (
        row["route"],
        f"{row['error']:.1e}",
        verdict,
        row["conversions"],
        row["fusions"],
        len(row["refusals"]),
        left,
    )
    return "| " + " | ".join(map(str, (name, *cells))) + " |"


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    rows = data["tensorrt"].values()
    right = sum(not row["fault"] and row["error"] <= TOLERANCE for row in rows)
    worst = max(row["error"] for row in rows)
    return [
        declared(f"networks that transform with equal outputs, of {len(rows)}", "", right, 0)
        .at_least(len(rows))
        .in_short(),
        bounded("the worst output's distance from the original, of its range", "", worst, 1e-6).in_short(),
    ]


def main() -> None:
    """Print the tables."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="*", help="names of models; all when left out")
    options = parser.parse_args()
    session = report.Session("coverage", parser, options)
    torch.set_num_threads(1)
    names = [*deploy_zoo.classification_names(), *deploy_zoo.SEGMENTATION]
    names += [f"hf:{name}" for name in deploy_zoo.HUGGING_FACE]
    rows: dict[str, dict[str, Any]] = {}
    print("| model | route | error / range | outputs | conversions | fusions | refusals | layers with weights left |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names if options.only is None else options.only:
        if name.startswith("hf:"):
            model, kwargs = deploy_zoo.hugging_face(name.removeprefix("hf:"))
            rows[name] = measure(model, (), kwargs)
        else:
            model, args = deploy_zoo.torchvision_model(name)
            rows[name] = measure(model, args)
        print(line(name, rows[name]), flush=True)
    right = sum(not row["fault"] and row["error"] <= TOLERANCE for row in rows.values())
    print(f"\n{right} of {len(rows)} transform with outputs equal within {TOLERANCE:g} of the range.\n")
    boards = {} if options.only is not None else {name: lattice(name) for name in LATTICE_MODELS}
    for name, row in boards.items():
        inside = "every convolution inside" if not row["convolutions_outside"] else str(row["convolutions_outside"])
        print(f"Lattice, {name}: {row['layers']}; {inside}; error {row['error']:.1e}; still outside: {row['outside']}")
    data = {"tensorrt": rows, "lattice": boards}
    session.finish(data, figures(data), packages=("torch", "torchvision", "transformers"))


if __name__ == "__main__":
    main()
