"""LiteRT's arena as the runtime laid it out: the address of every tensor, so offsets, sizes and its extent are its own.

The interpreter's Python side gives views of tensors once they are allocated. Those that operators write and the model's
inputs lie in one block, and so do the temporary tensors of kernels, which have numbers after the file's own. What a
delegate such as XNNPACK takes for itself is not told; the C library's count of what was allocated says how much it is.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

METHOD = "addresses of the tensors in LiteRT's arena, as the runtime laid it out"
_ALIGNMENT = 64
_DELEGATE = "delegate"


class Region(NamedTuple):
    """A tensor in the arena; ``first`` and ``last`` are the operators between which it must stay."""

    name: str
    start: int
    size: int
    first: int
    last: int


def arena_of(interpreter: Any) -> Dict[str, Any]:
    """Return the document's part on memory for an interpreter whose tensors are allocated."""
    inner = interpreter._interpreter  # noqa: SLF001 - temporary tensors have no other way to them
    operators = interpreter._get_ops_details()  # noqa: SLF001 - neither have operators
    inputs = [int(each["index"]) for each in interpreter.get_input_details()]
    kept = set(inputs) | {int(each["index"]) for each in interpreter.get_output_details()}
    delegates = [str(each["op_name"]) for each in operators if _DELEGATE in str(each["op_name"]).lower()]
    names, views = _views(interpreter, inner)
    first, last = _lives(operators, inputs, kept)
    named = [
        Region(names.get(index, str(index)), start, size, first[index], last.get(index, len(operators)))
        for index, (start, size) in views.items()
        if index in first and size
    ]
    if not named:
        return missing("the runtime shows no tensor of its arena")
    # Kernels add theirs behind the file's own, some with names.
    used = [int(index) for each in operators for kind in ("inputs", "outputs") for index in each[kind]]
    temporaries = [views[index] for index in sorted(views) if index > max(used + inputs)]
    low, high = _extent(named, temporaries)
    persistent = _stacked([size for start, size in temporaries if not low <= start < high])
    found = {
        "method": METHOD,
        "arena_bytes": high - low + persistent,
        "persistent_bytes": persistent,
        "peak_layer": None,
        "tensors": [dict(each._asdict(), start=each.start - low) for each in named],
        "temporaries": [
            {"start": start - low if low <= start < high else None, "size": size} for start, size in temporaries
        ],
        "rows": [],
        "missing_because": None,
    }  # type: Dict[str, Any]
    if delegates:
        reason = "{} of {} operators, which have memory of their own that LiteRT does not tell".format(
            delegates[0], len(operators) - len(delegates)
        )
        return dict(found, missing_because=reason, tensors=[], temporaries=[])
    rows = _rows(operators, named)
    at = max(range(len(rows)), key=lambda number: rows[number]["in_use_bytes"])
    return dict(found, rows=rows, peak_layer=rows[at]["name"])


def missing(reason: str) -> Dict[str, Any]:
    """Return the part of a document that has no figures, with the reason."""
    return {"method": METHOD, "arena_bytes": None, "peak_layer": None, "rows": [], "missing_because": reason}


def _views(interpreter: Any, inner: Any) -> Tuple[Dict[int, str], Dict[int, Tuple[int, int]]]:
    """Return the names of the file's tensors, and address and size of every tensor that has memory."""
    names = {int(each["index"]): str(each["name"]) for each in interpreter.get_tensor_details() if each["name"]}
    found = {}
    for index in range(int(inner.NumTensors(0))):
        try:
            # One without a shape has no memory, and asking for its view would end the process.
            inner.TensorSize(index, 0)
            view = interpreter.tensor(index)()
        except ValueError:
            continue
        found[index] = (int(view.__array_interface__["data"][0]), int(view.nbytes))
    return names, found


def _lives(
    operators: Sequence[Dict[str, Any]], inputs: Sequence[int], kept: Set[int]
) -> Tuple[Dict[int, int], Dict[int, int]]:
    """Return the operators that first write and last read each tensor; inputs and outputs stay."""
    first = dict.fromkeys(inputs, 0)
    last = {}  # type: Dict[int, int]
    for number, each in enumerate(operators):
        for index in each["outputs"]:
            first.setdefault(int(index), number)
        for index in each["inputs"]:
            last[int(index)] = number
    for index in kept:
        last[index] = len(operators)
    return first, last


def _extent(named: Sequence[Region], temporaries: Sequence[Tuple[int, int]]) -> Tuple[int, int]:
    """Return where the arena begins and ends; a temporary tensor lies within it or right behind another's end."""
    low, high = min(each.start for each in named), max(each.start + each.size for each in named)
    for start, size in sorted(temporaries):
        if low <= start < high or start == low + _up(high - low):
            high = max(high, start + size)
    return low, high


def _stacked(sizes: Sequence[int]) -> int:
    end = 0
    for size in sizes:
        end = _up(end) + size
    return end


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _rows(operators: Sequence[Dict[str, Any]], named: Sequence[Region]) -> List[Dict[str, Any]]:
    rows = []
    for number, each in enumerate(operators):
        # Tensors that share a place count once.
        alive = {}  # type: Dict[int, int]
        for region in named:
            if region.first <= number <= region.last:
                alive[region.start] = max(alive.get(region.start, 0), region.size)
        rows.append({
            "name": "{}:{}".format(each["op_name"], each["index"]), "op_type": str(each["op_name"]),
            "in_use_bytes": sum(alive.values()),
        })  # fmt: skip
    return rows
