"""OpenVINO models on a device: the only file that knows the runtime."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from embedl_device.arrays import Arrays, Tensor
from embedl_device.errors import BoardError

PROGRAM = "embedl-openvino"
# Plugins that hand a model on to others; what follows the colon are the others.
VIRTUAL = ("AUTO", "HETERO", "MULTI", "BATCH")
_CAPABILITY = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}
# Where in its sources the runtime was, and what it checked there: nothing that a user could act on.
_PLACES = re.compile(r"Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:|FrontEnd API failed with \w+:")
_SINK = re.compile(r"/sink_port_\d+$")
_SUBGRAPH = re.compile(r"^subgraph\d+: ")
_LONGEST = 800


class Settings(NamedTuple):
    """How the runtime is to run a model."""

    device: str = "CPU"  # as OpenVINO names it
    threads: Optional[int] = None  # threads of the CPU; None leaves it to the runtime
    precision: Optional[str] = None  # of floats; None is f32 on a device that can
    cache_dir: Optional[Path] = None  # where compiled models are kept; None keeps none
    cache_cap_bytes: int = 4 << 30

    def facts(self) -> Dict[str, Any]:
        """Return them for a document."""
        return {"device": self.device, "threads": self.threads, "precision": self.precision,
                "model_cache": self.cache_dir is not None}  # fmt: skip


class Node(NamedTuple):
    """One node of the graph as it runs.

    ``original`` has the layers of the model that it stands for, in one text; ``reads`` the nodes that it reads.
    """

    name: str
    op_type: str
    kernel: str
    precision: str
    output_precision: str
    layout: str
    original: str
    device: str
    reads: List[str]

    def row(self) -> Dict[str, Any]:
        """Return it as a row of a document."""
        return {"name": self.name, "op_type": self.op_type, "provider": self.device, "kernel": self.kernel,
                "precision": self.precision, "output_precision": self.output_precision, "layout": self.layout,
                "original": self.original,
                "reads": self.reads}  # fmt: skip


def runtime() -> Any:
    """Return the openvino module, or say how to get it."""
    # Importing OpenVINO reports the import to its makers, unless this package is not there.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError as error:
        raise BoardError(
            "OpenVINO is not installed for this Python ({}). Install it with: python3 -m pip install openvino".format(
                error
            )
        ) from error
    return openvino


def runtime_version() -> str:
    """Return OpenVINO's version without the build."""
    return str(runtime().__version__).partition("-")[0]


def devices() -> List[Dict[str, Any]]:
    """Return the devices that work here, with their names for people and what they compute in."""
    core = runtime().Core()
    found = []
    for name in core.available_devices:
        facts: Dict[str, Any] = {"name": name, "title": None, "capabilities": []}
        with contextlib.suppress(Exception):  # a plugin that does not tell is still a device
            facts["title"] = str(core.get_property(name, "FULL_DEVICE_NAME"))
            facts["capabilities"] = [str(each) for each in core.get_property(name, "OPTIMIZATION_CAPABILITIES")]
        found.append(facts)
    return found


def said(error: Exception) -> str:
    """Return what OpenVINO says of a failure in one line, without the places in its sources."""
    return " ".join(_PLACES.sub(" ", str(error)).split())[:_LONGEST]


def check_device(device: str, available: Sequence[str]) -> List[str]:
    """Return the real devices that a name stands for, or refuse a name that stands for none here."""
    kind, _, rest = device.partition(":")
    wanted = [name for name in rest.split(",") if name] if kind in VIRTUAL else [device]
    if kind == "HETERO" and not wanted:
        raise BoardError("HETERO needs to know its devices, such as HETERO:GPU,CPU.")
    missing = [name for name in wanted if not any(_is_same(name.lstrip("-"), each) for each in available)]
    if missing or not available:
        raise BoardError(
            "OpenVINO {} has no device {} here; it has: {}; AUTO chooses among them. A GPU or an NPU needs Intel's "
            "driver, and rights to use it.".format(
                runtime_version(), ", ".join(map(repr, missing)) or repr(device), ", ".join(available) or "none"
            )
        )
    return [each for each in available if not wanted or any(_is_same(name, each) for name in wanted)]


def _is_same(wanted: str, available: str) -> bool:
    """``GPU`` stands for any of ``GPU.0``, ``GPU.1``, and ``GPU.0`` for the one GPU."""
    return available in (wanted, wanted[: -len(".0")] if wanted.endswith(".0") else wanted) or (
        "." not in wanted and available.partition(".")[0] == wanted
    )


class Model:
    """A model that is loaded on a device."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        *,
        counts: bool = False,
        uses_cache: bool = True,
        shapes: Optional[Dict[str, Tuple[int, ...]]] = None,
    ) -> None:
        ov = runtime()
        self._core = ov.Core()
        self._real = check_device(settings.device, self._core.available_devices)
        self._device = settings.device
        self.source = _read(self._core, path)
        if shapes:
            _reshape(self.source, shapes)
        self.precisions = {name: self._set_up(name, settings, counts) for name in self._real}
        cache = settings.cache_dir if uses_cache else None
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            self._core.set_property({"CACHE_DIR": str(cache)})
        try:
            self._compiled = self._core.compile_model(self.source, settings.device, self._options())
        except Exception as error:  # the runtime raises RuntimeError for everything
            raise BoardError(
                "OpenVINO {} cannot load {} on {}: {}".format(runtime_version(), path, settings.device, said(error))
            ) from error
        if cache is not None:
            trim(cache, settings.cache_cap_bytes)
        self._request = self._compiled.create_infer_request()
        self._inputs = {input_name(port): port for port in self._compiled.inputs}
        self._outputs = {output_name(port): port for port in self._compiled.outputs}

    def _set_up(self, device: str, settings: Settings, counts: bool) -> Optional[str]:
        """Tell a real device how to run, whoever hands it the model, and return what it computes floats in."""
        known = set(self._core.get_property(device, "SUPPORTED_PROPERTIES"))
        able = [str(each) for each in self._core.get_property(device, "OPTIMIZATION_CAPABILITIES")]
        precision = settings.precision
        if precision is not None and _CAPABILITY[precision] not in able:
            raise BoardError(
                "Device {} does not compute in {}; it computes in: {}.".format(device, precision, ", ".join(able))
            )
        if precision is None and _CAPABILITY["f32"] in able:
            # Left alone, a CPU that can rounds floats to bfloat16 and a GPU to float16.
            precision = "f32"
        wanted: Dict[str, object] = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "PERF_COUNT": counts}
        if precision is not None:
            wanted["INFERENCE_PRECISION_HINT"] = precision
        if settings.threads is not None:
            wanted["INFERENCE_NUM_THREADS"] = settings.threads
        self._core.set_property(device, {name: value for name, value in wanted.items() if name in known})
        if "INFERENCE_PRECISION_HINT" not in known:
            return None
        return _type_name(self._core.get_property(device, "INFERENCE_PRECISION_HINT"))

    def _options(self) -> Dict[str, object]:
        if self._device.partition(":")[0] != "AUTO":
            return {}
        # Else it runs on the CPU until the other device is ready, and a measurement would be of both.
        return {"PERFORMANCE_HINT": "LATENCY", "ENABLE_STARTUP_FALLBACK": False}

    @property
    def inputs(self) -> List[Tensor]:
        """The model's inputs."""
        return [_tensor(name, port) for name, port in self._inputs.items()]

    @property
    def outputs(self) -> List[Tensor]:
        """The model's outputs."""
        return [_tensor(name, port) for name, port in self._outputs.items()]

    @property
    def execution_devices(self) -> List[str]:
        """The devices that the model runs on."""
        try:
            found = self._compiled.get_property("EXECUTION_DEVICES")
        except Exception:  # an old plugin does not tell
            return list(self._real)
        listed = [found] if isinstance(found, str) else list(found)
        return [str(name).strip("()") for name in listed]

    @property
    def from_cache(self) -> Optional[bool]:
        """Whether the device took what it had compiled before; None where it does not tell."""
        with contextlib.suppress(Exception):  # not every plugin has the property
            return bool(self._compiled.get_property("LOADED_FROM_CACHE"))
        return None

    def run(self, feed: Arrays) -> Arrays:
        """Run the model once."""
        run = self.runner(feed)
        try:
            run()
        except Exception as error:  # the runtime raises RuntimeError for everything
            raise BoardError("OpenVINO failed while running the model: {}".format(said(error))) from error
        found = {}
        for name, port in self._outputs.items():
            tensor = self._request.get_tensor(port)
            is_text = tensor.get_element_type() == getattr(runtime().Type, "string", None)
            found[name] = tensor.str_data if is_text else tensor.data.copy()
        return found

    def runner(self, feed: Arrays) -> Callable[[], object]:
        """Return a function that runs the model and nothing else, for timing."""
        import numpy as np

        ov = runtime()
        for name, port in self._inputs.items():
            tensor = ov.Tensor(np.ascontiguousarray(feed[name]))
            self._request.set_tensor(port, tensor)
        request = self._request

        def run() -> None:
            request.start_async()
            request.wait()

        return run

    def times_us(self) -> Dict[str, float]:
        """Return what each node took in the last run, by its name: whole microseconds, 0 for one that was quicker."""
        return {
            _SUBGRAPH.sub("", row.node_name): row.real_time.total_seconds() * 1e6
            for row in self._request.get_profiling_info()
        }

    def nodes(self) -> List[Node]:
        """Return the graph as it runs, without inputs, outputs and what is computed once."""
        try:
            graph = self._compiled.get_runtime_model()
        except Exception as error:  # not every plugin shows its graph
            raise NoLayersError(said(error)) from error
        placed = self._placed()
        found = []
        constant: Set[str] = set()
        # What only gives a tensor another shape does not run: its readers read what it reads.
        through: Dict[str, str] = {}
        for op in graph.get_ordered_ops():
            facts = {key: _text(value) for key, value in op.get_rt_info().items()}
            kind = facts.get("layerType", op.get_type_name())
            before = [port.get_source_output().get_node().get_friendly_name() for port in op.inputs()]
            reads = [through.get(name, name) for name in before]
            if kind in ("Const", "Constant") or (reads and constant.issuperset(reads)):
                constant.add(op.get_friendly_name())
                continue
            if kind == "Reshape":
                through[op.get_friendly_name()] = reads[0]
            if kind in ("Input", "Parameter", "Output", "Reshape", "Result"):
                continue
            original = facts.get("originalLayersNames", "")
            device = next((placed[name] for name in original.split(",") if name in placed), self.execution_devices[0])
            found.append(
                Node(op.get_friendly_name(), kind, facts.get("primitiveType", ""), facts.get("runtimePrecision", ""),
                     facts.get("outputPrecisions", ""), facts.get("outputLayouts", ""), original, device, reads)
            )  # fmt: skip
        return found

    def _placed(self) -> Dict[str, str]:
        """Return the devices of the model's layers by name, where it was cut into parts."""
        if self._device.partition(":")[0] != "HETERO":
            return {}
        return {str(name): str(device) for name, device in self._core.query_model(self.source, self._device).items()}

    def save(self, path: Path) -> None:
        """Write the model as .xml and .bin, every weight as it is."""
        runtime().save_model(self.source, str(path), compress_to_fp16=False)


class NoLayersError(Exception):
    """The graph as it runs cannot be had; the text says why."""


def trim(folder: Path, cap_bytes: int) -> None:
    """Drop the oldest files of a folder until the rest fits; a run at the same time may have dropped some."""
    files: List[Tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.is_file():
                files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= cap_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def size_of(path: Path) -> int:
    """Return the bytes of a model: of an .xml file with the weights beside it."""
    weights = path.with_suffix(".bin")
    return path.stat().st_size + (weights.stat().st_size if path.suffix == ".xml" and weights.is_file() else 0)


def input_name(port: Any) -> str:
    """Return what the model calls an input; a tensor may have several names."""
    return _choose(port, port.get_node().get_friendly_name())


def output_name(port: Any) -> str:
    """Return what the model calls an output; a tensor may have several names."""
    return _choose(port, _SINK.sub("", port.get_node().get_friendly_name()))


def _choose(port: Any, title: str) -> str:
    names = set(port.get_names())
    return title if title in names or not names else min(names)


def _read(core: Any, path: Path) -> Any:
    if not path.is_file():
        raise BoardError("There is no model {}.".format(path))
    try:
        with _quiet():
            return core.read_model(str(path))
    except Exception as error:  # the runtime raises RuntimeError for everything
        raise BoardError(
            "OpenVINO {} cannot read {}: {}".format(runtime_version(), path, said(error) or "it is no model")
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep off stderr what libraries below print: a file is tried by every reader until one takes it."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _reshape(model: Any, shapes: Dict[str, Tuple[int, ...]]) -> None:
    ports = {input_name(port): port for port in model.inputs}
    unknown = set(shapes) - set(ports)
    if unknown:
        raise BoardError(
            "A shape is given for {}, but the inputs are: {}.".format(
                ", ".join(sorted(unknown)), "; ".join(_tensor(name, port).text() for name, port in ports.items())
            )
        )
    try:
        model.reshape({ports[name]: list(shape) for name, shape in shapes.items()})
    except Exception as error:  # the runtime raises RuntimeError for everything
        raise BoardError("The model cannot take the shapes {}: {}".format(shapes, said(error))) from error


def _tensor(name: str, port: Any) -> Tensor:
    shape = port.get_partial_shape()
    sizes = [] if shape.rank.is_dynamic else [None if size.is_dynamic else size.get_length() for size in shape]
    return Tensor(name, _dtype(port.get_element_type()), tuple(sizes))


def _dtype(kind: Any) -> str:
    """Return numpy's name of a type; the runtime's own where numpy has none."""
    import numpy as np

    name = _type_name(kind)
    if name == "string":
        return name
    try:
        return str(np.dtype(kind.to_dtype()).name)
    except Exception:  # bfloat16 and types of less than a byte
        return name


def _type_name(kind: Any) -> str:
    name = getattr(kind, "get_type_name", None)
    return str(name() if name is not None else kind)


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
