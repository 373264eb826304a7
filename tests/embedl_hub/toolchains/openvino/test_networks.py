"""Twelve networks on OpenVINO: float answers, INT8 answers, and where operators run, against what was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from deploy.runtime_nets import NETWORKS, build, inputs

from embedl_deploy import transform
from embedl_deploy.dialect import check, lower
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.compile import OpenVINOCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.invoke import OpenVINOInvoker
from embedl_hub.testing import temporary_context

SHARE = 1e-3
LOSS_DB = 1.0
# Operators that run where it was predicted, of all that OpenVINO tells of.
AGREEING = 0.99
SEEN = (70, 71, 72, 73)

Arrays = list[np.ndarray]


def flat(answer: Any) -> Arrays:
    """Return all outputs of a network."""
    return [each.numpy() for each in (answer if isinstance(answer, tuple | list) else (answer,))]


def answers(ctx: HubContext, path: Path, name: str) -> Arrays:
    """Return what OpenVINO answers to the samples."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    compiled = OpenVINOCompiler().run(ctx, path)
    outputs = [value.name for value in onnx.load(path, load_external_data=False).graph.output]
    found: Arrays = []
    for seed in SEEN:
        data = {title: value.numpy() for title, value in zip(names, inputs(name, seed), strict=True)}
        answer = OpenVINOInvoker().run(ctx, compiled, data).output
        found += [answer[title] for title in outputs]
    return found


def decibels(wanted: Arrays, found: Arrays) -> float:
    """Return the ratio of signal to noise."""
    noise = sum(float(np.sum((one - two) ** 2)) for one, two in zip(found, wanted, strict=True))
    return float(10 * np.log10(sum(float(np.sum(each**2)) for each in wanted) / noise))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network(name: str, here: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Float within a thousandth of the range, INT8 within 1 dB of the simulation, 99 % of operators as predicted."""
    model, example = build(name), inputs(name, 0)
    calibration = [inputs(name, seed) for seed in range(8)]
    fused = transform(model, example, ONNXRUNTIME).model
    simulated = quantize(
        fused, example, forward_loop=[each if len(each) > 1 else each[0] for each in calibration], backend=ONNXRUNTIME
    )
    with torch.no_grad():
        wanted = [each for seed in SEEN for each in flat(model(*inputs(name, seed)))]
        hoped = [each for seed in SEEN for each in flat(simulated(*inputs(name, seed)))]
    plain = export_onnx(fused, example, tmp_path / "float.onnx")
    canonical = onnx.load(export_onnx(simulated, example, tmp_path / "canonical.onnx"))
    samples = [tuple(value.numpy() for value in each) for each in calibration[:4]]
    onnx.save(lower(canonical, "openvino", samples=samples), tmp_path / "int8.onnx")
    with temporary_context([here]) as ctx:
        floats, integers = (answers(ctx, path, name) for path in (Path(plain), tmp_path / "int8.onnx"))
    share = max(float(np.abs(one - two).max() / np.ptp(two)) for one, two in zip(floats, wanted, strict=True))
    loss = decibels(wanted, hoped) - decibels(wanted, integers)
    contract = check(tmp_path / "int8.onnx", "openvino")
    told = [row for row in contract.rows if row.in_integers is not None]
    agreeing = sum(row.agrees for row in told)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what this test is for
            f"\n{name}: float off by {share:.1e} of the range; INT8 {decibels(wanted, integers):.1f} dB, simulated "
            f"{decibels(wanted, hoped):.1f} dB; {agreeing} of {len(told)} operators run as predicted"
        )
    assert share < SHARE
    assert loss < LOSS_DB
    assert agreeing >= AGREEING * len(told), contract
