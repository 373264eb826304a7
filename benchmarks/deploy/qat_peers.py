"""Opponents that train with fake quantization and calibrate on a GPU, each with what its documentation recommends.

They run in the process of the benchmark, in turns with ours; one that is not installed is reported as missing.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batches = list[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Peer:
    """An opponent: a network that is ready to be trained, and a pass over calibration data."""

    name: str
    distribution: str
    trained: Callable[[nn.Module, Batches], nn.Module]
    calibration: Callable[[nn.Module, Batches], Callable[[], Any]]


def version(peer: Peer) -> str:
    """Return the installed version, or that there is none."""
    try:
        return importlib.metadata.version(peer.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "missing: not installed"


def _run(model: nn.Module, batches: Batches) -> None:
    with torch.no_grad():
        for args in batches:
            model(*args)


def _modelopt_trained(model: nn.Module, batches: Batches) -> nn.Module:
    import modelopt.torch.quantization as mtq  # noqa: PLC0415 - an opponent

    made: nn.Module = mtq.quantize(model.eval(), mtq.INT8_DEFAULT_CFG, lambda net: _run(net, batches[:1]))
    return made.train()


def _modelopt_calibration(model: nn.Module, batches: Batches) -> Callable[[], Any]:
    import modelopt.torch.quantization as mtq  # noqa: PLC0415 - an opponent

    made: nn.Module = mtq.quantize(model.eval(), mtq.INT8_DEFAULT_CFG, lambda net: _run(net, batches[:1]))
    made.eval()
    # "max" keeps the largest magnitude alone; it is what INT8_DEFAULT_CFG has.
    return lambda: mtq.calibrate(made, algorithm="max", forward_loop=lambda net: _run(net, batches))


def _torchao_prepared(model: nn.Module, batches: Batches, *, qat: bool) -> nn.Module:
    from torchao.quantization.pt2e import quantize_pt2e  # noqa: PLC0415 - an opponent
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86  # noqa: PLC0415

    model = model.train() if qat else model.eval()
    dims = {0: torch.export.Dim("batch", min=2, max=1024)}
    exported = torch.export.export(model, batches[0], dynamic_shapes=(dims,)).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=qat))
    prepare = quantize_pt2e.prepare_qat_pt2e if qat else quantize_pt2e.prepare_pt2e
    made: nn.Module = prepare(exported, quantizer)
    return made.to(batches[0][0].device)


def _torchao_trained(model: nn.Module, batches: Batches) -> nn.Module:
    from torchao.quantization.pt2e import move_exported_model_to_train  # noqa: PLC0415 - an opponent

    made = _torchao_prepared(model, batches, qat=True)
    move_exported_model_to_train(made)
    return made


def _torchao_calibration(model: nn.Module, batches: Batches) -> Callable[[], Any]:
    made = _torchao_prepared(model, batches, qat=False)
    # Histograms keep what they saw: a fresh copy every time, as a first pass is what users wait for.
    return lambda: _run(copy.deepcopy(made), batches)


PEERS = (
    Peer("ModelOpt", "nvidia-modelopt", _modelopt_trained, _modelopt_calibration),
    Peer("torchao", "torchao", _torchao_trained, _torchao_calibration),
)
