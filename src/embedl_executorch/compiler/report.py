"""What became of each operator: given to a backend or not, why not, and which instruction of the program runs it."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

_FUSED = ("relu.default", "hardtanh.default")
# What XNNPACK's partitioner writes on Q/DQ that its kernels for integers take in.
_MELTED = "IS_IMPLICIT_Q_DQ_TAG"
_NOT_KNOWN = "the backend has no kernel for it"
# What converts or unpacks, and stands for no operator of the user's.
_HELPERS = ("quantize_per_", "dequantize_per_", "choose_qparams")


class Row(NamedTuple):
    """One operator of the lowered program."""

    operator: str  # ``aten.convolution.default``
    nodes: List[str]  # the nodes of an ONNX file that it was made from
    kinds: List[str]  # their operators
    modules: List[str]  # the modules of the user's network, the main one first
    delegated: bool
    integer: Optional[bool]  # None for what converts
    melted: bool  # whether the operator beside it does what this one says: Q/DQ of a kernel for integers
    reason: str  # why it was not given to the backend
    instruction: Optional[int] = None
    handle: Optional[int] = None


class Reasons:
    """Keeps what partitioners say of nodes that they leave; they would only log it."""

    def __init__(self) -> None:
        self.of_node: Dict[str, str] = {}
        self._before: Any = None

    def __enter__(self) -> Reasons:  # noqa: PYI034 - Python 3.8 has no Self
        from executorch.exir.backend import utils

        self._before, kept = utils.WhyNoPartition.__call__, self.of_node

        def note(_: Any, node: Any, reason: str) -> None:
            kept.setdefault(str(node.name), str(reason))

        utils.WhyNoPartition.__call__ = note
        return self

    def __exit__(self, *_: object) -> None:
        from executorch.exir.backend import utils

        utils.WhyNoPartition.__call__ = self._before


class Rows(NamedTuple):
    """The operators of a program before it is written."""

    rows: List[Row]

    def with_instructions(self, made: Any) -> List[Row]:
        """Return the operators with the instructions that run them."""
        found: Dict[Any, int] = {}
        for instruction, handles in made.debug_handle_map.get("forward", {}).items():
            for handle in handles if isinstance(handles, (list, tuple)) else [handles]:
                found.setdefault(handle, int(instruction))
        return [row._replace(instruction=found.get(row.handle)) for row in self.rows]


def described(edge: Any, nodes: Dict[str, List[Dict[str, str]]], reasons: Reasons) -> Rows:
    """Return what became of each operator, in the order of the program."""
    program = edge.exported_program()
    rows: List[Row] = []
    for node in program.graph.nodes:
        if node.op == "call_function" and "call_delegate" in str(node.target):
            module = getattr(program.graph_module, node.args[0].target)
            rows += [_row(inner, nodes, None) for inner in module.original_module.graph.nodes if _computes(inner)]
        elif _computes(node):
            rows.append(_row(node, nodes, reasons))
    return Rows(rows)


def _computes(node: Any) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem and "getitem" not in str(node.target)


def _row(node: Any, nodes: Dict[str, List[Dict[str, str]]], reasons: Optional[Reasons]) -> Row:
    name = _name(node.target)
    sources, modules = _origin(node, nodes)
    if "dequantize" in name and not any(each["operator"] == "DequantizeLinear" for each in sources):
        # It stands before an operator, and for none.
        sources, modules = [], []
    reason = "" if reasons is None else reasons.of_node.get(node.name, _NOT_KNOWN)
    handle = node.meta.get("debug_handle")
    return Row(
        name, [each["name"] for each in sources], [each["operator"] for each in sources], modules,
        reasons is None, _is_integer(node, name), bool(node.meta.get(_MELTED)), reason,
        handle=handle if isinstance(handle, int) else None,
    )  # fmt: skip


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target)).replace("aten_", "aten.", 1)


def _origin(node: Any, nodes: Dict[str, List[Dict[str, str]]]) -> Tuple[List[Dict[str, str]], List[str]]:
    """Return the ONNX nodes that an operator comes from, or the module of the user's network."""
    path = _path(node.meta.get("nn_module_stack") or {})
    if nodes:
        found = nodes.get(path.split(".", 1)[0], [])
        return found, [each["module"] for each in found if each["module"]][:1]
    return [], [path] if path else []


def _path(stack: Any) -> str:
    names = [str(entry[0]) for entry in stack.values() if isinstance(entry, (list, tuple)) and entry]
    return max(names, key=len) if names else ""


def _is_integer(node: Any, name: str) -> Optional[bool]:
    """Tell whether an operator has integers on both sides, which is what makes a kernel for integers of it."""
    if any(helper in name for helper in _HELPERS):
        return None
    live = [each for each in node.all_input_nodes if each.op == "call_function"]
    if len(live) == 1 and name.endswith(_FUSED) and len(live[0].users) == 1:
        before = _name(live[0].target)
        if "quantize" not in before and _is_integer(live[0], before):
            return True
    if not live or not all(each.meta.get(_MELTED) for each in live):
        return False
    # A linear layer that rounds its input itself gives float; any other kernel for integers gives integers.
    return _ends_in_integers(node) or "linear" in name


def _ends_in_integers(node: Any) -> bool:
    users: Sequence[Any] = list(node.users)
    if len(users) == 1 and _name(users[0].target).endswith(_FUSED):
        users = list(users[0].users)
    return bool(users) and all("quantized_decomposed.quantize" in _name(user.target) for user in users)
