"""Every reader of files that strangers made, as a table: valid files to begin with, what reads them, what it may raise.

``tools/fuzz.py`` feeds them with mutated files, guided by coverage; ``tests/repo/test_fuzz.py`` with the finds that are
kept in ``tests/fuzz_corpus`` and a few mutations. An input's first byte says how the rest becomes a file: as it is, or
packed into a container that would otherwise be broken by the first bit that changes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

CORPUS = Path(__file__).parents[1] / "fuzz_corpus"
MOST_S = 5.0
MOST_GROWTH_MB = 256

Pack = Callable[[bytes], bytes]


def as_it_is(content: bytes) -> bytes:
    """Return a file as it is."""
    return content


@dataclass(frozen=True)
class Reader:
    """A reader at work: it reads ``file`` in a folder of its own; ``packs`` are the ways to make one of an input."""

    read: Callable[[Path], object]
    allowed: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    packs: Sequence[Pack] = (as_it_is,)
    file: str = "file"
    beside: dict[str, bytes] = field(default_factory=dict)  # further files of the folder
    words: Sequence[bytes] = ()  # what mutations put in


@dataclass(frozen=True)
class Entry:
    """A row of the table: the modules whose coverage guides, and the reader, made on use."""

    modules: tuple[str, ...]
    make: Callable[[], Reader]
    longest: int = 4096  # bytes of an input


@dataclass(frozen=True)
class Find:
    """What an input did that no input may do."""

    kind: str  # ``error``, ``hang``, ``memory`` or ``outside``
    place: str
    text: str


def numbered(way: int, content: bytes) -> bytes:
    """Return an input: the way to pack it, and what is packed."""
    return bytes([way]) + content


class HungError(BaseException):
    """An input took too long; nothing catches it but the guard."""


# What a reader has no business with, by the audit event's name; the value is which argument is a path, if one is.
_ACTIONS = {
    "os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.link": 1, "os.symlink": 1, "os.chmod": 0,
    "os.chown": 0, "os.truncate": 0, "os.utime": 0, "shutil.rmtree": 0, "shutil.move": 1, "shutil.copyfile": 1,
    "os.exec": None, "os.system": None, "os.posix_spawn": None, "os.spawn": None, "os.fork": None,
    "subprocess.Popen": None, "socket.connect": None, "socket.bind": None, "pickle.find_class": None,
    "ctypes.dlopen": None, "os.kill": None,
}  # fmt: skip


class Guard:
    """Runs a reader on inputs, one at a time, and tells what it did that it must not."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        room = Path("/dev/shm")
        self._place = Path(tempfile.mkdtemp(prefix="edgeproof-fuzz-", dir=room if os.access(room, os.W_OK) else None))
        self._is_reading = False
        self._outside: list[str] = []
        self._armed = 0.0
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, _hang)
        for number, seed in enumerate(reader.seeds):
            self._write(seed)
            try:
                reader.read(self._place / "in" / reader.file)
            except reader.allowed as error:
                raise AssertionError(f"seed {number} is no valid file: {error}") from error
        self.base_mb = _peak_mb()

    @property
    def grown_mb(self) -> float:
        """How far the peak of memory has risen above what valid files take."""
        return _peak_mb() - self.base_mb

    def close(self) -> None:
        """Leave nothing behind."""
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(self._place, ignore_errors=True)

    def feed(self, data: bytes) -> Find | None:
        """Have an input read."""
        try:
            file = self._write(data)
        except Exception:  # noqa: BLE001 - what cannot be packed is no file
            return None
        before = _peak_mb()
        find = self._read(file)
        if len(list(file.parent.iterdir())) != 1 + len(self._reader.beside):
            shutil.rmtree(file.parent)
        if find is None and self._outside:
            find = Find("outside", self._outside[0].split()[0], self._outside[0])
        if find is None and _peak_mb() - before > MOST_GROWTH_MB:
            find = Find("memory", "", f"{_peak_mb() - before:.0f} MB more")
        return find

    def _write(self, data: bytes) -> Path:
        packs = self._reader.packs
        content = packs[data[0] % len(packs)](data[1:]) if data else b""
        folder = self._place / "in"
        folder.mkdir(exist_ok=True)
        for name, beside in {self._reader.file: content, **self._reader.beside}.items():
            (folder / name).write_bytes(beside)
        return folder / self._reader.file

    def _read(self, file: Path) -> Find | None:
        self._outside.clear()
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
        if time.monotonic() > self._armed + MOST_S:
            # Native code does not hear the alarm: then the process ends, and what it read is left in its folder.
            faulthandler.dump_traceback_later(6 * MOST_S, exit=True)
            self._armed = time.monotonic()
        self._is_reading = True
        try:
            self._reader.read(file)
        except self._reader.allowed as error:
            if "\n" in str(error).strip() and len(str(error)) > 4000:
                return Find("error", "text", f"a text of {len(str(error))} characters")
        except HungError as error:
            return Find("hang", _place_of(error), f"more than {MOST_S:g} s")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return Find("error", f"{type(error).__name__} {_place_of(error)}", traceback.format_exc(limit=-4))
        finally:
            self._is_reading = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_reading:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else "r" not in str(mode)
            if writes and not isinstance(path, int) and not self._is_ours(path):
                self._outside.append(f"open {path!r}")
        elif event in _ACTIONS:
            index = _ACTIONS[event]
            if index is None or not self._is_ours(_whole_path(arguments, index)):
                self._outside.append(f"{event} {arguments!r:.200}")

    def _is_ours(self, path: object) -> bool:
        text = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""  # noqa: PTH100 - links stay links
        return text.startswith((f"{self._place}/", "/dev/null"))


def _whole_path(arguments: tuple[Any, ...], index: int) -> object:
    """Return a path that may be relative to an open folder, which the event names last."""
    path, folder = arguments[index], arguments[-1]
    if isinstance(folder, int) and folder >= 0 and isinstance(path, str | bytes):
        return Path(f"/proc/self/fd/{folder}").readlink() / os.fsdecode(path)
    return path


def _hang(_: int, __: FrameType | None) -> None:
    raise HungError


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/src/embedl_" in frame.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else ""


_SCRAPS = (
    b"", b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"-1", b"9" * 40, b"9" * 5000,
    b"1e999", b"NaN", b"null", b"[" * 2000, b'{"a":' * 2000, b"[[", b"]]", b'"', b"\\", b"\n", b"../x", b"/etc/passwd",
    b"\xc3\x28", "\u202e".encode(), b"%s%n", b"__import__('os')",
)  # fmt: skip


def mutations(reader: Reader, seed: int, longest: int) -> Iterator[bytes]:
    """Yield inputs without end: seeds with something done to them."""
    rng = random.Random(seed)  # noqa: S311 - to find faults, not to keep secrets
    scraps = (*_SCRAPS, *reader.words)
    while True:
        data = bytearray(rng.choice(reader.seeds))
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            at = rng.randrange(len(data) + 1)
            until = min(len(data), at + rng.choice((1, 2, 4, 8, 50)))
            match rng.randrange(6):
                case 0:
                    del data[at:until]
                case 1:
                    data[at:at] = rng.choice(scraps)
                case 2:
                    data[at:until] = rng.choice(scraps)
                case 3:
                    data[at:at] = data[at:until]
                case 4 if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
                case _:
                    data[at:until] = rng.randbytes(until - at)
            if rng.random() < 0.02:
                del data[at:]
        yield bytes(data[:longest])


# -- the readers ------------------------------------------------------------------------------------------------------


def npz_of(content: bytes) -> bytes:
    """Pack arrays' bytes, cut at a mark, as an archive with right sums; the first byte says whether compressed."""
    target = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if content[:1] == b"\1" else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w", kind) as archive:
        for number, part in enumerate(content[1:].split(b"\xfe\xfe")):
            archive.writestr(f"a{number}.npy", part)
    return target.getvalue()


def _arrays() -> list[bytes]:
    import numpy as np

    arrays: list[np.ndarray] = [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.ones((2, 2), np.int64)), np.array(1.5),
        np.zeros((0, 3), np.int8), np.array(["a", "bc"]), np.array([True]),
    ]  # fmt: skip
    contents = []
    for array in arrays:
        target = io.BytesIO()
        np.save(target, array)
        contents.append(target.getvalue())
    return contents


_HEADERS = (b"(2**70,)", b"(-1, 3)", b"(9223372036854775807, 9223372036854775807)", b"'|O'", b"'<U999999999'", b"'V0'",
            b"'S0'", b"[('a', '<f4')]", b"(True,)", b"(1.0,)", b"'m8[ns]'", b"'>c16'", b"True", b"'f4,f4'")  # fmt: skip


def npy() -> Reader:
    """Arrays, one in a file."""
    from embedl_device.readers import UnreadableError, read_arrays

    seeds = [numbered(0, content) for content in _arrays()]
    return Reader(read_arrays, (UnreadableError, OSError), seeds, words=_HEADERS)


def npz() -> Reader:
    """Arrays, several in an archive: as a board's outputs, and as calibration data."""
    import numpy as np

    from embedl_hub.models.calibration import open_calibration, read_outputs
    from embedl_hub.models.onnx_file import Tensor
    from embedl_hub.refusal import RefusedError

    def read(file: Path) -> None:
        with contextlib.suppress(RefusedError):
            for batch in open_calibration(file, [Tensor("a0", "float32", (None, 3))]).batches():
                np.asarray(batch["a0"])
        read_outputs(file.parent)

    whole = io.BytesIO()
    np.savez(whole, a0=np.ones((2, 3), np.float32))
    packed = io.BytesIO()
    np.savez_compressed(packed, a0=np.ones((2, 3), np.float32))
    inner = _arrays()
    seeds = [numbered(0, whole.getvalue()), numbered(0, packed.getvalue())]
    seeds += [numbered(1, bytes([kind]) + b"\xfe\xfe".join(inner[:count])) for kind, count in ((0, 1), (1, 3), (0, 6))]
    return Reader(read, (RefusedError,), seeds, (as_it_is, npz_of), "file.npz", words=_HEADERS)


def document() -> Reader:
    """Profile documents, and what they are shown and compared by."""
    from embedl_hub.core.document import read_document
    from embedl_hub.errors import TrackingError

    example = Path(__file__).parents[2] / "docs/reference/profile-example.json"
    found = json.loads(example.read_text(encoding="utf-8"))
    for key in ("samples_us", "warmup_us"):
        found[key] = found.get(key, [])[:3]
    found.get("layers", {})["rows"] = found.get("layers", {}).get("rows", [])[:2]

    def read(file: Path) -> None:
        json.dumps(read_document(file).as_json())

    seeds = [numbered(0, json.dumps(found).encode()), numbered(0, b'{"format": 1, "latency_ms": {"mean": 1.5}}')]
    return Reader(read, (TrackingError,), seeds, file="profile.json")


def manifest() -> Reader:
    """Manifests of runs."""
    from embedl_hub.tracking import _journal

    lines = [
        {"seq": 0, "kind": "start", "time_ms": 1, "run": {"id": "a"}},
        {"seq": 1, "kind": "metric", "time_ms": 2, "name": "latency", "value": 1.5, "step": None},
        {"seq": 2, "kind": "end", "time_ms": 3, "status": "finished"},
    ]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return Reader(_journal.read, (), [numbered(0, content)], file="manifest.jsonl")


def plan() -> Reader:
    """The plans that sweeps keep."""
    from embedl_hub.errors import ConfigError
    from embedl_hub.fleet._plan import plan_from_json

    step: dict[str, object] = {
        "kind": "compile", "toolchain": "onnxruntime", "model": "m", "source": "m.onnx", "values": {}, "target": "t",
        "after": None,
    }  # fmt: skip
    cell = {"id": "c", "model": "m", "option": "o", "target": "t", "steps": ["k"]}
    found = {"format": 1, "name": "n", "targets": {"t": ["d"]}, "cells": [cell], "steps": {"k": step}}
    return Reader(
        lambda file: plan_from_json(file.read_bytes()), (ConfigError,), [numbered(0, json.dumps(found).encode())]
    )


SWEEP = b"""\
[sweep]
name = "s"
toolchain = "onnxruntime"
steps = ["compile", "profile"]
retries = 2
[models.net]
path = "net.onnx"
compile.input_shape = [1, 3, 8, 8]
data = { x = "d" }
[models.more]
files = "*.toml"
[options.int8]
compile = { calibration_data = "d" }
[devices]
names = ["pi"]
where = "memory > 1"
"""
DEVICES = b"""\
[devices.pi]
type = "embedl_onnxruntime"
runner = "ssh"
ssh = { host = "pi.local", port = 22 }
spec = { cores = 4, memory_bytes = 1 }
config = { threads = 4, cli_args = ["-v"] }
[pools.lab]
devices = ["pi"]
"""


def sweep() -> Reader:
    """Plans of sweeps, in TOML."""
    from embedl_hub.errors import ConfigError
    from embedl_hub.fleet._read import read_sweep

    words = (b"a.a.a.a.", b"[[", b"'''", b'"""', b"1979-05-27T07:32:00Z", b"nan", b"0x", b"{x={", b"[devices]")
    return Reader(read_sweep, (ConfigError,), [numbered(0, SWEEP)], file="sweep.toml", words=words)


def devices() -> Reader:
    """Devices, in TOML."""
    from embedl_hub.core.device import load_devices
    from embedl_hub.errors import ConfigError

    return Reader(load_devices, (ConfigError,), [numbered(0, DEVICES)], file="devices.toml", words=(b"a.a.a.", b"[["))


def _net() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(__import__("numpy").ones((3, 4), "float32"), "w")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["m"], ["z"], name="id")], "branch", [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="mm"),
        helper.make_node("Relu", ["m"], ["y"]),
        helper.make_node("If", ["c"], ["q"], then_branch=branch, else_branch=branch),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("y", "q")]
    starts = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
              helper.make_tensor_value_info("c", TensorProto.BOOL, [])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", starts, ends, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _with_modules(content: bytes) -> bytes:
    """Return a model whose remarks on modules are these bytes."""
    from onnx import helper

    model = _net()
    parts = content.decode("utf-8", "replace").split("\x00")
    keys = ("modules", "precisions", "sensitivity", "format")
    told = {f"edgeproof.{key}": part for key, part in zip(keys, parts, strict=False)}
    helper.set_model_props(model, told)
    return bytes(model.SerializeToString())


def onnx() -> Reader:
    """ONNX files as the hub reads them."""
    from embedl_hub.models import onnx_file
    from embedl_hub.models.module_names import read_modules
    from embedl_hub.refusal import RefusedError

    def read(file: Path) -> None:
        model = onnx_file.read_model(file)
        onnx_file.inputs_of(model), onnx_file.outputs_of(model), onnx_file.precision_of(model)
        onnx_file.quantized_layer(model), read_modules(model)
        onnx_file.prepared_model(file, (2, 3))

    remarks = b'{"mm": "body.mm", "id": ["a", "b"]}\x00{"body": "int8"}\x00{"version": 1, "modules": {"a": 1.5}}\x001'
    seeds = [numbered(0, bytes(_net().SerializeToString())), numbered(1, remarks)]
    return Reader(read, (RefusedError,), seeds, (as_it_is, _with_modules), "net.onnx")


def _with_places(content: bytes) -> bytes:
    """Return a model with a tensor outside, where these bytes say: location, offset, length, one size, the type."""
    model = _net()
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    parts = content.decode("utf-8", "replace").split("\x00")
    for key, value in zip(("location", "offset", "length"), parts, strict=False):
        tensor.external_data.add(key=key, value=value)
    with contextlib.suppress(ValueError, IndexError):
        tensor.dims[0] = int(parts[3])
        tensor.data_type = int(parts[4])
    return bytes(model.SerializeToString())


_PLACES = [b"w.bin\x000\x0048\x003\x001", b"w.bin\x0016\x00", b"./w.bin", b"w.bin\x000\x006\x003\x0022"]
_PLACE_WORDS = (b"/proc/self/environ", b"/dev/zero", b"..", b"fifo", b"-1", b"18446744073709551616", b"1e3", b"\\",
                "\u0663".encode(), b"link", b"w.bin/x", b"net.onnx", b".")  # fmt: skip


def _outside_seeds() -> list[bytes]:
    return [numbered(0, _with_places(_PLACES[0])), *(numbered(1, place) for place in _PLACES)]


def external() -> Reader:
    """Weights beside an ONNX file, as the hub reads them."""
    from embedl_hub.models import onnx_file
    from embedl_hub.refusal import RefusedError

    def read(file: Path) -> None:
        onnx_file.external_files(onnx_file.read_graph(file), file.parent)
        onnx_file.read_model(file)

    return Reader(
        read, (RefusedError,), _outside_seeds(), (as_it_is, _with_places), "net.onnx", {"w.bin": bytes(64)},
        _PLACE_WORDS,
    )  # fmt: skip


def deploy_onnx() -> Reader:
    """ONNX files and their weights as deploy reads them."""
    from embedl_deploy.dialect._files import load
    from embedl_deploy.dialect._model import read_entry
    from embedl_deploy.errors import DeployError

    def read(file: Path) -> None:
        read_entry(load(file), "edgeproof.modules", "{}")

    seeds = [numbered(0, bytes(_net().SerializeToString())), numbered(2, b'{"a": 1}'), *_outside_seeds()]
    return Reader(
        read, (DeployError,), seeds, (as_it_is, _with_places, _with_modules), "net.onnx", {"w.bin": bytes(64)},
        _PLACE_WORDS,
    )  # fmt: skip


def small_tflite() -> bytes:
    """Return a TFLite model: one quantized addition."""
    import flatbuffers  # type: ignore[import-untyped]
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT()
    model.version, model.description = 3, "m"
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    model.operatorCodes, model.buffers = [code], [schema.BufferT()]
    graph = schema.SubGraphT()
    graph.tensors = []
    for name in ("x", "y"):
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name, [1, 4], schema.TensorType.INT8
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [0.5], [0]
        graph.tensors.append(tensor)
    operator = schema.OperatorT()
    operator.inputs, operator.outputs = [0, 0], [1]
    operator.builtinOptionsType = schema.BuiltinOptions.AddOptions
    operator.builtinOptions = schema.AddOptionsT()
    graph.operators, graph.inputs, graph.outputs = [operator], [0], [1]
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


OPENVINO = b"""<?xml version="1.0"?>
<net name="net" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1,?,2..4" element_type="f32" />
<output><port id="0" precision="FP32" names="x,y"><dim>1</dim></port></output></layer>
<layer id="1" name="w" type="Const" version="opset1"><data element_type="i8" shape="4" offset="0" size="4" /></layer>
<layer id="2" name="q" type="FakeQuantize" version="opset1"></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0" /></edges></net>
"""


def openvino() -> Reader:
    """OpenVINO's own files."""
    from embedl_hub.refusal import RefusedError
    from embedl_hub.toolchains.openvino.ir import read_graph

    words = (b"<!DOCTYPE a [", b'<!ENTITY b "&b;&b;">', b"<layer>" * 50, b"&b;", b'size="1e9"')
    return Reader(read_graph, (RefusedError,), [numbered(0, OPENVINO)], file="net.xml", words=words)


def pte() -> Reader:
    """ExecuTorch programs."""
    from embedl_hub.refusal import RefusedError
    from embedl_hub.toolchains.executorch.memory import plan_file
    from support.executorch import small_pte

    return Reader(plan_file, (RefusedError,), [numbered(0, small_pte())], file="m.pte")


def tflite() -> Reader:
    """TFLite files."""
    from embedl_hub.refusal import RefusedError
    from embedl_hub.toolchains.tflite.config import LiteRTConfig
    from embedl_hub.toolchains.tflite.graph import read_graph
    from embedl_hub.toolchains.tflite.memory.predict import plan_file

    def read(file: Path) -> None:
        read_graph(file)
        plan_file(file, LiteRTConfig(xnnpack=False))

    return Reader(read, (RefusedError,), [numbered(0, small_tflite())], file="m.tflite")


def graph() -> Reader:
    """Models as they are read to be drawn; the file's beginning says which format it is."""
    from embedl_graph import GraphError, graph_data, read_graph, shown

    def read(file: Path) -> None:
        graph_data(shown(read_graph(file)))

    remarks = b'{"mm": "body.mm", "id": ["a", "b"]}\x00{"body": "int8"}\x00{"version": 1, "modules": {"a": 1.5}}\x001'
    seeds = [numbered(0, bytes(_net().SerializeToString())), numbered(0, small_tflite()), numbered(1, remarks)]
    return Reader(read, (GraphError,), seeds, (as_it_is, _with_modules), "net.onnx")


def trtexec() -> Reader:
    """What trtexec exports and prints; the first byte of the file says which of the files it is."""
    from embedl_hub.refusal import RefusedError
    from embedl_hub.toolchains.tensorrt import layers, log
    from support import samples_trtexec as samples

    def read_log(text: str) -> None:
        log.parse_help(text), log.parse_facts(text), log.parse_statistics(text, "Latency")
        log.parse_seconds(text, "Engine deserialized"), log.parse_warmups(text), log.parse_memory_mib(text)
        log.parse_raw_files(text), log.warnings(text), log.errors(text), log.unknown_options(text)

    def arrays(text: str) -> None:
        for output in layers.parse_outputs(text):
            output.array("float32")

    def rows(text: str) -> None:
        profile = layers.parse_profile(text)
        layers.join_layers(profile, [layers.LayerInfo(layer.name) for layer in profile.layers], None)

    parsers: list[Callable[[str], object]] = [layers.parse_times, rows, layers.parse_layer_info, arrays, read_log]

    def read(file: Path) -> None:
        content = file.read_bytes()
        parsers[content[0] % len(parsers) if content else 0](content[1:].decode("utf-8", "replace"))

    texts = (samples.TIMES, samples.PROFILE, samples.LAYERS, samples.OUTPUTS, samples.LOG)
    seeds = [numbered(0, bytes([number]) + text.encode()) for number, text in enumerate(texts)]
    words = (b"latencyMs", b'"count"', b"-nan(ind)", b"Layers", b"9x9", b'"values" : [')
    return Reader(read, (RefusedError,), seeds, words=words)


CONSOLE = b"""\
INFO: count=9 first=64791 curr=56295 min=54873 max=65831 avg=57758.2 std=4065 p5=54873 median=57000 p95=65831
INFO: count=50 curr=500(all same)
INFO: Inference timings in us: Init: 18777, First inference: 64791, Warmup (avg): 57758.2, Inference (avg): 500
INFO: Overall peak memory footprint (MB) via periodic monitoring: 21.5
"""
TABLE = b"""\
Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
CONV_2D, 0.000, 0.300, 0.200, 66.6%, 66.6%, 0.0, 50, [a, b]:0
Timings (microseconds): count=50 first=300 curr=300 min=300 max=301 avg=300 std=0
"""


def journal() -> Reader:
    """The journal of a sustained run, and what is concluded from it."""
    import numpy.random  # noqa: F401 - loads its library, which is no reader's doing

    from embedl_device.errors import BoardError
    from embedl_device.sustained import document_of
    from embedl_hub.core.document import ProfileDocument
    from embedl_hub.core.profile import read_journal
    from embedl_hub.page._sustained import chart_of

    def read(file: Path) -> None:
        document = document_of(read_journal(file))
        json.dumps(document)
        chart_of(ProfileDocument.from_json(document))

    start = {
        "kind": "start", "format": 1, "program": "p", "version": "1", "clock_s": 1.0, "model": {"file_name": "m"},
        "plan": {"seconds": 5.0, "idle_seconds": 1.0}, "power_problems": ["x"], "power_sources": [],
        "channels": [["counter", "quota"], ["energy_j", "RAPL", "cpu", "powercap"], ["temperature_c", "0"]],
    }  # fmt: skip
    lines = [json.dumps(start)]
    for number in range(-4, 26):
        lines.append(json.dumps({"s": [number / 2, max(0, number - 8), number + 9.0, 40 + number]}))
        if 0 < number <= 20:
            lines.append(json.dumps({"b": [number / 2, 0.5, 50, 5e5 * (1 + number // 9), 5e3, 6e3, 7e3]}))
    end = {"kind": "end", "stopped": "s", "missed": 1, "last": {"end_s": [8.0, 9.0], "us": [5e3, 6e3]}, "lease": None}
    whole = "\n".join([*lines, json.dumps(end), ""]).encode()
    cut = "\n".join([*lines[:40], ""]).encode()
    words = [b'{"b": [', b'{"s": [', b"null", b"1e308", b"-1", b'"x"']
    return Reader(read, (ValueError, BoardError, ArithmeticError), [numbered(0, whole), numbered(0, cut)], words=words)


def meter() -> Reader:
    """The CSV file of an external meter."""
    from embedl_hub.core.profile import read_meter
    from embedl_hub.errors import ConfigError

    seeds = [
        b"time,power\n" + b"".join(b"%d,%d\n" % (n, n % 7) for n in range(20)),
        b"Timestamp;Main current (mA);Main voltage (V)\n1,5;2,5;3\n2,5;2,5;3\n3,5;2,5;3\n",
        b"Date\tEnergy [mWh]\n2026-11-16 10:00:00\t1\n2026-11-16 10:00:01\t2\n2026-11-16 10:00:02+00:00\t3\n",
    ]

    def read(file: Path) -> None:
        read_meter(file).series(1.0)

    return Reader(
        read,
        (ConfigError,),
        [numbered(0, seed) for seed in seeds],
        words=[b";", b"\t", b"nan", b"1e308", b"9999-12-31T23:59:59", b'"'],
    )


def litert() -> Reader:
    """What Google's benchmark_model prints and writes."""
    from ai_edge_litert import profiling_info_pb2 as messages

    from embedl_hub.refusal import RefusedError
    from embedl_hub.toolchains.tflite.benchmark import (
        document_of,
        first_table,
        layers_of,
        no_layers,
        parse_console,
    )

    def read(file: Path) -> None:
        content = file.read_bytes()
        if content[:1] == b"\0":
            console = parse_console(content[1:].decode("utf-8", "replace"))
            json.dumps(document_of(console, no_layers(), {}).as_json())
        else:
            layers_of(first_table([content[1:]]), None)

    data = messages.BenchmarkProfilingData(model_name="m")  # type: ignore[attr-defined, unused-ignore]
    row = data.runtime_profile.subgraph_profiles.add().per_op_profiles.add(
        node_type="SOFTMAX", name="n", times_called=9
    )
    row.inference_microseconds.sum, row.inference_microseconds.count = 900, 10
    contents = (b"\0" + CONSOLE, b"\1" + TABLE, b"\1" + data.SerializeToString())
    return Reader(read, (RefusedError,), [numbered(0, content) for content in contents])


def runtime_trace() -> Reader:
    """The profile that ONNX Runtime writes on a board."""
    from embedl_device.errors import BoardError
    from embedl_onnxruntime.profile import _as_rows, read_trace

    event = {"cat": "Node", "pid": 1, "tid": 1, "dur": 12, "ts": 5, "ph": "X", "name": "conv_kernel_time",
             "args": {"op_name": "Conv", "provider": "CPUExecutionProvider", "node_index": "3"}}  # fmt: skip
    run = {"cat": "Session", "pid": 1, "tid": 1, "dur": 20, "ts": 4, "ph": "X", "name": "model_run", "args": {}}
    lines = b"[\n" + b",\n".join(json.dumps(one).encode() for one in (event, run)) + b"\n]\n"
    return Reader(lambda file: _as_rows(read_trace(file)), (BoardError,), [numbered(0, lines)])


def answer() -> Reader:
    """What a device program answers, and the kernel costs that it measured."""
    from embedl_device.readers import UnreadableError, parse_json
    from embedl_kernels import read_costs

    def read(file: Path) -> None:
        found = parse_json(file.read_bytes())
        if isinstance(found, dict):
            read_costs(found)

    return Reader(read, (UnreadableError, ValueError), [numbered(0, json.dumps(_costs()).encode())])


def _costs() -> dict[str, object]:
    inputs = [{"float": [1, 3, 8, 8]}, {"float": [4, 3, 3, 3]}]
    node = {"op": "Conv", "inputs": inputs, "outputs": [{"float": [1, 4, 8, 8]}], "us": 3.5}
    return {"models": {f"m{number}": {"us": 40.0, "nodes": [node] * 10} for number in range(3)}}


def archive_of(content: bytes) -> bytes:
    """Return a good .pt2 file with one of its records replaced: the first byte says which."""
    names = ("models/model.json", "data/weights/model_weights_config.json", "data/sample_inputs/model.pt",
             "data/constants/model_constants_config.json")  # fmt: skip
    wanted = names[content[0] % len(names)] if content else ""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_PROGRAM[0])) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, content[1:] if name.endswith(wanted) and wanted else old.read(name))
    return target.getvalue()


_PROGRAM: list[bytes] = []


def pt2() -> Reader:
    """Exported programs."""
    import logging

    import torch

    from embedl_deploy._trace.archive import load_exported
    from embedl_deploy.errors import TraceError

    logging.disable(logging.CRITICAL)
    sizes = {0: torch.export.Dim("batch", min=2, max=9)}
    program = torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.randn(2, 3),), dynamic_shapes=(sizes,))
    target = io.BytesIO()
    torch.export.save(program, target)
    _PROGRAM[:] = [target.getvalue()]
    seeds = [numbered(0, target.getvalue())]
    with zipfile.ZipFile(io.BytesIO(target.getvalue())) as archive:
        for number, end in enumerate(("model.json", "weights_config.json", "model.pt", "constants_config.json")):
            content = next(archive.read(name) for name in archive.namelist() if name.endswith(end))
            seeds.append(numbered(1, bytes([number]) + content))
    words = (b"Symbol('s0')", b"__import__('os').system('x')", b"torch.os.system", b"as_expr", b"opaque_obj_0", b"Pow(",
             b"cos\nsystem\n(S'x'\ntR.")  # fmt: skip
    return Reader(load_exported, (TraceError,), seeds, (as_it_is, archive_of), "m.pt2", words=words)


def calibration() -> Reader:
    """Statistics that deploy keeps."""
    import torch

    from embedl_deploy.errors import CalibrationError
    from embedl_deploy.quantize import Calibration
    from embedl_deploy.quantize._histogram import Histogram

    histogram = Histogram()
    histogram.add(torch.arange(8.0), 0.0, 7.0)
    with tempfile.TemporaryDirectory() as folder:
        content = Calibration({"x": histogram}).save(Path(folder) / "c.pt").read_bytes()
    return Reader(Calibration.load, (CalibrationError,), [numbered(0, content)], file="c.pt")


def bundle_of(content: bytes) -> bytes:
    """Pack a bundle's head and a run's manifest, cut at a mark, with right sums."""
    head, _, lines = content.partition(b"\xfe\xfe")
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_BUNDLE[0])) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, head if name == _BUNDLE_HEAD else lines if name.endswith(".jsonl") else old.read(name))
    return target.getvalue()


_BUNDLE: list[bytes] = []
_BUNDLE_HEAD = "bundle.json"


def bundle() -> Reader:
    """Bundles of runs."""
    from embedl_hub.errors import HubError
    from embedl_hub.tracking import Client, RunType, Store
    from embedl_hub.tracking._export import export_bundle, import_bundle

    place = Path(tempfile.mkdtemp(prefix="edgeproof-bundle-"))
    with Store(place / "home") as store:
        client = Client("project", store)
        with client.start_run(RunType.CUSTOM, "run") as run:
            run.log_param("a", 1)
            (run.artifact_dir / "x.txt").write_text("x")
            run.log_artifact(run.artifact_dir / "x.txt", name="x")
        export_bundle(store, [run.id], place / "runs.zip")
    _BUNDLE[:] = [(place / "runs.zip").read_bytes()]
    shutil.rmtree(place)

    def read(file: Path) -> None:
        home = file.parent / "home"
        shutil.rmtree(home, ignore_errors=True)
        with Store(home) as store:
            import_bundle(store, file)

    seeds = [numbered(0, _BUNDLE[0])]
    with zipfile.ZipFile(io.BytesIO(_BUNDLE[0])) as archive:
        lines = next(archive.read(name) for name in archive.namelist() if name.endswith(".jsonl"))
        seeds.append(numbered(1, archive.read(_BUNDLE_HEAD) + b"\xfe\xfe" + lines))
    return Reader(read, (HubError,), seeds, (as_it_is, bundle_of), "runs.zip")


_HUB = "embedl_hub"
READERS: dict[str, Entry] = {
    "answer": Entry(("embedl_device.readers", "embedl_kernels"), answer),
    "bundle": Entry((f"{_HUB}.tracking._export", f"{_HUB}.tracking._journal"), bundle, 8192),
    "calibration": Entry(("embedl_deploy.quantize",), calibration),
    "deploy-onnx": Entry(("embedl_device.readers", "embedl_deploy.dialect._files"), deploy_onnx),
    "devices": Entry((f"{_HUB}.toml", f"{_HUB}.core.device", "tomllib"), devices),
    "document": Entry(("embedl_device.readers", f"{_HUB}.core.document"), document, 8192),
    "external": Entry(("embedl_device.readers", f"{_HUB}.models.onnx_file"), external),
    "graph": Entry(("embedl_graph", "embedl_device.flatbuffer"), graph),
    "journal": Entry(("embedl_device.sustained", f"{_HUB}.core.profile._journal"), journal, 8192),
    "litert": Entry((f"{_HUB}.toolchains.tflite.benchmark",), litert),
    "manifest": Entry((f"{_HUB}.tracking._journal",), manifest),
    "meter": Entry((f"{_HUB}.core.profile._meter",), meter),
    "npy": Entry(("embedl_device.readers",), npy),
    "npz": Entry(("embedl_device.readers", f"{_HUB}.models.calibration", "zipfile"), npz),
    "onnx": Entry((f"{_HUB}.models.onnx_file", f"{_HUB}.models.module_names"), onnx),
    "openvino": Entry((f"{_HUB}.toolchains.openvino.ir",), openvino),
    "plan": Entry((f"{_HUB}.fleet._plan",), plan),
    "pt2": Entry(("embedl_deploy._trace.archive", "embedl_device.exported"), pt2, 32768),
    "pte": Entry((f"{_HUB}.toolchains.executorch.memory",), pte),
    "runtime-trace": Entry(("embedl_onnxruntime.profile",), runtime_trace),
    "sweep": Entry((f"{_HUB}.toml", f"{_HUB}.fleet._read", "tomllib"), sweep),
    "tflite": Entry((f"{_HUB}.toolchains.tflite.graph", f"{_HUB}.toolchains.tflite.memory"), tflite),
    "trtexec": Entry((f"{_HUB}.toolchains.tensorrt.layers", f"{_HUB}.toolchains.tensorrt.log"), trtexec, 8192),
}
