"""Every planted fault is found and its layer named, and right files pass."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.debian import leave_off, require
from support.planted_faults import CANONICAL, FAULTS, Fault, RightFile, right_files
from support.sampled import sampled

ROOT = Path(__file__).resolve().parents[3]
MASKED = ROOT / "benchmarks/deploy/masked/__main__.py"


def check(fault: Fault) -> None:
    """A fault is found, and its layer named."""
    found = fault.verify()
    assert not found.passed, fault.name
    assert found.first_wrong == fault.layer, f"{fault.name}: {found.verdict}"
    assert f"First wrong layer: {fault.layer}." in found.verdict


def test_there_are_forty_kinds() -> None:
    """Of a file, of its making and of its data, each once; and a hundred right files."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len(set(right_files())) == 100


@pytest.mark.parametrize("kind", sampled(["pictures", "tokens"], "tokens"))
def test_faults_in_a_file(kind: str) -> None:
    """Those planted in one right file, which passes without them."""
    assert RightFile(kind, 0, CANONICAL, 500).verify().passed
    planted = [fault for fault in FAULTS if (fault.kind, fault.form, fault.is_edit) == (kind, CANONICAL, True)]
    assert len(planted) > 5
    for fault in planted:
        check(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault(fault: Fault) -> None:
    """All of them, those of the network and of the data too."""
    check(fault)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_right_files_pass(seed: int) -> None:
    """Twenty of a hundred."""
    for file in right_files():
        if file.seed == seed:
            found = file.verify()
            assert found.passed, f"{file.name}: {found.verdict}"


SINGLE = """
import sys, torch
from torch import nn
from embedl_deploy import transform
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.quantize import quantize
torch.manual_seed(0)
net, args = nn.Sequential(nn.Linear(64, 32)).eval(), (torch.rand(8, 64),)
net[0].weight.data.abs_()
target = "x86-vnni"
fused = transform(net, args, target=target).model
int8 = quantize(fused, args, forward_loop=[torch.rand(8, 64) for _ in range(4)], target=target)
path = export_onnx(int8, args, sys.argv[1], dialect="onnxruntime-x86-vnni")
found = verify(path, [torch.rand(8, 64), torch.rand(8, 64)], original=net, simulated=int8)
print(found)
print(len(found.boundaries), found.passed, found.first_wrong)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_layer_that_saturates_and_writes_float(tmp_path: Path) -> None:
    """One linear layer, on kernels without VNNI: no boundary is wrong, and the output tells, with the cause."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        leave_off("Linux on x86-64", "hiding a processor's features is for that")
    require("gcc", "gcc")
    require("objdump", "binutils")
    path = str(tmp_path / "one.onnx")
    plain = subprocess.run(
        [sys.executable, "-c", SINGLE, path], capture_output=True, text=True, timeout=250, check=True
    )
    masked = subprocess.run(
        [sys.executable, str(MASKED), "x86-avx2", sys.executable, "-c", SINGLE, path], capture_output=True, text=True,
        timeout=250, check=True,
    )  # fmt: skip
    assert masked.stdout.splitlines()[-1] == "1 False 0", masked.stdout
    assert "of exact arithmetic on the runtime's integers against the file as it runs: SQNR" in masked.stdout
    assert "no VNNI" in masked.stdout
    assert "--dialect onnxruntime-x86" in masked.stdout
    assert "FAIL" in plain.stdout if "no VNNI" in plain.stdout else plain.stdout.splitlines()[-1].startswith("1 True")
