"""Do rules that were learned from graphs of one operator tell where the nodes of whole networks run?

Sixty networks that no rule was learned from and that nobody looked at while the facts were chosen, thirty of them for
LiteRT (`dialect_nets`), quantized by ONNX Runtime's tools in two ways, and for other runtimes lowered by us from there.
Every node that computes counts once per file: it is right where the version's table, or for OpenVINO the whole graph as
`check` reads it, says integer, taken or float as the runtime itself tells.
Nodes of which a runtime tells nothing are left out and counted. Beside the table stand the rules of `check`.
And: how many nodes has the smallest graph of each change between two versions?

    python benchmarks/deploy/placed_by_rules.py [--runtimes NAME-VERSION ...] [--networks N] [--files LABEL ...]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from deploy import dialect_nets
from figures import Figure, declared, rate
from report import print_table

from embedl_deploy.dialect import check, get_dialect, get_table, known_versions
from embedl_deploy.dialect._check import predict
from embedl_deploy.dialect._facts import NOT_COMPUTING, facts_of
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._fuse import fuse, propagated
from embedl_deploy.dialect._model import name_nodes, read
from embedl_deploy.errors import DeployError, first_line
from embedl_deploy.rules import diff, open_probe
from embedl_deploy.rules._environment import python_with
from embedl_deploy.rules._probe import FAILED, UNTOLD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_deploy.dialect import RuleTable

    Data = dict[str, Any]

LIMITS = {"onnxruntime-1.31": 99.5, "onnxruntime-1.18": 99.0, "openvino": 99.0, "litert": 99.0}
OLD, NEW = "1.18", "1.31"
MOST_NODES = 6
PACKAGES = ("onnx", "onnxruntime", "openvino", "ai-edge-litert", "torch", "torchvision", "timm", "transformers")


def kind(outcome: str) -> str:
    """Return an outcome without the kernel's name."""
    return outcome.partition(" ")[0]


def by_hand(runtime: str, model: Any, qdq: Any) -> Mapping[str, str]:  # noqa: ANN401 - a model and its parts
    """Return what the rules that were written by hand say, of every node."""
    if runtime == "onnxruntime":
        kernels = fuse(propagated(qdq), signed_kernels=False)
        found = {kernel.node.name: "integer" if kernel.integer or kernel.rounded else "float" for kernel in kernels}
        return found | {name: "taken" for kernel in kernels for name in kernel.covers}
    rows = check(model, runtime).rows
    return {row.node: "integer" if row.state in ("integer", "unfused") else row.state for row in rows}


def by_graph(runtime: str, qdq: Any) -> dict[str, str]:  # noqa: ANN401 - a model in parts
    """Return what `check` predicts for a runtime without a table, from the whole graph."""
    found = dict.fromkeys((node.name for node in qdq.graph.node), "float")
    for kernel in predict(qdq, get_dialect(runtime)):
        found |= dict.fromkeys((kernel.node.name, *kernel.covers), "integer" if kernel.integer else "float")
    return found


def answer_of(probe: Any, model: Any, path: Path, *, fresh: bool = False) -> dict[str, str]:  # noqa: ANN401 - a probe
    """Return what a runtime makes of a file, kept: to load a network takes some of them a minute."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    kept = cache.folder("dialect", "answers") / f"{probe.runtime}-{probe.version}-{digest}.json"
    if fresh or not kept.exists():
        kept.write_text(json.dumps(dict(next(iter(probe.ask([model]))))), encoding="utf-8")
    found: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def judge(runtime: str, probe: Any, table: RuleTable | None, path: Path, *, fresh: bool = False) -> Data:  # noqa: ANN401
    """Compare prediction and runtime on one file."""
    try:
        model = load(path)
        name_nodes(model.graph)
        qdq = read(model)
    except DeployError as error:
        return {"failed": first_line(error)[:200]}
    real = answer_of(probe, model, path, fresh=fresh)
    if set(real.values()) <= FAILED:
        return {"failed": next(iter(real.values()), "no nodes")}
    nodes = facts_of(qdq)
    expected = by_graph(runtime, qdq) if table is None else table.placement(nodes)
    hand = by_hand(runtime, model, qdq) if runtime == "onnxruntime" else {}
    right = told = untold = hand_right = 0
    wrong: Counter[str] = Counter()
    for node in nodes:
        operator, answer = node.facts["operator"], real.get(node.name, UNTOLD)
        if operator in NOT_COMPUTING:
            continue
        if answer == UNTOLD:
            untold += 1
            continue
        told += 1
        is_right = kind(expected[node.name]) == kind(answer)
        right += is_right
        hand_right += kind(hand.get(node.name, "")) == kind(answer)
        if not is_right:
            wrong[f"{operator}: {kind(answer)}, predicted {kind(expected[node.name])}"] += 1
    return {"right": right, "told": told, "untold": untold, "by_hand": hand_right, "wrong": dict(wrong)}


def opened(name: str) -> tuple[str, Any, RuleTable | None]:
    """Return a runtime, what asks it, and its table if it has one."""
    runtime, _, version = name.partition("-")
    if runtime != "onnxruntime":
        probe: Any = open_probe(runtime)
        return runtime, probe, get_table(runtime, probe.version) if known_versions(runtime) else None
    known = [each for each in known_versions(runtime) if each.startswith(f"{version}.")]
    if not known:
        raise DeployError(f"there is no table of {name}")
    is_here = report.version_of(runtime) == known[-1]
    python = None if is_here else python_with(runtime, known[-1])
    return runtime, open_probe(runtime, python), get_table(runtime, known[-1])


def figures(data: Data) -> list[Figure]:
    """Return what is quoted: for each runtime the share of nodes, and the largest of the smallest graphs."""
    made = []
    for name, rows in data["runtimes"].items():
        good = [row for row in rows if "failed" not in row]
        told = sum(row["told"] for row in good)
        if not told:
            continue
        figure = rate(f"{name}: nodes placed as predicted", sum(row["right"] for row in good), told)
        made.append(figure.at_least(LIMITS[name]).in_short() if name in LIMITS else figure)
        if name.startswith("onnxruntime"):
            made.append(rate(f"{name}: the same by hand-written rules", sum(row["by_hand"] for row in good), told))
    if data["changes"]:
        most = declared(f"nodes of the largest graph that shows a change from {OLD} to {NEW}", "nodes",
                        max(data["changes"].values()), 0.0)  # fmt: skip
        made.append(most.at_most(MOST_NODES).in_short())
    return made


def main() -> None:
    """Print the tables."""
    parser = report.parser(__doc__)
    parser.add_argument("--runtimes", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--networks", type=int, default=len(dialect_nets.HELD_OUT), help="so many (%(default)s)")
    parser.add_argument("--files", nargs="+", default=[], help="only files of these makers, as dialect_nets calls them")
    parser.add_argument("--fresh", action="store_true", help="ask the runtimes again about files they answered for")
    parser.add_argument("--developed", action="store_true", help="the networks that were looked at instead")
    options = parser.parse_args()
    session = report.Session("dialect", parser, options)
    looked_at = (*dialect_nets.DEVELOPED, *dialect_nets.LOOKED_AT)
    names = (looked_at if options.developed else dialect_nets.HELD_OUT)[: options.networks]
    data: Data = {"runtimes": {}, "changes": {}}
    for title in options.runtimes:
        try:
            runtime, probe, table = opened(title)
        except DeployError as error:
            print(f"{title}: {error}", file=sys.stderr)
            continue
        rows = data["runtimes"].setdefault(title, [])
        labels = [label for label in dialect_nets.FOR[runtime] if not options.files or label in options.files]
        seen = () if options.developed else dialect_nets.LOOKED_AT_FOR.get(runtime, ())
        with probe:
            for name in (each for each in names if each not in seen):
                files = dialect_nets.files(name, labels)
                for label in labels:
                    row: Data = {"network": name, "file": label, "version": probe.version}
                    path = files.get(label)
                    row |= {"failed": "not made"} if path is None else judge(
                        runtime, probe, table, path, fresh=options.fresh
                    )  # fmt: skip
                    rows.append(row)
                    print(title, name, label, row.get("failed") or f"{row['right']} of {row['told']}", flush=True)
        _print(title, rows)
    if any(each.startswith(OLD) for each in known_versions("onnxruntime")):
        changes = diff("onnxruntime", OLD, NEW).changes
        data["changes"] = {f"{each.example} | {each.before} -> {each.after}": each.nodes for each in changes}
    session.finish(data, figures(data), packages=PACKAGES)


def _print(title: str, rows: list[Data]) -> None:
    good = [row for row in rows if "failed" not in row]
    wrong: Counter[str] = Counter()
    for row in good:
        wrong.update(row["wrong"])
    told, untold = sum(row["told"] for row in good), sum(row["untold"] for row in good)
    right, hand = sum(row["right"] for row in good), sum(row["by_hand"] for row in good)
    print(f"{title}: {right} of {told} right, {hand} by hand, {untold} untold, {len(rows) - len(good)} files failed")
    print_table(("operator, what ran and what was predicted", "nodes"), [[what, str(n)] for what, n in wrong.items()])


if __name__ == "__main__":
    main()
