"""A stand-in for NVIDIA's trtexec: the real options in, the real formats out, real outputs by ONNX Runtime.

There is no trtexec where there is no TensorRT, so the tests install this one on their board. It poses as TensorRT 8.6,
10.16 or 11.1. What it parses and writes follows NVIDIA/TensorRT at the tags v8.6.1, v10.16 and v11.1:

- options, defaults and their meaning: samples/common/sampleOptions.cpp (InferenceOptions::parse, BuildOptions::parse)
- ``&&&&`` lines and severities: samples/common/logging.h
- the GPU's lines: samples/common/sampleDevice.h (8.6), sampleDevice.cpp
- times, summary, layer times, outputs: samples/common/sampleReporting.cpp (exportJSONTrace, printEpilog,
  Profiler::exportJSONProfile, exportJSONOutput)
- raw outputs and their names: samples/common/sampleInference.cpp (dumpRawBindingToFiles)
- what is refused: samples/common/sampleEngines.cpp (shapes of static models), sampleUtils.cpp (loadFromFile)
- layer information: written by the library; its keys are those of NVIDIA/TensorRT#4020 and of TREx in the v10.16 tree
- the library's own complaints: NVIDIA/TensorRT issues #4258 (memory), #2041 (version), #2176 (GPU)

Its times are ONNX Runtime's on this processor: they mean nothing, their forms do.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

VERSIONS = {"8.6.1": (8601, None), "10.16.0": (101600, 72), "11.1.0": (110100, 106)}
GPU, CAPABILITY = "NVIDIA Stand-in RTX", "8.6"
MAGIC = b"stand-in engine\n"

_ALWAYS = (
    "onnx", "minShapes", "optShapes", "maxShapes", "memPoolSize", "profilingVerbosity", "noTF32", "saveEngine",
    "loadEngine", "timingCacheFile", "builderOptimizationLevel", "shapes", "loadInputs", "iterations", "warmUp",
    "duration", "useSpinWait", "useCudaGraph", "noDataTransfers", "separateProfileRun", "skipInference", "verbose",
    "percentile", "dumpOutput", "dumpRawBindingsToFile", "dumpProfile", "dumpLayerInfo", "exportTimes", "exportOutput",
    "exportProfile", "exportLayerInfo", "device", "useDLACore", "help",
)  # fmt: skip
_SINCE = {
    "8.6.1": ("fp16", "int8", "fp8", "best", "buildOnly"),
    "10.16.0": ("fp16", "bf16", "int8", "fp8", "best", "stronglyTyped", "getPlanVersionOnly"),
    "11.1.0": ("stronglyTyped", "noCudaGraph", "noSpinWait", "includeDataTransfers", "getPlanVersionOnly"),
}


class Trtexec:
    """One call."""

    def __init__(self, version: str, argv: list[str], fault: str = "") -> None:
        self.version = version
        self.major = int(version.partition(".")[0])
        self.fault = fault
        self.command = " ".join(["trtexec", *argv])
        number, build = VERSIONS[version]
        self.title = f"TensorRT.trtexec [TensorRT v{number}]" + (f" [b{build}]" if build else "")
        self.words = dict(self._pair(word) for word in argv)

    @staticmethod
    def _pair(word: str) -> tuple[str, str]:
        name, _, value = word.partition("=")
        return name, value

    def run(self) -> int:
        """Do what is asked and return the exit code."""
        self.mark("RUNNING")
        options = {f"--{name}" for name in (*_ALWAYS, *_SINCE[self.version])}
        if "--help" in self.words or not self.words:
            for option in sorted(options):
                sys.stdout.write(f"  {option:<33} What the real one says of it\n")
            return 0
        if unknown := [name for name in self.words if name not in options]:
            for name in unknown:
                self.error(f"Unknown option: {name} {self.words[name]}")
            self.fail()
        self.describe_gpu()
        if self.fault == "hang":
            time.sleep(600)
        engine = self.load() if "--loadEngine" in self.words else self.build()
        if "--skipInference" in self.words or "--buildOnly" in self.words:
            self.export_layers(engine)
            self.info("Skipped inference phase since --skipInference is added.")
        else:
            Inference(self, engine).run()
        self.mark("PASSED")
        return 0

    def describe_gpu(self) -> None:
        """Print the GPU and the library."""
        self.info("=== Device Information ===")
        if self.major >= 10:
            self.info("Available Devices: ")
            self.info(f'  Device 0: "{GPU}" UUID: GPU-00000000-0000-0000-0000-000000000000')
        self.info(f"Selected Device: {os.environ.get('STANDIN_GPU', GPU)}")
        self.info(f"Compute Capability: {self.capability}")
        self.info("SMs: 46")
        self.info("Device Global Memory: 7982 MiB")
        self.info(f"TensorRT version: {self.version}")

    @property
    def capability(self) -> str:
        """The GPU's generation."""
        return os.environ.get("STANDIN_CAPABILITY", CAPABILITY)

    def build(self) -> dict[str, Any]:
        """Build an engine and save it."""
        import onnx

        path = Path(self.words["--onnx"])
        try:
            model = onnx.load(path)
        except Exception:  # noqa: BLE001 - whatever is wrong with the file
            self.error(f"Failed to parse onnx file {path}")
            self.error("Parsing model failed")
            self.give_up()
        if self.fault == "memory":
            self.error("Error[1]: [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)")
            self.warn(
                "[TRT] Requested amount of GPU memory (15485030400 bytes) could not be allocated. There may not be "
                "enough free memory for allocation to succeed."
            )
            self.error("Engine could not be created from network")
            self.give_up()
        shapes = self.build_shapes(model)
        self.check_precision(model)
        started = time.perf_counter()
        engine = {
            "version": self.version,
            "capability": self.capability,
            "verbosity": self.words.get("--profilingVerbosity", "layer_names_only"),
            "shapes": shapes,
        }
        content = model.SerializeToString()
        if "--timingCacheFile" in self.words:
            with Path(self.words["--timingCacheFile"]).open("a", encoding="utf-8") as cache:
                cache.write("timed\n")
        if "--saveEngine" in self.words:
            head = json.dumps(engine).encode()
            Path(self.words["--saveEngine"]).write_bytes(MAGIC + head + b"\n" + content)
        self.info(f"Created engine with size: {len(content) / 2**20:g} MiB")
        self.info(f"Engine built in {time.perf_counter() - started:g} sec.")
        return {**engine, "model": content}

    def build_shapes(self, model: Any) -> dict[str, dict[str, list[int]]]:
        """Return min, opt and max shapes of the open inputs."""
        given = {key: self.shapes(f"--{key}Shapes") for key in ("min", "opt", "max")}
        opened = {}
        known = {value.name for value in model.graph.initializer}
        for value in model.graph.input:
            dims = [int(dim.dim_value) if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]
            if value.name not in known and -1 in dims:
                opened[value.name] = [max(1, size) for size in dims]
        if not opened and given["opt"]:
            self.error(
                "Static model does not take explicit shapes since the shape of inference tensors will be determined by "
                "the model itself"
            )
            self.give_up()
        for name in given["opt"]:
            if name not in opened:
                self.error(f'Cannot find input tensor with name "{name}" in the network inputs!')
                self.give_up()
        for name, dims in opened.items():
            if name not in given["opt"]:
                text = "x".join(map(str, dims))
                self.warn(
                    f"Dynamic dimensions required for input: {name}, but no shapes were provided. Automatically "
                    f"overriding shape to: {text}"
                )
        return {
            key: {name: given[key].get(name, given["opt"].get(name, dims)) for name, dims in opened.items()}
            for key in given
        }

    def check_precision(self, model: Any) -> None:
        """A weakly typed builder wants to be allowed what the model holds."""
        quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
        allowed = self.major >= 11 or {"--int8", "--best", "--stronglyTyped"} & set(self.words)
        if quantized and not allowed:
            self.error("Error[4]: Internal Error (Q/DQ layers need int8 precision, which is not enabled)")
            self.error("Engine could not be created from network")
            self.give_up()

    def shapes(self, option: str) -> dict[str, list[int]]:
        """Return shapes by tensor as splitNameAndValue reads them."""
        found = {}
        for pair in filter(None, self.words.get(option, "").split(",")):
            name, value = self.name_and_value(pair)
            found[name] = [int(size) for size in value.split("x")] if value not in {"", "scalar"} else []
        return found

    def name_and_value(self, pair: str) -> tuple[str, str]:
        """Split at the quotation marks, or at the last colon."""
        parts = pair.split("'")
        if len(parts) == 3:
            return parts[0] + parts[1], parts[2][1:]
        if len(parts) != 1:
            self.error(f"Found invalid number of 's when parsing {pair}. Expected: 2, received: {len(parts) - 1}")
            self.fail()
        name, _, value = pair.rpartition(":")
        return name, value

    def load(self) -> dict[str, Any]:
        """Load an engine, or refuse one that is not for this library and GPU."""
        content = Path(self.words["--loadEngine"]).read_bytes()
        self.info("Engine loaded in 0.00123 sec.")
        if not content.startswith(MAGIC):
            self.refuse_engine("Serialization assertion header.magicTag == rt::kPLAN_MAGIC_TAG failed.")
        head, _, model = content[len(MAGIC) :].partition(b"\n")
        engine: dict[str, Any] = json.loads(head)
        if engine["version"] != self.version:
            self.refuse_engine(
                "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. "
                "Note: Current Version: 239, Serialized Engine Version: 232"
            )
        if engine["capability"] != self.capability:
            self.error(
                "Error[6]: The engine plan file is generated on an incompatible device, expecting compute "
                f"{self.capability} got compute {engine['capability']}, please rebuild."
            )
            self.refuse_engine("Engine deserialization failed")
        self.info("Engine deserialized in 0.0214 sec.")
        return {**engine, "model": model}

    def refuse_engine(self, words: str) -> NoReturn:
        """Say why an engine cannot be loaded."""
        self.error(f"Error[1]: IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({words})")
        self.error("Engine deserialization failed")
        self.error("Got invalid engine!")
        self.error("Inference set up failed")
        self.fail()

    def export_layers(self, engine: dict[str, Any]) -> None:
        """Write the layer information, with details if the engine was built with them."""
        if "--exportLayerInfo" not in self.words:
            return
        rows: list[Any] = []
        for layer in layers_of(engine["model"], self.major):
            if engine["verbosity"] != "detailed":
                rows.append(layer["name"])
                continue
            tensor = {"Name": "t", "Location": "Device", "Dimensions": [1], "Format/Datatype": "Float"}
            row = {"Name": layer["name"], "LayerType": layer["kind"], "Inputs": [tensor], "Outputs": [tensor],
                   "TacticName": "sm80_xmma", "StreamId": 0}  # fmt: skip
            if self.major >= 10:
                row["Metadata"] = "\x1e".join(f"[ONNX Layer: {name}]" for name in layer["nodes"])
            rows.append(row)
        text = '{"Layers": [' + "\n,".join(json.dumps(row) for row in rows) + '\n],\n"Bindings": ["x"\n,"y"\n]}'
        Path(self.words["--exportLayerInfo"]).write_text(text, encoding="utf-8")

    def mark(self, ending: str) -> None:
        """Print a line for test machinery; it has no time stamp."""
        sys.stdout.write(f"&&&& {ending} {self.title} # {self.command}\n")

    def info(self, words: str) -> None:
        """Log to stdout."""
        sys.stdout.write(f"{_stamp()} [I] {words}\n")

    def warn(self, words: str) -> None:
        """Log to stderr."""
        sys.stderr.write(f"{_stamp()} [W] {words}\n")

    def error(self, words: str) -> None:
        """Log to stderr."""
        sys.stderr.write(f"{_stamp()} [E] {words}\n")

    def give_up(self) -> NoReturn:
        """Fail as getEngineBuildEnv does."""
        self.error("Failed to create engine from model or file.")
        self.error("Engine set up failed")
        self.fail()

    def fail(self) -> NoReturn:
        """End with the code of a failure."""
        self.mark("FAILED")
        sys.exit(1)


class Inference:
    """Runs an engine and reports."""

    def __init__(self, call: Trtexec, engine: dict[str, Any]) -> None:
        import onnxruntime

        self.call = call
        self.engine = engine
        self.words = call.words
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(engine["model"], options, providers=["CPUExecutionProvider"])
        self.inputs = self._inputs()

    @property
    def copies(self) -> bool:
        """Whether copies are timed: 11 has to be told to, the others not to."""
        if self.call.major >= 11:
            return "--includeDataTransfers" in self.words
        return "--noDataTransfers" not in self.words

    def _inputs(self) -> dict[str, Any]:
        import numpy as np

        files = dict(
            self.call.name_and_value(pair) for pair in filter(None, self.words.get("--loadInputs", "").split(","))
        )
        wanted = self.call.shapes("--shapes")
        inputs = {}
        for value in self.session.get_inputs():
            shape = wanted.get(value.name) or self.engine["shapes"]["opt"].get(value.name) or value.shape
            self._check_shape(value.name, shape)
            kind = _numpy(value.type)
            held = np.dtype(np.int32) if kind == np.int64 and self.call.major < 10 else kind
            if value.name not in files:
                inputs[value.name] = np.random.default_rng(0).normal(size=shape).astype(kind)
                continue
            path = Path(files.pop(value.name))
            size = int(np.prod(shape)) * held.itemsize
            content = path.read_bytes()
            if len(content) not in {size, 2 * size}:
                self.call.error(
                    f"Uncaught exception detected: Unexpected file size for input file: {path}. Note: Input binding "
                    f"size is: {size} bytes but the file size is {len(content)} bytes. Double check the size and "
                    "datatype of the provided data."
                )
                self.call.fail()
            inputs[value.name] = np.frombuffer(content[:size], held).reshape(shape).astype(kind)
        for name in files:
            self.call.error(f'Cannot find input tensor with name "{name}" in the engine bindings!')
            self.call.fail()
        return inputs

    def _check_shape(self, name: str, shape: list[int]) -> None:
        low, high = (self.engine["shapes"][key].get(name, shape) for key in ("min", "max"))
        if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            self.call.error(f"IExecutionContext::setInputShape: Error Code 3: API Usage Error ({name} is out of range)")
            self.call.error("Inference set up failed")
            self.call.fail()

    def run(self) -> None:
        """Warm up, measure, report."""
        call, words = self.call, self.words
        call.info(
            "[TRT] [MemUsageChange] TensorRT-managed allocation in IExecutionContext creation: CPU +0, GPU +8, now: "
            "CPU 0, GPU 54 (MiB)"
        )
        call.export_layers(self.engine)
        call.info("Starting inference")
        warm_ms, seconds = float(words.get("--warmUp", 200)), float(words.get("--duration", 3))
        least = int(words.get("--iterations", 10))
        trace: list[tuple[float, float]] = []
        start = time.perf_counter()
        outputs: list[Any] = []
        while True:
            began = (time.perf_counter() - start) * 1e3
            outputs = self.session.run(None, self.inputs)
            trace.append((began, (time.perf_counter() - start) * 1e3))
            if trace[-1][1] > warm_ms + seconds * 1e3 and len(trace) >= least:
                break
        kept = [times for times in trace if times[0] >= warm_ms] or trace[-1:]
        wants_layers = "--exportProfile" in words or "--dumpProfile" in words
        if wants_layers and call.major < 11 and "--separateProfileRun" not in words:
            call.info("The e2e network timing is not reported since it is inaccurate due to the extra synchronizations")
        else:
            self.report(kept, len(trace) - len(kept), warm_ms)
        self.export_outputs(outputs)
        if "--exportProfile" in words:
            self.export_profile(kept)

    def report(self, kept: list[tuple[float, float]], warmups: int, warm_ms: float) -> None:
        """Print the summary and write the times, six digits as C++ does."""
        call = self.call
        copy = 0.01 if self.copies else 0.0
        rows = []
        for began, ended in kept:
            compute = ended - began
            rows.append(
                {
                    "startEnqMs": began, "endEnqMs": began, "startH2dMs": began, "endH2dMs": began + copy,
                    "startComputeMs": began, "endComputeMs": ended, "startD2hMs": ended, "endD2hMs": ended + copy,
                    "h2dMs": copy, "computeMs": compute, "d2hMs": copy, "latencyMs": compute + 2 * copy,
                }
            )  # fmt: skip
        call.info(f"Warmup completed {warmups} queries over {warm_ms:g} ms")
        call.info(f"Timing trace has {len(rows)} queries over {(kept[-1][1] - kept[0][0]) / 1e3:g} s")
        call.info("=== Performance summary ===")
        call.info(f"Throughput: {len(rows) / (kept[-1][1] - kept[0][0]) * 1e3:g} qps")
        for title, key in (("Latency", "latencyMs"), ("H2D Latency", "h2dMs"), ("GPU Compute Time", "computeMs"),
                           ("D2H Latency", "d2hMs")):  # fmt: skip
            call.info(f"{title}: {self.statistics(sorted(row[key] for row in rows))}")
        if "--exportTimes" not in self.words:
            return
        if call.fault == "format":
            text = json.dumps([{"latencyUs": row["latencyMs"] * 1e3} for row in rows])
            Path(self.words["--exportTimes"]).write_text(text, encoding="utf-8")
            return
        lines = ["{ " + ", ".join(f'"{key}" : {value:g}' for key, value in row.items()) + " }" for row in rows]
        text = "[\n  " + "\n, ".join(lines) + "\n]\n"
        Path(self.words["--exportTimes"]).write_text(text, encoding="utf-8")

    def statistics(self, times: list[float]) -> str:
        """Return a line of the summary."""
        parts = [
            ("min", times[0]),
            ("max", times[-1]),
            ("mean", sum(times) / len(times)),
            ("median", statistics.median(times)),
        ]
        parts += [
            (f"percentile({p}%)", times[max(len(times) - 1 - int((1 - p / 100) * len(times)), 0)]) for p in (90, 95, 99)
        ]
        return ", ".join(f"{name} = {value:g} ms" for name, value in parts)

    def export_profile(self, kept: list[tuple[float, float]]) -> None:
        """Write the layers' times; names stand raw between the quotation marks."""
        layers = layers_of(self.engine["model"], self.call.major)
        count = len(kept)
        whole = sum(ended - began for began, ended in kept)
        text = f'[\n  {{ "count" : {count} }}\n'
        for index, layer in enumerate(layers):
            total = whole * (index + 1) / (len(layers) * (len(layers) + 1) / 2)
            text += (
                f', {{ "name" : "{layer["name"]}", "timeMs" : {total:g}, "averageMs" : {total / count:g}, '
                f'"medianMs" : {total / count:g}, "percentage" : {total / whole * 100:g} }}\n'
            )
        Path(self.words["--exportProfile"]).write_text(text + "]\n", encoding="utf-8")

    def export_outputs(self, outputs: list[Any]) -> None:
        """Write the outputs as JSON with six digits, and raw to the last bit."""
        import numpy as np

        held = []
        for value, array in zip(self.session.get_outputs(), outputs, strict=True):
            narrow = array.dtype == np.int64 and self.call.major < 10
            held.append((value.name, np.ascontiguousarray(array.astype(np.int32) if narrow else array)))
        if "--exportOutput" in self.words:
            parts = []
            for name, array in held:
                values = ", ".join(
                    f"{number:g}" if array.dtype.kind == "f" else str(int(number)) for number in array.flat
                )
                shape = "x".join(map(str, array.shape))
                parts.append(f'{{ "name" : "{name}"\n  , "dimensions" : "{shape}"\n  , "values" : [ {values} ]\n  }}\n')
            Path(self.words["--exportOutput"]).write_text("[\n  " + ", ".join(parts) + "]\n", encoding="utf-8")
        if "--dumpRawBindingsToFile" in self.words:
            self.call.info("Dumping I/O Bindings to RAW Files:")
            for name, array in held:
                dims, kind = ".".join(map(str, array.shape)), _tensorrt(array.dtype.name)
                file = re.sub(r"[^A-Za-z0-9._,-]", "_", f"{name}.output.{dims}.{kind}.raw")
                self.call.info(
                    f"Writing file for output binding {name} (with datatype {kind} and dimensions {dims}) to {file}"
                )
                Path(file).write_bytes(array.tobytes())


def layers_of(model: bytes, major: int) -> list[dict[str, Any]]:
    """Return an engine's layers: convolutions fused with what follows, a copy before them, the rest as one."""
    import onnx

    nodes = list(onnx.load_from_string(model).graph.node)
    groups: list[list[Any]] = []
    for node in nodes:
        follows = groups and set(node.input) & set(groups[-1][-1].output)
        after_conv = groups and groups[-1][0].op_type == "Conv"
        fuses = node.op_type in {"Relu", "BatchNormalization", "Clip"} if after_conv else node.op_type != "Conv"
        if follows and fuses:
            groups[-1].append(node)
        else:
            groups.append([node])
    layers = []
    for number, group in enumerate(groups):
        names = [node.name for node in group]
        name, kind = " + ".join(names), "Convolution" if group[0].op_type == "Conv" else group[0].op_type
        if len(group) > 1 and group[0].op_type != "Conv":
            name = f"{{ForeignNode[{names[0]}...{names[-1]}]}}" if major < 10 else f"__myl_Fused_myl0_{number}"
            kind = "Myelin" if major < 10 else "kgen"
        if number == 0:
            copy = f"Reformatting CopyNode for Input Tensor 0 to {name}"
            layers.append({"name": copy, "kind": "Reformat", "nodes": []})
        layers.append({"name": name, "kind": kind, "nodes": names})
    return layers


def _stamp() -> str:
    return datetime.now(UTC).strftime("[%m/%d/%Y-%H:%M:%S]")


def _numpy(kind: str) -> Any:
    import numpy as np

    names = {"float": "float32", "float16": "float16", "double": "float64", "int64": "int64", "int32": "int32",
             "int8": "int8", "uint8": "uint8", "bool": "bool"}  # fmt: skip
    return np.dtype(names[kind.removeprefix("tensor(").removesuffix(")")])


def _tensorrt(name: str) -> str:
    return {"float32": "fp32", "float16": "fp16"}.get(name, name)


def install(folder: Path, version: str, *, fault: str = "", name: str = "trtexec", **environment: str) -> Path:
    """Put an executable into a folder that poses as a version, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    words = {"STANDIN_VERSION": version, "STANDIN_FAULT": fault, **environment}
    lines = ["#!/bin/sh", *(f"export {key}='{value}'" for key, value in words.items())]
    path.write_text("\n".join([*lines, f"exec '{sys.executable}' '{__file__}' \"$@\"", ""]))
    path.chmod(0o755)
    return path


NVIDIA_SMI = """\
#!/bin/sh
for word in "$@"; do
  case $word in
    --query-gpu=name) echo "${STANDIN_GPU:-NVIDIA Stand-in RTX}" ;;
    --query-gpu=compute_cap) echo "${STANDIN_CAPABILITY:-8.6}" ;;
    --query-gpu=driver_version) echo 550.54.14 ;;
    --query-gpu=temperature.gpu) echo 41 ;;
    --query-gpu=clocks_event_reasons.active) echo "${STANDIN_REASONS:-0x0000000000000000}" ;;
    --query-gpu=*) echo "[N/A]" ;;
  esac
done
"""


def install_gpu(folder: Path) -> Path:
    """Put a stand-in for nvidia-smi into a folder: a GPU that says its name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(NVIDIA_SMI)
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.exit(Trtexec(os.environ["STANDIN_VERSION"], sys.argv[1:], os.environ.get("STANDIN_FAULT", "")).run())
