"""What does writing a quantized model cost next to torch.onnx.export of the float one, in CPU time?

Both sides in turn, in one process; what stands above the least is other work's.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import report  # noqa: E402
from figures import Figure, least  # noqa: E402
from support import deploy_zoo as zoo  # noqa: E402

from embedl_deploy import transform  # noqa: E402
from embedl_deploy.export import export_onnx  # noqa: E402
from embedl_deploy.quantize import quantize  # noqa: E402

TARGET = "onnxruntime-x86"
NETWORKS = (
    "tv:resnet50", "timm:efficientnet_b0", "timm:mobileone_s0", "timm:mobilenetv4_conv_small", "timm:convnext_atto",
    "timm:vit_tiny_patch16_224", "hf:bert", "hf:segformer",
)  # fmt: skip
MOST = 1.5
MOST_SECONDS = {"timm:mobileone_s0": 20.0}


def build(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Build a network and its example inputs."""
    family, _, one = name.partition(":")
    if family == "hf":
        model, kwargs = zoo.hugging_face(one)
        return model, (), kwargs
    model, args = zoo.timm_model(one) if family == "timm" else zoo.torchvision_model(one)
    return model, args, {}


def seconds(work: Callable[[], object]) -> float:
    """Take the processor's time for one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def cost(name: str, rounds: int) -> dict[str, list[float]]:
    """Export both ways, in turn."""
    model, args, kwargs = build(name)
    given = kwargs or None
    transformed = transform(model, args, target=TARGET, kwargs=given).model
    quantized = quantize(transformed, args, None, [kwargs or args], target=TARGET, kwargs=given)
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        for _ in range(rounds):
            plain.append(
                seconds(lambda: torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, verbose=False))
            )
            ours.append(seconds(lambda: export_onnx(quantized, args, path, target=TARGET, kwargs=given)))
    return {"ours_s": ours, "plain_s": plain}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    found = []
    for name, row in data["networks"].items():
        made = least(f"export, {name}", "s", row["ours_s"], "torch.onnx.export of the float model", row["plain_s"])
        limit = MOST_SECONDS.get(name)
        words = f"at most {MOST:g}" + (f", and {limit:g} s" if limit else "")
        found.append(made.required(words, made.value <= MOST and (limit is None or made.ours <= limit)).in_short())
    return found


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    session = report.Session("export", parser, options)
    torch.set_num_threads(1)
    data = {"networks": {name: cost(name, options.rounds) for name in options.only}}
    session.finish(data, figures(data), packages=("torch", "onnx", "onnxscript", "timm", "torchvision", "transformers"))


if __name__ == "__main__":
    main()
