"""Does a bisection name the cause, the whole cause and nothing but the cause?

- 30 planted causes of seven kinds in three networks, each beside harmless differences: other settings, other weights in
  every layer, other wiring that computes the same. A hit is exact: the planted cause is found, nothing else is named,
  and nothing stayed undecided.
- 100 pairs that differ in harmless things only, which the runtime loads to the same graph: nothing may be blamed.

The causes are chosen by number, not by what is easy to find, and the runs are recorded as a user's are. It may be
stopped and goes on with the same --folder: what was decided is not asked again.

    nice python benchmarks/hub/bisect_trial.py [--planted 30] [--alike 100] [--minutes 240] [--folder DIR]
                                               [--runtimes OLD=PYTHON,NEW=PYTHON] [--json FILE]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_hub.bisection import Answer, Settings, bisect, plan_bisection
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiledModel
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, LocalCommandRunner, ONNXRuntimeConfig
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.core.steps import keep_model, run_of
from embedl_hub.errors import HubError

sys.path.insert(0, str(Path(__file__).parents[1]))
from environments import VERSIONS, python_of
from figures import Figure, rate
from report import Session, parser

LEAST_FOUND, MOST_BLAMED = 28 / 30, 0
SLOWER_OPERATOR = "ReduceSum"
"""What version 1.21 of ONNX Runtime made slower."""
NETS = ("residual", "mobile", "mixer")
LAYERS, CHANNELS, SIZE, CLASSES = 8, 16, 14, 10
_FEATURES = 256
_QUICK = {"iterations": 30, "min_seconds": 0.05, "max_warmup_seconds": 0.1, "layer_runs": 3}
_SETTINGS = Settings(alpha=0.01, least=0.05, seconds=0.1)


@dataclass(frozen=True)
class Net:
    """A network: which layers are quantized, which are wired otherwise, and what their numbers are."""

    kind: str
    quantized: frozenset[int] = frozenset()
    slow: frozenset[int] = frozenset()  # wired otherwise, and slower
    other: frozenset[int] = frozenset()  # wired otherwise, and hardly slower: it is not fused with what is before it
    passing: frozenset[int] = frozenset()  # with a step behind it that the runtime takes out when it loads the model
    scales: Mapping[int, float] = field(default_factory=dict)  # factors of activation scales
    weights: Mapping[int, float] = field(default_factory=dict)  # how far weights are from the first ones
    sums: bool = False  # begins with the sum of two views, which versions of the runtime do at different speeds

    def model(self) -> onnx.ModelProto:
        """Return it as a file has it."""
        made = _Maker(self)
        return made.model()


class _Maker:
    def __init__(self, net: Net) -> None:
        self.net = net
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:  # noqa: ANN401 - onnx's own
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"/{output}", **attributes))
        return output

    def keep(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def model(self) -> onnx.ModelProto:
        is_mixer = self.net.kind == "mixer"
        shape = [4, 48, 64] if is_mixer else [1, CHANNELS, SIZE, SIZE]
        tensor = "x"
        if self.net.sums:
            shape = [2, _FEATURES, 2 * SIZE, 2 * SIZE]
            tensor = self.add("ReduceSum", [tensor, self.keep("views", np.array([0], np.int64))], "views_sum")
            kernel = np.random.default_rng(98).normal(size=(CHANNELS, _FEATURES, 1, 1)).astype(np.float32)
            tensor = self.add("Conv", [tensor, self.keep("squeeze_w", kernel)], "squeeze", kernel_shape=[1, 1])
        for number in range(LAYERS):
            made = self._layer(number, tensor)
            tensor = self.add("Add", [made, tensor], f"sum{number}") if number % 2 else made
        if is_mixer:
            tensor = self.add("ReduceMean", [tensor], "pooled", axes=[1], keepdims=0)
        else:
            tensor = self.add("Flatten", [self.add("GlobalAveragePool", [tensor], "pool")], "pooled")
        width = 64 if is_mixer else CHANNELS
        head = np.random.default_rng(99).normal(size=(width, CLASSES)).astype(np.float32)
        self.add("MatMul", [tensor, self.keep("head", head)], "y")
        rows = shape[0] if is_mixer else 1
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, CLASSES])], self.weights,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _kernel(self, number: int) -> np.ndarray:
        shapes = {"residual": (CHANNELS, CHANNELS, 3, 3), "mixer": (64, 64)}
        depthwise = (CHANNELS, 1, 3, 3) if number % 2 == 0 else (CHANNELS, CHANNELS, 1, 1)
        shape = shapes.get(self.net.kind, depthwise)
        fan = np.prod(shape[1:]) if self.net.kind != "mixer" else shape[0]
        values = np.random.default_rng(number).normal(size=shape) / np.sqrt(fan)
        change = np.random.default_rng(100 + number).normal(size=shape) / np.sqrt(fan)
        kernel: np.ndarray = (values + self.net.weights.get(number, 0.0) * change).astype(np.float32)
        return kernel

    def _layer(self, number: int, source: str) -> str:
        kernel, name = self._kernel(number), f"w{number}"
        if number in self.net.quantized:
            scale = self.keep(f"scale{number}", np.array(0.04 * self.net.scales.get(number, 1.0), np.float32))
            zero = self.keep(f"zero{number}", np.array(128, np.uint8))
            quantized = self.add("QuantizeLinear", [source, scale, zero], f"q{number}")
            source = self.add("DequantizeLinear", [quantized, scale, zero], f"dq{number}")
            step = float(np.abs(kernel).max()) / 127
            integers = self.keep(f"wq{number}", np.round(kernel / step).astype(np.int8))
            scale = self.keep(f"wscale{number}", np.array(step, np.float32))
            weight_zero = self.keep(f"wzero{number}", np.array(0, np.int8))
            name = self.add("DequantizeLinear", [integers, scale, weight_zero], f"wdq{number}")
        else:
            self.keep(name, kernel)
        if self.net.kind == "mixer":
            linear = self.add("MatMul", [source, name], f"linear{number}")
        else:
            size = kernel.shape[-1]
            group = CHANNELS if kernel.shape[1] == 1 else 1
            linear = self.add("Conv", [source, name], f"linear{number}", kernel_shape=[size, size], group=group,
                              pads=[size // 2] * 4)  # fmt: skip
        if number in self.net.slow:
            # A soft step takes many times as long as what it is added to; the sum stays what it was but for rounding.
            soft = self.add("Softplus", [linear], f"soft{number}")
            factor = self.keep(f"small{number}", np.array(1e-12, np.float32))
            small = self.add("Mul", [soft, factor], f"small_{number}")
            linear = self.add("Add", [linear, small], f"more{number}")
        if number in self.net.other:
            zero = self.keep(f"nothing{number}", np.array(0.0, np.float32))
            return self.add("Max", [linear, zero], f"out{number}")
        made = self.add("Relu", [linear], f"out{number}")
        return self.add("Identity", [made], f"same{number}") if number in self.net.passing else made


@dataclass(frozen=True)
class Case:
    """Two ends and what was planted between them."""

    name: str
    kind: str
    metric: str
    good: Net
    bad: Net
    good_settings: Mapping[str, Any] = field(default_factory=dict)
    bad_settings: Mapping[str, Any] = field(default_factory=dict)
    good_data: int = 0
    bad_data: int = 0
    versions: tuple[str, str] | None = None
    planted: frozenset[str] = frozenset()  # the names of the switches that are the cause

    @property
    def shelf(self) -> str:
        """Where its runs are kept; pairs without a cause that have the same good end share it."""
        return self.name if self.planted else f"alike {self.good.kind} {self.metric}"

    @property
    def is_hit_by(self) -> Callable[[Iterable[str], Iterable[str]], bool]:
        """Whether names are the cause and nothing else, and nothing stayed undecided."""
        return lambda names, undecided: frozenset(names) == self.planted and not list(undecided)


_DECOYS = {"allow_fallback": True, "allow_saturation": True}
ALL = frozenset(range(LAYERS))


def _jitter(size: float, seed: int) -> dict[int, float]:
    return {number: size * (1 + (number * 7 + seed) % 3) for number in range(LAYERS)}


def planted_cases(runtimes: Sequence[str]) -> list[Case]:
    """Return the planted causes, the same every time; the runtimes are two versions."""
    cases: list[Case] = []

    def add(kind: str, metric: str, number: int, good: Net, bad: Net, cause: str, **more: Any) -> None:  # noqa: ANN401
        decoys: dict[str, Any] = {"good_settings": {"threads": 1}, "bad_settings": {"threads": 1, **_DECOYS}}
        given = {key: {**decoys.get(key, {}), **value} if key in decoys else value for key, value in more.items()}
        name = f"{kind} {number} ({good.kind})"
        cases.append(Case(name, kind, metric, good, bad, planted=frozenset({cause}), **{**decoys, **given}))

    for number in range(5):
        # The mixer has nothing that an optimizer would fuse.
        net = NETS[number % 2]
        good = Net(net, slow=frozenset({1}) if number > 2 else frozenset())
        bad = Net(net, slow=good.slow, weights=_jitter(1e-3, number))
        add("slower option", "latency_median", number, good, bad, "optimization_level",
            bad_settings={"threads": 1, **_DECOYS, "optimization_level": "disable"})  # fmt: skip
    for number in range(5):
        layer = (3 * number + 1) % LAYERS
        others = frozenset({(layer + 2) % LAYERS, (layer + 5) % LAYERS})
        net = NETS[number % 3]
        bad = Net(net, slow=frozenset({layer}), other=others, weights=_jitter(1e-3, number))
        add("slower rewrite", "latency_median", number, Net(net), bad, f"model: /soft{layer}")
    for number in range(6):
        layer, factor = (5 * number + 2) % LAYERS, (0.02, 60.0)[number % 2]
        net = NETS[number % 3]
        scales = {each: 1 + 1e-4 * (each + 1) for each in range(LAYERS)} | {layer: factor}
        add("bad scale", "cosine", number, Net(net, ALL), Net(net, ALL, scales=scales), f"model: scale{layer}")
    for number in range(4):
        layer, net = (3 * number + 2) % LAYERS, NETS[number % 3]
        weights = _jitter(1e-4, number) | {layer: 1.5}
        add("bad weights", "cosine", number, Net(net), Net(net, weights=weights), f"model: w{layer}")
    for number in range(4):
        net, data = NETS[number % 3], number + 1
        scales = {each: 1 + 1e-6 * (each + 1) for each in range(LAYERS)}
        add("changed data", "cosine", number, Net(net, ALL), Net(net, ALL, scales=scales), "data", bad_data=data)
    for number in range(3):
        layer, net = (4 * number + 3) % LAYERS, NETS[number % 2 * 2]
        bad = Net(net, ALL - {layer}, weights=_jitter(1e-3, number))
        add("one float layer", "model_size_mb", number, Net(net, ALL), bad, f"model: /linear{layer}")
    for number in range(3):
        net = ("residual", "mobile")[number % 2]
        versions = runtimes[0], runtimes[1]
        good, bad = Net(net, sums=True, other=frozenset({number})), Net(net, sums=True, weights=_jitter(1e-3, number))
        add("older runtime", "latency_median", number, good, bad, "runtime", versions=versions)
    return cases


def alike_cases(count: int) -> list[Case]:
    """Return pairs that differ in harmless things only: one in four by exact metrics, the others by measurements."""
    cases = []
    for number in range(count):
        net = NETS[number % 3]
        metric = ("latency_median", "latency_median", "peak_memory_mb", "cosine")[number % 4]
        quantized = ALL if metric == "cosine" else frozenset()
        good = Net(net, quantized)
        passing = frozenset({number % LAYERS, (number + 3) % LAYERS})
        # Numbers in the seventh digit, and steps that the runtime takes out: another file, the same work and answers.
        bad = Net(net, quantized, passing=passing, weights=_jitter(1e-7, number))
        name = f"alike {number} ({net})"
        cases.append(Case(name, "alike", metric, good, bad, {"threads": 1}, {"threads": 1, **_DECOYS}))
    return cases


class Bench:
    """Records the ends of a case as a user would, and bisects them."""

    def __init__(self, folder: Path, runtimes: Mapping[str, str]) -> None:
        self._folder = folder
        self._runtimes = runtimes

    def answer(self, case: Case) -> dict[str, Any]:
        """Return what a bisection of a case found."""
        devices = [self._device(case, place) for place in (0, 1)]
        started = time.monotonic()
        home = self._folder / "homes" / case.shelf.replace(" ", "-")
        with HubContext("bisect", devices, home=home, tags={"case": case.name}) as ctx:
            store = ctx.client.store
            assert store is not None
            ids = [self._recorded(ctx, case, place) for place in (0, 1)]
            plan = plan_bisection(ctx, ids[0], ids[1], metric=case.metric, device="bad")
            result = bisect(ctx, plan, settings=_SETTINGS)
        names = sorted(name for cause in result.found.causes for name in cause.names)
        undecided = sorted(each.name for each in result.undecided)
        return {
            "case": case.name, "kind": case.kind, "metric": case.metric, "planted": sorted(case.planted),
            "found": names, "undecided": undecided,
            "is_hit": case.is_hit_by(names, undecided),
            "switches": sum(each.refusal is None for each in result.switches),
            "parts": len(result.found.refined), "decisions": len(result.decisions),
            "sittings": sum(each.sittings for each in result.decisions), "sentence": result.sentence(),
            "operators": [each.op_type for each in result.operators],
            "open": sum(each.answer is Answer.OPEN for each in result.decisions),
            "seconds": round(time.monotonic() - started, 1), "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip

    def _device(self, case: Case, place: int) -> Device:
        settings = {**_QUICK, **(case.good_settings, case.bad_settings)[place]}
        name = ("good", "bad")[place]
        if case.versions is None:
            return Device(name, provider_config=ONNXRuntimeConfig(**settings), lease_dir=None)
        python = self._runtimes[case.versions[place]]
        config = EmbedlONNXRuntimeConfig("/nonexistent/embedl-onnxruntime", python_path=python, **settings)
        return Device(name, LocalCommandRunner(), provider_type="embedl_onnxruntime", provider_config=config,
                      lease_dir=None, artifact_root=str(self._folder / "board"))  # fmt: skip

    def _recorded(self, ctx: HubContext, case: Case, place: int) -> str:
        """Return the run of an end; the one of an earlier process if there is one."""
        device, store = ("good", "bad")[place], ctx.client.store
        assert store is not None
        key = f"{case.shelf if place == 0 else case.name} {device}"
        for run in store.tagged("end", [key]):
            if str(run.status) == "FINISHED":
                return run.id
        path = self._folder / "ends" / case.name.replace(" ", "-") / f"{device}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save((case.good, case.bad)[place].model(), path)
        model = keep_model(ctx, ONNXRuntimeProfiler, path)
        assert isinstance(model, ONNXRuntimeCompiledModel)
        if case.metric == "cosine":
            seed = (case.good_data, case.bad_data)[place]
            shape = [each.dim_value for each in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
            data = np.random.default_rng(7).normal(size=shape).astype(np.float32) * (1 + 40 * seed)
            answers = ONNXRuntimeInvoker().run(ctx, model, {"x": data}, device=device)
            # What its answers are compared with: the same network in float, as it was before anything was changed.
            onnx.save(Net(case.good.kind).model(), path.with_name("float.onnx"))
            answers.compare(path.with_name("float.onnx"), ctx=ctx)
            run = store.find("type = 'EVAL'", limit=1).runs[0]
        else:
            run = run_of(ctx, ONNXRuntimeProfiler(name=case.name[:100]).run(ctx, model, device=device))
        store.label(run.id, "end", key)
        return run.id


def figures(data: Mapping[str, Any]) -> list[Figure]:
    """Return what is quoted: exact hits among planted causes, and pairs without a cause that were blamed."""
    planted, alike = data["planted"], data["alike"]
    timed = [row for row in planted if row.get("metric") == "latency_median"]
    runtimes = [row for row in planted if row["kind"] == "older runtime"]
    counts = {
        "planted causes found exactly": (planted, sum(row["is_hit"] for row in planted)),
        "planted causes of latency found exactly": (timed, sum(row["is_hit"] for row in timed)),
        "the slower operator of a runtime named alone": (
            runtimes, sum(row.get("operators") == [SLOWER_OPERATOR] for row in runtimes),
        ),
        # One that could not be asked proves nothing, so it counts against us.
        "equal pairs blamed": (alike, sum(bool(row["found"]) or "error" in row for row in alike)),
    }  # fmt: skip
    made = {
        words: rate(f"{words}, of {len(rows)}", count, len(rows)) for words, (rows, count) in counts.items() if rows
    }
    limits = {"planted causes found exactly": 100 * LEAST_FOUND}
    return [
        figure.at_most(100 * MOST_BLAMED) if words == "equal pairs blamed"
        else figure.at_least(limits[words]) if words in limits else figure
        for words, figure in made.items()
    ]  # fmt: skip


def main() -> None:
    """Go through the cases, one after the other, as far as the time allows."""
    options = parser(__doc__)
    options.add_argument("--planted", type=int, default=30)
    options.add_argument("--alike", type=int, default=100)
    options.add_argument("--minutes", type=float, default=240.0)
    options.add_argument("--folder", type=Path, help="where the runs are kept, to go on with later")
    options.add_argument(
        "--runtimes", default="", help="two versions of ONNX Runtime, OLD=PYTHON,NEW=PYTHON; made if not given"
    )
    arguments = options.parse_args()
    session = Session("bisect", options, arguments)
    runtimes = dict(word.split("=", 1) for word in arguments.runtimes.split(",") if word)
    runtimes = runtimes or {version: str(python_of(each)) for version, each in VERSIONS.items()}
    deadline = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cases = planted_cases(tuple(runtimes))
        wanted = {"planted": cases[: arguments.planted], "alike": alike_cases(arguments.alike)}
        data: dict[str, Any] = {"settings": vars(_SETTINGS), "planted": [], "alike": []}
        for kind, several in wanted.items():
            for case in several:
                if time.monotonic() < deadline or _done(folder, case).exists():
                    row = _row(folder, runtimes, case)
                    data[kind].append(row)
                    print(json.dumps(row), flush=True)
    made = figures(data)
    session.finish(data, made, packages=("onnxruntime",))
    sys.exit(0 if all(figure.met is not False for figure in made) else 1)


def _done(folder: Path, case: Case) -> Path:
    return folder / "rows" / f"{case.name.replace(' ', '-')}.json"


def _row(folder: Path, runtimes: Mapping[str, str], case: Case) -> dict[str, Any]:
    path = _done(folder, case)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            row = Bench(folder, runtimes).answer(case)
        except HubError as error:
            row = {"case": case.name, "kind": case.kind, "planted": sorted(case.planted), "found": [], "undecided": [],
                   "is_hit": False, "error": str(error)}  # fmt: skip
        path.write_text(json.dumps(row), encoding="utf-8")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**found, "planted": sorted(case.planted), "is_hit": case.is_hit_by(found["found"], found["undecided"])}


if __name__ == "__main__":
    main()
