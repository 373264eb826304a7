"""A .pt2 file from a stranger: read as data, or refused.

``torch.export.load`` runs code in many places: it unpickles weights, constants and sample inputs, evaluates the
expressions of open sizes as Python, imports modules named in tree specs, loads compiled libraries, and writes names
into Python source that it executes. So the archive is read twice by the same reader: first every text in it is checked
against what torch itself writes there, then torch loads it with unpickling limited to weights.

Whoever reads such files brings torch; it is imported on use, and boards need none.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import pickle
import re
import threading
from pathlib import Path
from typing import Any, Dict, Iterator

from embedl_device.readers import UnreadableError

_NAME = "model"  # what torch.export.save calls the one program of a file
_MOST_TEXT_BYTES = 64 << 20
_MOST_RECORDS = 100_000
_LONGEST_EXPRESSION = 10_000
_DEEPEST = 60
_LARGEST_POWER = 64
# Where torch.export.save puts things.
_MODEL = "models/{}.json".format(_NAME)
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_CONFIGS = (("{}{}_weights_config.json".format(_WEIGHTS, _NAME), _WEIGHTS),
            ("{}{}_constants_config.json".format(_CONSTANTS, _NAME), _CONSTANTS))  # fmt: skip
_OBJECTS = ("custom_obj_", "opaque_obj_")
_PROGRAM = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/\w+|\.format_version|\.storage_alignment|"
    rf"{_MODEL}|data/sample_inputs/{_NAME}\.pt|{_WEIGHTS}[\w.]+|{_CONSTANTS}[\w.]+|extra/.*"
)
# Everything that ends up in source or as an attribute is a name; only what a parameter is called may be any text that
# cannot end a string.
_WORD = re.compile(r"[A-Za-z0-9_.]{0,1000}")
_TEXT = re.compile(r"[^'\"\\\x00-\x1f\x7f]{0,1000}")
_TARGET = re.compile(
    r"torch\.ops\.(?!_)(\w+)\.(?!__)(\w+)(\.(?!__)\w+)?|(_operator|math)\.(?!_)(\w+)|torch\.(_?sym_\w+)"
)
_TEXTS = frozenset({"fqn", "parameter_name", "buffer_name", "tensor_constant_name", "as_string", "torch_version"})
_SPECS = frozenset({"in_spec", "out_spec"})
# Remarks for people, which torch keeps as they are, and guards, which it makes anew.
_REMARKS = frozenset({"metadata", "guards_code"})
_HIGHER_ORDER = frozenset({
    "associative_scan", "cond", "flex_attention", "invoke_subgraph", "map_impl", "scan", "while_loop",
    "wrap_with_autocast", "wrap_with_set_grad_enabled",
})  # fmt: skip
_OPERATORS = frozenset({
    "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "inv", "invert", "le", "lshift", "lt", "mod", "mul",
    "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor",
})  # fmt: skip
# What sympy and torch write for open sizes (sympy's srepr).
_FUNCTIONS = frozenset({
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Equality", "Float", "FloatPow", "FloatTrueDiv",
    "FloorDiv", "FloorToInt", "GreaterThan", "Identity", "IntTrueDiv", "Integer", "IsNonOverlappingAndDenseIndicator",
    "LShift", "LessThan", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Not", "Or", "Pow", "PowByNatural",
    "PythonMod", "RShift", "Rational", "RoundDecimal", "RoundToInt", "StrictGreaterThan", "StrictLessThan", "Symbol",
    "ToFloat", "TruncToFloat", "TruncToInt", "Unequality", "Where", "ceiling", "floor",
})  # fmt: skip
_POWERS = frozenset({"FloatPow", "LShift", "Pow", "PowByNatural"})
_TRUTHS = frozenset({"false", "true"})
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_FORCE_NOT = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_LOCK = threading.Lock()


class _RefusedError(Exception):
    """What is wrong with an archive."""


def load_exported(path: Path) -> Any:
    """Return the program (``torch.export.ExportedProgram``) of a file that ``torch.export.save`` wrote.

    Raises:
        UnreadableError: There is no such file, it is none, or it holds more than numbers and torch's own operators.
    """
    from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2

    if not path.is_file():
        raise UnreadableError(
            "there is no file '{}'; give a model, or the path of a .pt2 file saved by torch.export.save.".format(path)
        )
    try:
        with path.open("rb") as file, _weights_only():
            _check_archive(PT2ArchiveReader(file), os.fstat(file.fileno()).st_size)
            file.seek(0)
            return load_pt2(file).exported_programs[_NAME]
    except (_RefusedError, pickle.UnpicklingError) as exc:
        why = exc if isinstance(exc, _RefusedError) else "it holds pickled objects, and reading them would run code"
        raise UnreadableError(
            "'{}' is refused: {}. Export the model here, from its source, with torch.export.save.".format(path, why)
        ) from exc
    except Exception as exc:
        raise UnreadableError(
            "'{}' cannot be loaded as an exported program: {}: {} Write it with torch.export.save of this version of "
            "torch.".format(path, type(exc).__name__, _first_line(exc))
        ) from exc


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Let torch unpickle weights and nothing else, whatever it asks for itself."""
    with _LOCK:
        before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
        os.environ[_FORCE] = "1"
        try:
            yield
        finally:
            del os.environ[_FORCE]
            os.environ.update({name: value for name, value in before.items() if value is not None})


def _check_archive(archive: Any, size_bytes: int) -> None:
    names = archive.get_file_names()
    if len(names) > _MOST_RECORDS or len(set(names)) != len(names):
        raise _RefusedError("its list of contents is too long, or has one name twice")
    if strange := [name for name in names if not _PROGRAM.fullmatch(name)]:
        raise _RefusedError(f"it holds {strange[0][:100]!r}, which is no part of one exported program")
    sizes = {name: archive.archive_file.get_record_size(name) for name in names}
    # torch stores without compression: more than the file holds would be an archive made to burst.
    if sum(sizes.values()) > size_bytes:
        raise _RefusedError(f"it says that it holds {sum(sizes.values())} bytes, and the file has {size_bytes}")
    _check_program(_document(archive, sizes, _MODEL))
    for name, folder in _CONFIGS:
        if name in sizes:
            _check_payloads(_document(archive, sizes, name), sizes, folder)


def _document(archive: Any, sizes: Dict[str, int], name: str) -> Dict[str, Any]:
    if sizes.get(name, 0) > _MOST_TEXT_BYTES:
        raise _RefusedError(f"its {name!r} is larger than {_MOST_TEXT_BYTES >> 20} MiB")
    found = json.loads(archive.read_string(name))
    if not isinstance(found, dict):
        raise _RefusedError(f"its {name!r} is no object")
    return found


def _check_payloads(document: Dict[str, Any], sizes: Dict[str, int], folder: str) -> None:
    """Refuse objects that are no tensors, and tensors that would take more room than they have in the file."""
    _check(document, "", 0)
    for name, payload in document["config"].items():
        place = str(payload["path_name"])
        if place.startswith(_OBJECTS):
            raise _RefusedError(f"its constant {name[:100]!r} is a pickled object, and reading it would run code")
        if not payload["use_pickle"] and sizes.get(folder + place) == 0:
            shape = [size["as_int"] for size in payload["tensor_meta"]["sizes"]]
            if math.prod(shape):
                raise _RefusedError(f"its tensor {name[:100]!r} has a shape and no numbers")


def _check_program(document: Dict[str, Any]) -> None:
    _check(document, "", 0)
    for entry in document["graph_module"]["module_call_graph"]:
        for key in _SPECS:
            if entry.get("signature"):
                _check_spec(json.loads(entry["signature"][key]), 0)


def _check(value: object, key: str, depth: int) -> None:
    """Refuse a text that is not what torch writes in its place."""
    if depth > _DEEPEST:
        raise _RefusedError("it is nested too deeply")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not (_TEXT if key == "config" else _WORD).fullmatch(name):
                raise _RefusedError(f"a name in it is {name[:60]!r}, which is none")
            if not (name in _REMARKS and _is_remark(inner)):
                _check(inner, name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, key, depth + 1)
    elif isinstance(value, str):
        _check_text(value, key)


def _is_remark(value: object) -> bool:
    """Tell remarks from something of the program that is called like them."""
    if isinstance(value, dict):
        return all(
            isinstance(text, str) and not name.startswith(("as_", "expr_", "name")) for name, text in value.items()
        )
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _check_text(text: str, key: str) -> None:
    if key in _SPECS:
        return  # they are JSON of their own
    if key == "expr_str":
        _check_expression(text)
    elif key in ("target", "as_operator"):
        if not _is_operator(text):
            raise _RefusedError(f"it calls {text[:100]!r}, which is no operator of torch")
    elif not (_TEXT if key in _TEXTS else _WORD).fullmatch(text):
        raise _RefusedError(f"{key or 'a value'!r} in it is {text[:60]!r}, which is no name")


def _is_operator(text: str) -> bool:
    found = _TARGET.fullmatch(text)
    if found is None:
        return False
    namespace, operator, _, module, function, _ = found.groups()
    if namespace == "higher_order":
        return operator in _HIGHER_ORDER
    if module == "_operator":
        return function in _OPERATORS
    # It maps, and may make, a file of any name.
    return operator != "from_file"


def _check_expression(text: str) -> None:
    """Refuse an open size that is not arithmetic: torch evaluates it as Python."""
    if len(text) > _LONGEST_EXPRESSION:
        raise _RefusedError(f"a size in it is an expression of {len(text)} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise _RefusedError(f"a size in it is {text[:60]!r}, which is no expression") from exc
    _check_node(tree, text, in_power=False)


def _check_node(node: ast.expr, text: str, *, in_power: bool) -> None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if in_power and abs(node.value) > _LARGEST_POWER:
            raise _RefusedError(f"a size in it is {text[:60]!r}, a power too large to be one")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check_node(node.operand, text, in_power=in_power)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        _check_call(node, node.func.id, text, in_power=in_power)
    elif not (isinstance(node, ast.Name) and node.id in _TRUTHS):
        raise _RefusedError(f"a size in it is {text[:60]!r}, which is no arithmetic")


def _check_call(node: ast.Call, name: str, text: str, *, in_power: bool) -> None:
    words = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if name in ("Symbol", "Float") and len(words) == len(node.args) == 1:
        is_plain = all(isinstance(fact.value, ast.Constant) for fact in node.keywords)
        if not re.fullmatch(r"[\w.+-]+", words[0]) or not is_plain:
            raise _RefusedError(f"a size in it is {text[:60]!r}, which is no arithmetic")
        return
    if name not in _FUNCTIONS or node.keywords or (in_power and name in _POWERS):
        raise _RefusedError(f"a size in it is {text[:60]!r}, which is no arithmetic")
    for inner in node.args:
        _check_node(inner, text, in_power=in_power or name in _POWERS)


def _check_spec(value: object, depth: int) -> None:
    """Refuse a tree of inputs or outputs that has torch import a module: for enums and default factories."""
    if depth > _DEEPEST:
        raise _RefusedError("its tree of inputs is nested too deeply")
    if isinstance(value, list):
        for inner in value:
            _check_spec(inner, depth + 1)
    elif isinstance(value, dict):
        if "__enum__" in value or "default_factory_module" in value:
            raise _RefusedError("its tree of inputs names a module to import")
        for name, inner in value.items():
            is_text = name == "context" and isinstance(inner, str)
            _check_spec(json.loads(inner) if is_text else inner, depth + 1)
