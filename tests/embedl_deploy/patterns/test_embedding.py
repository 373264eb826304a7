"""Tables of embeddings in INT8, where a user allows it."""

from pathlib import Path

import onnx
import pytest
import torch
from support.quantized_nets import ratio_db
from torch import nn

from embedl_deploy import transform
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.nn import Int8Embedding
from embedl_deploy.quantize import quantize

TARGET = "onnxruntime-x86"


class Words(nn.Module):
    """An embedding, its norm, a fully connected layer."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 32, **options)  # type: ignore[arg-type]
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 8)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Look up and multiply."""
        result: torch.Tensor = self.head(self.norm(self.table(numbers)))
        return result


def test_rows_are_rounded_apart() -> None:
    """A large row does not cost a small one its bits, and a row of zeros stays zero."""
    table = nn.Embedding(3, 64)
    with torch.no_grad():
        table.weight[0] *= 1000
        table.weight[2] = 0
    found = Int8Embedding(table)(torch.arange(3))
    assert ratio_db(table.weight[1].detach(), found[1]) > 40
    assert not found[2].any()


def test_the_file_has_integers_and_is_right(tmp_path: Path) -> None:
    """A quarter of the table, and the file says what the simulated model says."""
    torch.manual_seed(0)
    model, args = Words().eval(), (torch.randint(200, (4, 9)),)
    network = transform(model, args, target=TARGET, allow_lossy=True).model
    assert isinstance(network.get_submodule("table"), Int8Embedding)
    simulated = quantize(network, args, forward_loop=[torch.randint(200, (16, 9))], target=TARGET)
    path = export_onnx(simulated, args, tmp_path / "net.onnx", target=TARGET)
    tables = [value for value in onnx.load(path).graph.initializer if list(value.dims) == [200, 32]]
    assert [value.data_type for value in tables] == [onnx.TensorProto.INT8]
    result = verify(path, [torch.randint(200, (4, 9))], original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
    assert min(row.sqnr_db for row in result.outputs) > 30


def test_it_is_off_unless_allowed() -> None:
    """A table of floats is what the user has."""
    model, args = Words().eval(), (torch.randint(200, (4, 9)),)
    assert isinstance(transform(model, args, target=TARGET).model.get_submodule("table"), nn.Embedding)


@pytest.mark.parametrize(
    ("options", "training", "reason"), [({"max_norm": 1.0}, False, "max_norm"), ({}, True, "eval()")]
)
def test_what_changes_while_it_is_read_is_refused(options: dict[str, float], training: bool, reason: str) -> None:
    """With the reason in the report."""
    model, args = Words(**options).train(training), (torch.randint(200, (4, 9)),)
    result = transform(model, args, target=TARGET, allow_lossy=True)
    assert any(reason in refusal.reason for refusal in result.report.refusals if "Embedding" in refusal.pattern)
    assert isinstance(result.model.get_submodule("table"), nn.Embedding)
