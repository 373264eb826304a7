"""LSTM and GRU stay float, with the reason in the plan; what stands behind them is quantized and exported right."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy.errors import QuantizationError
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.quantize import quantization_of, quantize

TARGET = "onnxruntime-x86"


class Recurrent(nn.Module):
    """A recurrent layer and a head; its state goes in and comes out where there is one."""

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Read a sequence from zero on."""
        result: torch.Tensor = self.head(self.layer(value)[0])
        return result


class Stateful(Recurrent):
    """The same with its state in the open."""

    def forward(self, value: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Read a sequence from a state on."""
        result, new = self.layer(value, state if len(state) > 1 else state[0])
        return self.head(result), *(new if isinstance(new, tuple) else (new,))


def nets(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network and its inputs."""
    torch.manual_seed(0)
    kind: type[nn.LSTM | nn.GRU] = nn.LSTM if name.startswith("lstm") else nn.GRU
    batch_first = "batch first" in name
    layer = kind(8, 16, num_layers=2 if "deep" in name else 1, batch_first=batch_first, bidirectional="both" in name)
    value = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    if "state" not in name:
        return Recurrent(layer).eval(), (value,)
    return Stateful(layer).eval(), (value, *(torch.randn(1, 3, 16) for _ in range(2 if kind is nn.LSTM else 1)))


SLOW = ("lstm", "gru", "lstm both ways", "gru state", "lstm deep", "gru deep batch first")
NETS = (
    "lstm batch first state",
    "gru both ways batch first",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
)


@pytest.mark.parametrize("name", NETS)
def test_the_head_behind_it_is_quantized_and_the_file_is_right(name: str, tmp_path: Path) -> None:
    """The recurrent operator is in the file as it was, on float values."""
    model, args = nets(name)
    network = transform(model, args, target=TARGET).model
    simulated = quantize(network, args, forward_loop=[args], target=TARGET)
    rows = {layer.place: layer for layer in quantization_of(simulated).placement.layers}
    assert rows["head"].quantized
    assert not any(layer.quantized for place, layer in rows.items() if place != "head")
    path = export_onnx(simulated, args, tmp_path / "net.onnx", target=TARGET)
    nodes = onnx.load(path).graph.node
    wanted = "LSTM" if name.startswith("lstm") else "GRU"
    found = [node for node in nodes if node.op_type == wanted]
    assert len(found) == (2 if "deep" in name else 1)
    made_by = {output: node.op_type for node in nodes for output in node.output}
    assert not any(made_by.get(value) == "DequantizeLinear" for node in found for value in node.input)
    result = verify(path, [args], original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)


def test_the_plan_says_why_a_recurrent_layer_stays_float() -> None:
    """In a network that torch.fx traces, it is a layer of its own."""
    model, args = nets("lstm batch first")
    network = transform(model, args, target=TARGET).model
    rows = {layer.place: layer for layer in quantization_of(quantize(network, args, target=TARGET)).placement.layers}
    assert (rows["layer"].layer, rows["layer"].runs) == ("LSTM", "float")
    assert "quantized kernel" in rows["layer"].rule


def test_a_network_of_nothing_else_is_refused_by_name() -> None:
    """The error names the operator and what to do."""
    layer = nn.GRU(8, 16)
    network = transform(layer.eval(), (torch.randn(5, 3, 8),), target=TARGET).model
    with pytest.raises(QuantizationError, match=r"quantizes: it has .*(GRU|gru)"):
        quantize(network, (torch.randn(5, 3, 8),), target=TARGET)
