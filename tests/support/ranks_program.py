"""One process of several: calibrates on its part of the data, trains on its part of every batch, writes what it got."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, fx, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from embedl_deploy import transform
from embedl_deploy.errors import CalibrationError
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    average_batch_norm,
    calibrate,
    freeze_batch_norm,
    insert_qdq,
    plan_qdq,
    quantization_of,
)
from support.quantized_nets import Residual, settled

RANKS = 4


def network() -> tuple[fx.GraphModule, torch.Tensor, torch.Tensor]:
    """Return a network with pairs, four batches, and targets; the same in every process."""
    torch.manual_seed(0)
    model = settled(Residual(8), 4, 3, 8, 8)
    data, targets = torch.randn(RANKS, 8, 3, 8, 8), torch.randint(0, 16, (RANKS, 8))
    fused = transform(model, (data[0],), ONNXRUNTIME).model
    return insert_qdq(fused, plan_qdq(fused, (data[0],), backend=ONNXRUNTIME)), data, targets


def ranges(model: nn.Module) -> dict[str, Any]:
    """Return every scale and range of a model, and every bin of its statistics."""
    kept = {name: value.tolist() for name, value in model.state_dict().items() if name.endswith(("scale", "bounds"))}
    found = quantization_of(model).calibration.statistics
    states = {name: histogram.to_state() for name, histogram in found.items()}
    bins = {
        name: [state["bins"].tolist(), state["counts"].tolist(), state["low_sum"]] for name, state in states.items()
    }
    return {"scales": kept, "bins": json.loads(json.dumps(bins))}


def train(model: nn.Module, value: torch.Tensor, target: torch.Tensor) -> list[float]:
    """Take five steps on a batch and return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    model.train()
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(value), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    """Run as one rank."""
    how, path = sys.argv[1:]
    torch.set_num_threads(1)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # By a file, not a port: one that was free when it was looked for is another's a moment later.
    distributed.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=count)
    model, data, targets = network()
    if how == "empty":
        try:
            calibrate(model, [] if rank else [data[0]])
        except CalibrationError as error:
            Path(path).write_text(json.dumps({"error": str(error)}))
        distributed.destroy_process_group()
        return
    calibrate(model, list(data[rank::count]))
    found: dict[str, Any] = {"ranges": ranges(model)}
    average_batch_norm(model)
    freeze_batch_norm(model)
    if how == "ddp":
        trained: nn.Module = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        trained = fully_shard(model, mesh=init_device_mesh("cpu", (count,)))  # type: ignore[assignment]
    mine = slice(rank, None, count)
    found["losses"] = train(trained, data.flatten(0, 1)[mine], targets.flatten(0, 1)[mine])
    Path(path).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
