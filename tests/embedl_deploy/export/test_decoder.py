"""A decoder's prefill and steps from one calibration: the cache goes in and comes out, lengths stay open."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from support.decoder import SHAPES, Decoder, Size, call, generate, perplexity, session_step, train, windows
from support.vision import declare_operators
from torch import fx, nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.export import export_onnx, verify, verify_shapes
from embedl_deploy.quantize import quantization_of, quantize

TARGET = "onnxruntime-x86"
FIVE = ((1, 1, 0), (1, 12, 0), (1, 1, 7), (2, 3, 5), (3, 1, 40))


def quantized(model: Decoder, length: int = 24) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """Return a decoder that was calibrated on prompts and on steps, and example inputs."""
    rows = windows(length, 12, is_test=False)
    args = call(model, rows[:2, :12], cached=5)
    network = transform(model, args, target=TARGET, dynamic_shapes=SHAPES).model
    data = [call(model, rows[:4]), call(model, rows[4:8], length - 1), call(model, rows[8:], length // 2)]
    return quantize(network, args, forward_loop=data, target=TARGET), args


@pytest.mark.slow
def test_one_file_serves_prefill_and_steps(tmp_path: Path) -> None:
    """Grouped queries, rotary embeddings, RMSNorm, SwiGLU; five shapes, an empty cache among them."""
    torch.manual_seed(0)
    model = Decoder(Size(width=32, layers=1, hidden=48)).eval().requires_grad_(False)
    simulated, args = quantized(model)
    runs = {layer.place: layer.runs for layer in quantization_of(simulated).placement.layers}
    block = "blocks.0"
    fully = ("attention.query", "attention.key", "attention.value", "attention.out", "gate", "up", "down")
    assert {runs[f"{block}.{name}"] for name in fully} == {runs["head"]} == {"quantized"}
    assert runs[f"{block}.attention.scaled_dot_product_attention"] == "float"
    path = export_onnx(simulated, args, tmp_path / "decoder.onnx", target=TARGET, dynamic_shapes=SHAPES)
    graph = onnx.load(path).graph
    cache = (*graph.input[2:], *graph.output[1:])
    # What is cached is not rounded.
    assert {value.type.tensor_type.elem_type for value in cache} == {onnx.TensorProto.FLOAT}
    assert [dim.dim_param for dim in graph.input[2].type.tensor_type.shape.dim] == ["batch", "", "cached", ""]
    samples = [call(model, windows(new + cached, rows, is_test=True), cached) for rows, new, cached in FIVE]
    result = verify_shapes(path, samples, original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
    assert [row.shape for row in result.rows] == [f"batch {rows}, new {new}, cached {old}" for rows, new, old in FIVE]
    # Steps on their own cache say what reading all at once says.
    step = session_step(path)
    row = windows(20, 1, is_test=True)
    whole = step(*call(model, row))[0][0, -1]
    inputs = call(model, row[:, :1])
    for place in range(20):
        logits, *past = step(*inputs)
        inputs = (row[:, place + 1 : place + 2], torch.tensor([[place + 1]]), *past)
    torch.testing.assert_close(logits[0, -1], whole, atol=0.05, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_a_trained_decoder_reads_and_writes_as_it_did(tied: bool, tmp_path: Path) -> None:
    """Perplexity within 1 % of float on topics it has not seen, and 64 tokens as the simulated model writes them."""
    torch.manual_seed(0)
    model = Decoder(tied=tied)
    train(model, 200)
    model.requires_grad_(False)
    simulated, args = quantized(model, 64)
    path = export_onnx(simulated, args, tmp_path / "decoder.onnx", target=TARGET, dynamic_shapes=SHAPES)
    step = session_step(path)
    rows = windows(97, 32, is_test=True)
    plain = perplexity(model, model, rows)
    assert perplexity(simulated, model, rows) == pytest.approx(plain, rel=0.01)
    assert perplexity(step, model, rows) == pytest.approx(plain, rel=0.01)
    prompt = rows[:1, :32]
    assert generate(step, prompt, model.empty_cache(), 64) == generate(simulated, prompt, model.empty_cache(), 64)


@pytest.mark.slow
def test_prefill_and_step_as_two_files_of_fixed_size(tmp_path: Path) -> None:
    """The same quantized model, exported for the shapes of each."""
    torch.manual_seed(0)
    model = Decoder(Size(width=32, layers=1, hidden=48)).eval().requires_grad_(False)
    simulated, _ = quantized(model)
    row = windows(9, 1, is_test=True)
    for name, args in {"prefill": call(model, row[:, :8]), "step": call(model, row, 8)}.items():
        path = export_onnx(simulated, args, tmp_path / f"{name}.onnx", target=TARGET)
        sizes = [dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
        assert sizes == list(args[0].shape)
        result = verify(path, [args], original=model, simulated=simulated, target=TARGET)
        assert result.passed, str(result)


class Wrapped(nn.Module):
    """A model of Hugging Face's with its cache in the open."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Make a cache, call the model, return logits and the longer cache."""
        from transformers.cache_utils import DynamicCache

        cache: Any = DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True)
        return result.logits, *(part for layer in cache.layers for part in (layer.keys, layer.values))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_hugging_faces_decoders_with_their_cache_in_the_open(kind: str, tmp_path: Path) -> None:
    """Random weights, one layer: five shapes."""
    declared = declare_operators()
    import transformers

    sizes = {"Llama": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "max_position_embeddings": 128},
             "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 128}}[kind]  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=100, **sizes)
    inner = {"Llama": "LlamaForCausalLM", "GPT2": "GPT2LMHeadModel"}[kind]
    model = Wrapped(getattr(transformers, inner)(config), 1).eval()
    groups = {"Llama": 2, "GPT2": 4}[kind]

    def inputs(rows: int, new: int, cached: int) -> tuple[torch.Tensor, ...]:
        past = (torch.randn(rows, groups, cached, 8) for _ in range(2))
        return torch.randint(100, (rows, new)), torch.arange(cached, cached + new).expand(rows, -1), *past

    args = inputs(2, 6, 4)
    network = transform(model, args, target=TARGET, dynamic_shapes=SHAPES).model
    simulated = quantize(network, args, forward_loop=[inputs(4, 8, 0), inputs(4, 1, 40)], target=TARGET)
    path = export_onnx(simulated, args, tmp_path / "net.onnx", target=TARGET, dynamic_shapes=SHAPES)
    result = verify_shapes(path, [inputs(*each) for each in FIVE], original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
    del declared


class Causal(nn.Module):
    """Attention by `is_causal` on grouped heads, with a scale of its own, behind an RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.query, self.both, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Attend to what came before."""
        inner = self.norm(value)
        query = self.query(inner).unflatten(-1, (4, 4)).transpose(1, 2)
        key, new = self.both(inner).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
        mixed = functional.scaled_dot_product_attention(query, key, new, is_causal=True, scale=0.3, enable_gqa=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


def test_causal_grouped_attention(tmp_path: Path) -> None:
    """Without a mask in the graph, for any length."""
    torch.manual_seed(0)
    model, args = Causal().eval().requires_grad_(False), (torch.randn(2, 6, 16),)
    shapes = ({0: "batch", 1: "length"},)
    network = transform(model, args, target=TARGET, dynamic_shapes=shapes).model
    simulated = quantize(network, args, forward_loop=[torch.randn(8, 9, 16), torch.randn(8, 2, 16)], target=TARGET)
    path = export_onnx(simulated, args, tmp_path / "net.onnx", target=TARGET, dynamic_shapes=shapes)
    samples = [torch.randn(1, length, 16) for length in (1, 2, 6, 9, 33)]
    result = verify_shapes(path, samples, original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
