"""A small decoder language model with its cache in the open, and a text that comes with Python to train it on.

As in Llama: token embedding, RMSNorm, rotary embeddings, grouped-query attention, SwiGLU, a head without a bias. The
cache is keys and values per layer, given to `forward` and returned longer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import onnxruntime
import torch
from torch import nn
from torch.nn import functional

SHAPES = {
    "tokens": {0: "batch", 1: "new"},
    "positions": {0: "batch", 1: "new"},
    "past": {0: "batch", 2: "cached"},
}
"""The open dimensions of a decoder's inputs."""
_EVERY = 8  # each eighth topic of Python's help is for the test


@dataclass(frozen=True)
class Size:
    """How large a decoder is."""

    vocabulary: int = 128
    width: int = 64
    layers: int = 2
    heads: int = 4
    groups: int = 2  # heads of keys and values
    hidden: int = 176
    longest: int = 512  # positions that rotary embeddings are made for

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.width // self.heads


def rotate(value: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn the halves of each head by their position's angles."""
    first, second = value.chunk(2, -1)
    return value * cosine + torch.cat((-second, first), -1) * sine


class Attention(nn.Module):
    """Grouped-query attention over what is cached and what is new."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, size.groups * size.head_width, bias=False)
        self.value = nn.Linear(size.width, size.groups * size.head_width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def _split(self, value: torch.Tensor, heads: int) -> torch.Tensor:
        return torch.unflatten(value, -1, (heads, self.size.head_width)).transpose(1, 2)

    def forward(
        self,
        value: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attend; return the result and the longer keys and values."""
        query = rotate(self._split(self.query(value), self.size.heads), *angles)
        key = rotate(self._split(self.key(value), self.size.groups), *angles)
        keys = torch.cat((past[0], key), 2)
        values = torch.cat((past[1], self._split(self.value(value), self.size.groups)), 2)
        mixed = functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2)), keys, values


class Block(nn.Module):
    """Attention and a gated perceptron, each on a norm and added to what came in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.attention = Attention(size)
        self.second_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(
        self,
        value: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the result and the longer keys and values."""
        mixed, keys, values = self.attention(self.first_norm(value), angles, mask, past)
        value = value + mixed
        inner = self.second_norm(value)
        return value + self.down(functional.silu(self.gate(inner)) * self.up(inner)), keys, values


class Decoder(nn.Module):
    """A decoder: tokens, their positions and the cache go in; logits and the longer cache come out."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, size: Size | None = None, *, tied: bool = False) -> None:
        super().__init__()
        self.size = size = size or Size()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02 if tied else 1.0)
        if tied:
            self.head.weight = self.embed.weight
        steps = 10_000.0 ** -(torch.arange(0, size.head_width, 2) / size.head_width)
        angles = torch.outer(torch.arange(size.longest), steps).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits of every new token, and keys and values of every layer.

        Args:
            tokens: (batch, new).
            positions: (batch, new), how many tokens stand before each.
            past: Keys and values of every layer in turn, (batch, groups, cached, head width).
        """
        value = self.embed(tokens)
        angles = self.cosine[positions][:, None], self.sine[positions][:, None]
        seen = torch.arange(past[0].shape[2] + tokens.shape[1], device=tokens.device)
        mask = (seen <= positions[:, :, None])[:, None]
        present = []
        for index, block in enumerate(self.blocks):
            value, keys, values = block(value, angles, mask, (past[2 * index], past[2 * index + 1]))
            present += [keys, values]
        return self.head(self.norm(value)), *present

    def empty_cache(self, batch: int = 1) -> tuple[torch.Tensor, ...]:
        """Return the cache before the first token."""
        return tuple(torch.zeros(batch, self.size.groups, 0, self.size.head_width) for _ in range(2 * self.size.layers))


def call(model: Decoder, tokens: torch.Tensor, cached: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the inputs for the last tokens of rows, the first so many of them in the cache."""
    past = model.empty_cache(len(tokens))
    if cached:
        with torch.no_grad():
            _, *past = model(*call(model, tokens[:, :cached]))
    positions = torch.arange(cached, tokens.shape[1]).expand(len(tokens), -1)
    return tokens[:, cached:], positions, *past


@cache
def text(*, is_test: bool) -> torch.Tensor:
    """Return Python's help on its topics as characters' numbers; a topic is for training or for the test."""
    chosen = [topics[name] for place, name in enumerate(sorted(topics)) if (place % _EVERY == 0) is is_test]
    codes = "\n".join(chosen).encode("ascii", "replace")
    return torch.tensor(list(codes))


def windows(length: int, count: int, *, is_test: bool, seed: int = 0) -> torch.Tensor:
    """Return stretches of the text, drawn at random."""
    source = text(is_test=is_test)
    starts = torch.randint(len(source) - length, (count,), generator=torch.Generator().manual_seed(seed))
    return source[starts[:, None] + torch.arange(length)]


def train(model: Decoder, steps: int, *, length: int = 64, batch: int = 32, rate: float = 3e-3) -> float:
    """Train a decoder to continue the text; return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    rows = windows(length + 1, steps * batch, is_test=False).view(steps, batch, -1)
    loss = torch.zeros(())
    model.train()
    for row in rows:
        logits = model(*call(model, row[:, :-1]))[0]
        loss = functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


Step = Callable[..., Sequence[torch.Tensor]]


def generate(step: Step, prompt: torch.Tensor, cache: Sequence[torch.Tensor], count: int) -> list[int]:
    """Read a prompt, (1, length), at once, then write so many tokens one by one, the likeliest each time."""
    tokens, position, written = prompt, 0, list[int]()
    for _ in range(count):
        positions = torch.arange(position, position + tokens.shape[1])[None]
        logits, *cache = step(tokens, positions, *cache)
        position += tokens.shape[1]
        written.append(int(logits[0, -1].argmax()))
        tokens = torch.tensor([written[-1:]])
    return written


def perplexity(step: Step, model: Decoder, rows: torch.Tensor) -> float:
    """Return how many characters a decoder hesitates between on rows of text, from the second one on."""
    total = 0.0
    for row in torch.split(rows, 8):
        logits = step(*call(model, row[:, :-1]))[0]
        total += float(functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="sum"))
    return math.exp(total / rows[:, 1:].numel())


def session_step(path: Path) -> Step:
    """Return a file in ONNX Runtime as a step, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, feed)]

    return step
