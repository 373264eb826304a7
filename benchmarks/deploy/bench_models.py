"""Which networks go the whole way, and does the file do what was simulated?

timm's, Hugging Face's and torchvision's networks with random weights, each through transform, quantize, export_onnx,
verify, check and ONNX Runtime, for three targets. Every network has a process of its own with a time limit; rows are
kept as they are made, and a second run goes on where the first one stopped.
"""

import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import report  # noqa: E402
from figures import Figure, declared  # noqa: E402
from support import deploy_zoo as zoo  # noqa: E402

from embedl_deploy import transform  # noqa: E402
from embedl_deploy.dialect import check, input_names  # noqa: E402
from embedl_deploy.export import export_onnx, verify  # noqa: E402
from embedl_deploy.quantize import quantize  # noqa: E402
from embedl_deploy.target import get_target  # noqa: E402

TARGETS = ("onnxruntime-x86", "tensorrt", "litert")
LEAST_DB = 45.0
BIT_EQUAL = 200.0  # what `_worst` gives for no difference
SAMPLES = 4
WEIGHTED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "LSTM", "GRU"})
COLUMNS = {
    "route": "traced by", "quantized": "quantized", "norms": "BatchNormalization", "simulated_db": "simulated",
    "written_db": "as written", "running_db": "as it runs", "verified": "verify", "export_s": "export",
}  # fmt: skip
Row = dict[str, Any]


# What goes to every target; the others go to the first one, for the time it takes.
EVERYWHERE = frozenset({
    "hf:bert", "hf:clip", "hf:convnext", "hf:detr", "hf:distilbert", "hf:gpt2", "hf:llama", "hf:mobilenet_v2",
    "hf:mobilevit", "hf:resnet", "hf:segformer", "hf:swin", "hf:t5", "hf:vit", "hf:wav2vec2", "hf:whisper",
})  # fmt: skip
TIMM = (
    "lcnet_050", "mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv4_conv_small", "convnext_atto",
    "efficientvit_m0", "fasternet_t0", "edgenext_xx_small", "levit_128s", "mobileone_s0", "repvgg_a0",
    "mobilevit_xxs", "poolformer_s12", "pvt_v2_b0", "regnety_002", "repghostnet_050", "resnet18",
    "rexnet_100", "starnet_s050", "vit_tiny_patch16_224", "ghostnetv2_100", "mixnet_s", "swiftformer_xs",
    "xcit_nano_12_p16_224", "selecsls42b", "skresnet18", "hardcorenas_a", "vgg11_bn", "fastvit_t8",
    "efficientnet_b0", "repvit_m0_9", "dla46_c", "ese_vovnet19b_dw", "legacy_seresnet18", "resmlp_12_224",
    "mixer_s32_224",
)  # fmt: skip
TORCHVISION = (
    "resnet18", "mobilenet_v2",
)  # fmt: skip


def names(*, every: bool = False) -> list[str]:
    """List networks, by family; all of the zoo, or those that are run unless others are named."""
    found = [f"timm:{name}" for name in (zoo.TIMM if every else TIMM)]
    found += [f"hf:{name}" for name in zoo.hugging_face_names()]
    if not every:
        return [*found, *(f"tv:{name}" for name in TORCHVISION)]
    found += [f"tv:{name}" for name in (*zoo.SEGMENTATION, *zoo.VIDEO, *zoo.FLOW, *zoo.DETECTION)]
    return found + [f"tv:{name}" for name in zoo.classification_names()]


def targets_of(name: str, asked: list[str] | None) -> list[str]:
    """List the targets of a network."""
    return asked if asked is not None else list(TARGETS) if name in EVERYWHERE else [TARGETS[0]]


def build(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Build a network and its example inputs."""
    family, _, one = name.partition(":")
    if family == "hf":
        model, kwargs = zoo.hugging_face(one)
        return model, (), kwargs
    if family == "timm":
        make: Any = zoo.timm_model
    elif one in zoo.VIDEO:
        make = zoo.video_model
    elif one in zoo.FLOW:
        make = zoo.flow_model
    else:
        make = zoo.detection_model if one in zoo.DETECTION else zoo.torchvision_model
    model, args = make(one)
    return model, args, {}


class Chain:
    """One network on the way to one target; what is known so far is in `row`."""

    def __init__(self, name: str, target: str, folder: Path) -> None:
        self.name, self.target, self.folder = name, target, folder
        self.row: Row = {"name": name, "target": target, "stage": "build", "failure": ""}

    def run(self) -> Row:
        """Go as far as it goes."""
        try:
            self._run()
        except Exception as exc:  # noqa: BLE001 - every failure is a row of the table
            text = " ".join(str(exc).split()) or type(exc).__name__
            self.row["failure"] = f"{type(exc).__name__}: {text}"[:600]
            self.row["trace"] = [line.strip() for line in traceback.format_exc().splitlines()[-14:]]
        return self.row

    def _run(self) -> None:

        model, args, kwargs = build(self.name)
        given: Any = kwargs or None
        samples = [self._another(args, kwargs, seed) for seed in range(2 * SAMPLES)]
        calibration, unseen = samples[:SAMPLES], samples[SAMPLES:]
        with torch.no_grad():
            wanted = [self._outputs(model(*some, **named)) for some, named in unseen]
        self._reach("transform")
        transformed = transform(model, args, target=self.target, kwargs=given)
        self.row["route"] = transformed.report.route
        self._reach("quantize")
        batches: Any = [named or some for some, named in calibration]
        quantized = quantize(transformed.model, args, None, batches, target=self.target, kwargs=given)
        self._reach("simulate")
        with torch.no_grad():
            simulated = [self._outputs(quantized(*some, **named)) for some, named in unseen]
        self.row["simulated_db"] = self._worst(wanted, simulated)
        self._reach("export")
        started = time.process_time()
        path = export_onnx(quantized, args, self.folder / "net.onnx", target=self.target, kwargs=given)
        self.row["export_s"] = round(time.process_time() - started, 2)
        self._count(path)
        self._reach("run as written")
        feeds = [self._feed(path, some, named) for some, named in unseen]
        self.row["written_db"] = self._worst(simulated, self._file(path, feeds, optimize=False))
        self._reach("run")
        self.row["running_db"] = self._worst(simulated, self._file(path, feeds, optimize=True))
        self._reach("check")
        contract = check(path, get_target(self.target).dialect)
        self.row["coverage"] = str(contract.coverage)
        self._reach("verify")
        stages = {"original": model, "transformed": transformed.model, "simulated": quantized}
        given_by = [feed if kwargs else tuple(feed.values()) for feed in feeds[:2]]
        verdict = verify(path, given_by, **stages)
        self.row["verified"] = "passed" if verdict.passed else "failed"
        if not verdict.passed:
            self.row["verdict"] = verdict.verdict[:900]
        self._reach("done")

    def _reach(self, stage: str) -> None:
        """Note the stage that begins, where it is found when this process is killed."""
        self.row["stage"] = stage
        (self.folder / "row.json").write_text(json.dumps(self.row))

    @staticmethod
    def _another(args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Draw inputs like the example's."""
        torch.manual_seed(seed + 1)

        def drawn(value: Any) -> Any:  # noqa: ANN401
            if not isinstance(value, torch.Tensor):
                return value
            if value.is_floating_point():
                return torch.randn_like(value) if value.min() < 0 else torch.rand_like(value)
            return value.flatten()[torch.randperm(value.numel())].reshape(value.shape) if value.ndim == 2 else value

        return pytree.tree_map(drawn, (args, kwargs))  # type: ignore[no-any-return]

    @staticmethod
    def _outputs(found: Any) -> list[Any]:  # noqa: ANN401

        leaves = pytree.tree_leaves(dict(found) if hasattr(found, "items") else found)
        return [leaf.detach().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    @staticmethod
    def _feed(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name the inputs as the file does; those that the model does not use are not in it."""
        known = input_names(path)
        if kwargs:
            return {name: kwargs[name].numpy() for name in known}
        leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        return {name: leaf.numpy() for name, leaf in zip(known, leaves, strict=True)}

    @staticmethod
    def _file(path: Path, feeds: list[dict[str, Any]], *, optimize: bool) -> list[list[Any]]:

        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [session.run(None, feed) for feed in feeds]

    @staticmethod
    def _worst(wanted: list[list[Any]], found: list[list[Any]]) -> float:
        """Return the decibels of the output that is worst, over all samples."""
        worst = 200.0
        for place in range(len(wanted[0])):
            one, two = (np.concatenate([np.ravel(row[place]).astype(np.float64) for row in side])
                        for side in (wanted, found))  # fmt: skip
            noise = float(((one - two) ** 2).sum())
            if noise:
                worst = min(worst, float(10 * np.log10(max(float((one**2).sum()), 1e-30) / noise)))
        return round(worst, 1)

    def _count(self, path: Path) -> None:
        """Count the operators with weights, how many are quantized, and the norms that are left."""
        graph = onnx.load(path).graph
        makers = {name: node for node in graph.node for name in node.output}
        constants = {value.name for value in graph.initializer}

        def is_codes(name: str) -> bool:
            maker = makers.get(name)
            return maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] in constants

        weighted = [node for node in graph.node if node.op_type in WEIGHTED - {"Gather"}
                    and any(name in constants or is_codes(name) for name in node.input[1:2])]  # fmt: skip
        done = [node for node in weighted if is_codes(node.input[1])]
        self.row["quantized"] = f"{len(done)}/{len(weighted)}"
        self.row["norms"] = sum(node.op_type == "BatchNormalization" for node in graph.node)


def _without_paths(row: Row) -> Row:
    """Leave out where packages lie on this machine."""
    cleaned: Row = {key: value for key, value in row.items() if key != "trace"}
    for key in ("failure", "verdict"):
        if key in cleaned:
            cleaned[key] = re.sub(r"/[^ ]*/site-packages/", "", cleaned[key])
    return cleaned


def work(name: str, targets: list[str], folder: Path) -> None:
    """Run one network, in a process of its own."""
    with (folder / "log.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        for target in targets:
            row = Chain(name, target, folder).run()
            with (folder / "rows.jsonl").open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            (folder / "row.json").unlink(missing_ok=True)


def apart(name: str, targets: list[str], folder: Path, limit_s: float) -> list[Row]:
    """Run one network in a process of its own; a crash and a time-out are rows too."""
    place = folder / name.replace(":", "_")
    place.mkdir(parents=True, exist_ok=True)
    rows_path = place / "rows.jsonl"
    rows_path.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(target=work, args=(name, targets, place))
    process.start()
    process.join(limit_s)
    ended = f"not done after {limit_s:.0f} s" if process.is_alive() else f"the process ended with {process.exitcode}"
    if process.is_alive():
        process.kill()
        process.join()
    rows = [json.loads(line) for line in rows_path.read_text().splitlines()] if rows_path.exists() else []
    part = place / "row.json"
    for target in targets[len(rows) :]:
        row = {"name": name, "target": target, "stage": "build"}
        if part.exists():
            row = json.loads(part.read_text())
            part.unlink()
        rows.append({**row, "target": target, "failure": ended})
    for path in place.glob("*.onnx*"):
        path.unlink()
    return rows


def is_equal(row: Row) -> bool:
    """Tell whether a file is the simulated model: to 45 dB as written, or to the bit as it runs."""
    return bool(row.get("written_db", 0.0) >= LEAST_DB or row.get("running_db", 0.0) >= BIT_EQUAL)


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    rows = data["rows"]
    found = []
    for target in TARGETS:
        of = [row for row in rows if row["target"] == target]
        done = sum(row["stage"] == "done" for row in of)
        passed = sum(row.get("verified") == "passed" for row in of)
        equal = sum(map(is_equal, of))
        found += [
            declared(f"{target}: networks of {len(of)} that go the whole way", "", done, 0).at_least(0.98 * len(of)),
            declared(f"{target}: networks of {len(of)} that verify passes", "", passed, 0).at_least(0.98 * len(of)),
            declared(f"{target}: files of {len(of)}, {LEAST_DB:.0f} dB as written or equal bits", "", equal, 0)
            .at_least(len(of)),
        ]  # fmt: skip
    return [figure.in_short() for figure in found]


def main() -> None:
    """Run what is not known yet, and print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="*", help="names of networks; a selection when left out")
    parser.add_argument("--every", action="store_true", help="all networks of the zoo")
    parser.add_argument("--targets", nargs="*", help="targets of all networks; the first one, and three for some")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one network")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "models", help="where rows are kept")
    parser.add_argument("--fresh", action="store_true", help="run again what is known already")
    options = parser.parse_args()
    session = report.Session("models", parser, options)
    options.folder.mkdir(parents=True, exist_ok=True)
    store = options.folder / "rows.jsonl"
    known = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    rows = {(row["name"], row["target"]): row for row in known}
    chosen = options.only if options.only is not None else names(every=options.every)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    for name in chosen:
        wanted = targets_of(name, options.targets)
        targets = [target for target in wanted if options.fresh or (name, target) not in rows]
        if not targets:
            continue
        for row in apart(name, targets, options.folder, options.limit):
            rows[name, row["target"]] = row
            with store.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            told = [f"{row[key]}" for key in COLUMNS if key in row]
            print(name, row["target"], *told, row["failure"], flush=True)
    kept = [rows[name, target] for name in chosen for target in targets_of(name, options.targets)]
    data = {"rows": [_without_paths(row) for row in kept]}
    session.finish(data, figures(data), packages=("torch", "torchvision", "timm", "transformers", "onnxruntime"))


if __name__ == "__main__":
    main()
