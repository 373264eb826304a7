"""The way of a Q/DQ file: match, plan, write, and leave float what the runtime refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .flat import Flat
from .matching import Match, match
from .plan import Plan, Planner
from .rewrite import QUANTIZED, Rewriter, fold_linear_layers

if TYPE_CHECKING:
    import numpy as np

    from .qdq import QdqFile, Refused

_REFUSED_NODE = re.compile(r"[Nn]ode number (\d+) \((\w+)\) failed to prepare")
_MOST_TRIES = 24


class CannotCarryError(Exception):
    """The file's numbers cannot be carried over; the text is for the user."""


@dataclass(frozen=True)
class Carried:
    """An INT8 model, and what its file says that it does not do."""

    integer_operators: int
    float_operators: int
    refused: tuple[Refused, ...]
    nodes: Mapping[str, tuple[str, ...]]  # the source's nodes by the tensors they became
    steps: Mapping[str, float]  # scales of rounded outputs, by the source's names


def carry_over(
    file: QdqFile, floats: Path, sample: Mapping[str, np.ndarray], feed: Mapping[int, np.ndarray], target: Path,
    *, quantize_io: bool,
) -> Carried:  # fmt: skip
    """Write a Q/DQ file's integers and formats into the float model that was converted of it.

    Args:
        file: The file, taken apart.
        floats: The converted float model.
        sample: Data in the source's names and layouts.
        feed: The same data for the converted model, by tensor.
        target: Where to write.
        quantize_io: Whether inputs and outputs are integers, where the file rounds them.
    """
    matched = match(file.model, floats, sample, feed)
    left: dict[int, str] = {}
    for _ in range(_MOST_TRIES):
        flat = Flat(floats)
        if len(flat.model.subgraphs) > 1:
            raise CannotCarryError("The model has branches or loops, and its Q/DQ cannot be carried over to TFLite.")
        fold_linear_layers(flat, file, _rounded(file, matched))
        plan = Planner(file, flat, matched, left).plan()
        kinds = {number: flat.op_type(operator) for number, operator in enumerate(flat.operators)}
        outputs = {number: [flat.name(int(out)) for out in op.outputs] for number, op in enumerate(flat.operators)}
        rewriter = Rewriter(flat, plan, file, quantize_io=quantize_io)
        rewriter.run()
        flat.write(target)
        refusal = _refusal(target)
        if refusal is None:
            return _carried(file, plan, kinds, outputs)
        number, reason = refusal
        before = rewriter.numbers[number] if 0 <= number < len(rewriter.numbers) else -1
        if before not in plan.integer:
            raise CannotCarryError(f"LiteRT does not take what became of the Q/DQ: {reason}")
        left[before] = f"LiteRT's kernel refuses these integers: {reason}"
    raise CannotCarryError("LiteRT refuses too many of the file's integer operators.")


def _rounded(file: QdqFile, matched: Match) -> set[int]:
    """Return the converted model's tensors that the file rounds."""
    nodes = {node.name: node for node in file.model.graph.node}
    names = {nodes[edge[0]].input[edge[1]] for edge in file.edges if edge[0] in nodes} | set(file.outputs)
    numbers = {matched.of_source[name] for name in names if name in matched.of_source}
    return {index for index, number in matched.of_converted.items() if number in numbers}


def _refusal(path: Path) -> tuple[int, str] | None:
    """Return which operator the runtime refuses, and its words."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    for resolver in (OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO):
        try:
            Interpreter(model_path=str(path), experimental_op_resolver_type=resolver).allocate_tensors()
        except (RuntimeError, ValueError) as error:
            found = _REFUSED_NODE.search(str(error))
            text = " ".join(str(error).split())[:200]
            return (int(found.group(1)) if found else -1), text
    return None


def _carried(file: QdqFile, plan: Plan, kinds: Mapping[int, str], outputs: Mapping[int, list[str]]) -> Carried:
    integer = sum(number in plan.integer for number in kinds)
    nodes = {name: plan.sources[number] for number, names in outputs.items() for name in names}
    nodes |= {f"{name}{QUANTIZED}": found for name, found in nodes.items()}
    steps = {name: chain[-1].scale for name, chain in file.outputs.items()}
    refused = dict.fromkeys((*file.refused, *plan.refused))
    return Carried(integer, len(kinds) - integer, tuple(refused), nodes, steps)
