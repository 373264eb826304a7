"""The tables in the pages, made from the result files and from nothing else.

A page says ``<!-- figures:NAME -->`` and ``<!-- /figures -->`` on lines of their own; what stands between them is
written by ``./bench --tables``. NAME is ``measured`` for the short table of all benchmarks, a benchmark's name for its
own, or ``NAME-all`` for every figure of it with its spread. Each family that a benchmark was measured on has a table
of its own.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

import figures
from report import BUSY, family_of, load_of, named, number, read_results

from embedl_kernels import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from figures import Figure

MARKED = re.compile(r"(<!-- figures:(?P<name>[\w-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
SHORT = (
    "store", "query", "page", "serve", "gate", "loadgen", "paired", "sweep", "cli", "transfer", "dispatch",
    "onnxruntime", "tflite", "transform",
)  # fmt: skip
NOTHING = "not measured"
NETS = {
    "resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2", "vit_6x384": "ViT, 6 blocks of 384",
    "convnext_tiny": "ConvNeXt-T", "unet": "U-Net", "resnet20": "ResNet-20", "swin_t": "Swin-T",
    "mobilenet": "MobileNet with SE and hard-swish", "vit": "ViT, small", "segmentation": "segmentation",
    "resnet50-plain": "ResNet-50, as drawn", "mobilenet_v2-plain": "MobileNetV2, as drawn",
    "vit_6x384-plain": "torchvision's ViT, as drawn",
}  # fmt: skip
CANDIDATES = {
    "edgeproof": "ours", "edgeproof, cures": "ours, with corrections",
    "onnxruntime u8": "`onnxruntime.quantization`, u8 by hand",
    "onnxruntime u8 percentile": "the same, percentile", "onnxruntime default": "its default", "nncf": "NNCF",
    "modelopt-onnx": "ModelOpt", "torchao pt2e": "torchao",
}  # fmt: skip

FILES = {
    "portable": "ours, `onnxruntime-x86`", "vnni": "ours, `onnxruntime-x86-vnni`", "arm": "ours, `onnxruntime-arm`",
    "onnxruntime u8": "`onnxruntime.quantization`, u8 × s8", "onnxruntime u8 reduced": "the same, `reduce_range`",
    "onnxruntime u8u8": "u8 × u8", "onnxruntime s8s8": "s8 × s8",
}  # fmt: skip
PROCESSORS = {"x86-vnni": "with VNNI", "x86-avx2": "without VNNI"}
HOST = "host"
NEAR_DB = 1.0
AS_DRAWN = "-plain"


Results = dict[str, dict[str, dict[str, Any]]]
"""By benchmark and family."""


def pages(root: Path) -> list[Path]:
    """Return the pages that have tables."""
    every = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("benchmarks/**/*.md")]
    return [page for page in sorted(every) if MARKED.search(page.read_text())]


def write(root: Path) -> list[Path]:
    """Write the tables of every page, and return the pages that changed."""
    results, changed = read_results(), []
    for page in pages(root):
        text = page.read_text()
        if (new := fill(text, results)) != text:
            page.write_text(new)
            changed.append(page)
    return changed


def fill(text: str, results: Results) -> str:
    """Return a page with its tables as the results have them."""
    return MARKED.sub(lambda found: f"{found[1]}{render(found['name'], results)}\n{found[3]}", text)


def render(name: str, results: Results) -> str:
    """Return one table with what it comes from."""
    whole = name.removesuffix("-all")
    if name == "measured":
        measured = [results[each] for each in SHORT if each in results]
        return _blocks(
            {
                family: _short([by_family[family] for by_family in measured if family in by_family])
                for family in _in_order({family for by_family in measured for family in by_family})
            }
        )
    if whole not in results:
        names = sorted(("measured", *results, *(f"{each}-all" for each in results)))
        raise KeyError(f"No figures are called {name!r}; there are: {', '.join(names)}.")
    make = _MAKERS.get(name, _every if name != whole else _one)
    measured_on = results[whole]
    return _blocks(
        {family: f"{make(measured_on[family])}\n\n{_source(measured_on[family])}" for family in _in_order(measured_on)}
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Return families as the product lists them, GPUs after them."""
    known = [family.name for family in FAMILIES]
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))


def _blocks(tables: dict[str, str]) -> str:
    """Return the tables of all families: a line above names the family where there are several."""
    if len(tables) == 1:
        return next(iter(tables.values()))
    return "\n\n".join(f"**{family}**\n\n{text}" for family, text in tables.items())


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose lines change only with their own cells."""
    lines = chain((titles, ["---"] * len(titles)), rows)
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def _short(results: list[dict[str, Any]]) -> str:
    rows = [
        _short_row(figure)
        for result in results
        for figure in figures.read(result["figures"]).values()
        if figure.headline
    ]
    return table(("what", "ours", "opponent", "ratio and its spread"), rows) + "\n\n" + _sources(results)


def _one(result: dict[str, Any]) -> str:
    read = figures.read(result["figures"]).values()
    drawn = table(("what", "ours", "opponent", "ratio and its spread"), [_short_row(figure) for figure in read])
    return drawn + _missed(result)


def _missed(result: dict[str, Any]) -> str:
    read = figures.read(result["figures"]).values()
    missed = [f"{figure.what} ({figure.limit})" for figure in read if figure.met is False]
    return f"\n\nRequired and missed: {'; '.join(missed)}." if missed else ""


def _every(result: dict[str, Any]) -> str:
    rows = [
        (*_short_row(figure), figure.spread, figure.limit or "-", {None: "-", True: "yes", False: "**no**"}[figure.met])
        for figure in figures.read(result["figures"]).values()
    ]  # fmt: skip
    return table(("what", "ours", "opponent", "ratio and its spread", "spread is", "required", "met"), rows)


def _short_row(figure: Figure) -> tuple[str, str, str, str]:
    what = figure.what if figure.failed else figure.what.partition(", against ")[0]
    opponent = "-"
    if figure.failed:
        opponent = f"{figure.opponent}: none, {figure.failed}"
    elif figure.theirs is not None:
        opponent = f"{figure.opponent}: {number(figure.theirs, figure.unit)}"
    elif figure.opponent:
        opponent = figure.opponent
    return what, number(figure.ours, figure.unit), opponent, _ratio(figure)


def _ratio(figure: Figure) -> str:
    if figure.ratio is None:
        same = figure.low == figure.high
        return "-" if same else f"{number(figure.low, '')} to {number(figure.high, figure.unit)}"
    is_time = figure.unit.endswith("s") and "/" not in figure.unit
    if is_time and figure.ratio < 0.5:
        return f"{1 / figure.ratio:.1f} times faster ({1 / figure.high:.1f} to {1 / figure.low:.1f})"
    return f"{_share(figure.ratio)} ({_share(figure.low)} to {_share(figure.high)})"


def _share(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _int8(result: dict[str, Any]) -> str:
    return _nets(result, "nets", lambda row: f"{row['speed_up']:.2f}×, {row['sqnr_db']:.1f} dB", "speed_up", max)


def _families(result: dict[str, Any]) -> str:
    nets = result["data"]["nets"]
    return _by_family(result, [net for net in nets if not net.endswith(AS_DRAWN)])


def _families_all(result: dict[str, Any]) -> str:
    return _by_family(result, list(result["data"]["nets"]))


def _by_family(result: dict[str, Any], nets: list[str]) -> str:
    """Return networks and processors against files; bold is the fastest that answers as the quantized network does."""
    lines = []
    kernels = {family_of(result) if kept == HOST else kept: kept for kept in result["data"]["families"]}
    for net in nets:
        rows = result["data"]["nets"][net]
        simulated = rows["simulated"]["sqnr_db"]
        for family, processor in PROCESSORS.items():
            if family not in kernels:
                continue
            found = {name: rows.get(name, {}).get("families", {}).get(kernels[family]) for name in FILES}
            near = [one["speed_up"] for one in found.values() if one and one["sqnr_db"] >= simulated - NEAR_DB]
            cells = []
            for one in found.values():
                bold = "**" if one and near and one["speed_up"] == max(near) else ""
                cells.append(f"{bold}{one['speed_up']:.2f}×, {one['sqnr_db']:.1f} dB{bold}" if one else "fails")
            lines.append([_net(net), processor, f"{simulated:.1f} dB", *cells])
    titles = [f"{FILES[name]} {_version(result, name)}".strip() for name in FILES]
    return table(("network", "x86", "simulated", *titles), lines)


def _faults(result: dict[str, Any]) -> str:
    """Every planted fault: the file it is in, what `verify` said first, and the layer it named."""
    rows = [
        [
            row["fault"], f"{row['net']}, {row['form']}", "yes" if row["found"] else "**no**",
            row["named"] if row["named"] == row["layer"] else f"**{row['named']}**, not {row['layer']}", row["said"],
        ]
        for row in result["data"]["faults"]
    ]  # fmt: skip
    return table(("fault", "file", "found", "first wrong layer", "what verify says"), rows)


def _calibration(result: dict[str, Any]) -> str:
    """Every network and planted fault of preprocessing: told or not, and the explanation."""
    rows = [
        [
            row["net"], row["fault"], "yes" if row["verdict"] == "faulty" else f"**no**: {row['verdict']}",
            f"{row['distance']:.2f}", NOTHING if row["repaired"] is None else f"{row['repaired']:.2f}",
            _plain(row["said"]),
        ]
        for row in result["data"]["faults"]
    ]  # fmt: skip
    return table(("network", "planted", "told", "distance", "without it", "what is said"), rows)


def _bounds(result: dict[str, Any]) -> str:
    """Every kind of samples: how often the bound is LoadGen's, and how often each side's covers the truth."""
    rows = []
    for kind, percents in result["data"]["kinds"].items():
        for name, tally in percents.items():
            equal = f"{tally['equal']:,} of {tally['asked']:,}" if tally["asked"] else NOTHING
            sides = [(tally["told"], tally["covered"]), (tally["loadgen_told"], tally["loadgen_covered"])]
            covered = [f"{100 * right / told:.1f} % of {told:,}" if told else "-" for told, right in sides]
            rows.append([kind, name, f"{tally['cases']:,}", equal, *covered])
    titles = ("samples", "percentile", "cases", "equal to LoadGen's", "our bound covers", "LoadGen's bound covers")
    return table(titles, rows)


def _runtime_accuracy(result: dict[str, Any]) -> str:
    """One network on every runtime: accuracy, what was lost, latency with its verdict, memory, size, parity."""

    def cell(value: float | None, digits: str) -> str:
        return "-" if value is None else format(value, digits)

    rows = [
        [
            NETS.get(row["network"], row["network"]), row["option"], cell(row["accuracy"], ".2f"),
            cell(row["lost"], "+.2f"), cell(row["latency_ms"], ".3g"), row["verdict"], cell(row["memory_mb"], ".0f"),
            cell(row["size_mb"], ".3g"), cell(row["cosine"], ".6g"),
        ]
        for row in result["data"]["rows"]
    ]  # fmt: skip
    head = ("network", "runtime", "right, %", "lost", "median, ms", "verdict", "memory, MB", "file, MB", "cosine")
    return table(head, rows)


def _litert(result: dict[str, Any]) -> str:
    """Return networks against what was simulated, what LiteRT runs, and what its own quantizer makes."""
    lines = []
    for net, row in result["data"]["nets"].items():
        ours, theirs = (f"{row['db'][who]:.1f} dB, {min(row['rounds_ms'][who]):.3f} ms" for who in LITERT)
        agree = "{} of {}".format(*row["agree"])
        lines.append([net, f"{row['simulated_db']:.1f} dB", ours, theirs, agree, row["costs"] or "-"])
    titles = (
        "network",
        "simulated",
        "ours in LiteRT",
        "ai-edge-quantizer's",
        "predicted as it ran",
        "what costs over 1 dB",
    )
    return table(titles, lines)


def _accuracy(result: dict[str, Any]) -> str:
    return _nets(result, "nets", lambda row: f"{row['drop']:.2f}", "drop", min)


def _ptq(result: dict[str, Any]) -> str:
    return _nets(result, "costs", lambda row: f"{min(row['rounds_s']):.2f} s, {row['peak_mb']:.0f} MB", "", min)


def _nets(
    result: dict[str, Any], key: str, cell: Callable[[dict[str, Any]], str], best_of: str, best: Callable[..., float]
) -> str:
    """Return networks against candidates; what failed or is missing says so, and why below."""
    nets = result["data"][key]
    names = [name for name in CANDIDATES if any(name in rows for rows in nets.values())]
    titles = ["network", *(f"{CANDIDATES[name]} {_version(result, name)}".strip() for name in names)]
    lines, notes = [], {}
    for net, rows in nets.items():
        right = {name: rows[name] for name in names if name in rows and "failed" not in rows[name]}
        winner = best(row[best_of] for row in right.values()) if best_of else None
        cells = []
        for name in names:
            if name in right:
                bold = "**" if best_of and right[name][best_of] == winner else ""
                cells.append(f"{bold}{cell(right[name])}{bold}")
            elif name in rows:
                cells.append("fails")
                notes[f"{CANDIDATES[name]}, {_net(net)}"] = rows[name]["failed"]
            else:
                cells.append(NOTHING)
        lines.append([_net(net, rows), *cells])
    said = [f"- {who}: {' '.join(why.split())}" for who, why in notes.items()]
    return table(titles, lines) + ("\n\nWhat failed:\n\n" + "\n".join(said) if said else "")


def _version(result: dict[str, Any], name: str) -> str:
    said = result["peers"].get(name, "")
    return "(not installed)" if said.startswith("missing") else str(said)


def _net(name: str, rows: dict[str, Any] | None = None) -> str:
    plain, comma, rest = name.partition(",")
    right = (rows or {}).get("float", {}).get("right")
    return NETS.get(plain, plain) + (f" ({right:.1f} %)" if right and not comma else "") + comma + rest


def _gpu(result: dict[str, Any]) -> str:
    """Draw multiples of the plain pass and the plain step, ours and the opponents'."""
    peers = sorted({title.partition(", ")[2] for row in _gpu_rows(result).values() for title in row["ms"]} - {""})
    rows = []
    for (batch, net), row in _gpu_rows(result).items():
        passes = [_beside(row, "calibration", "forward", peer) for peer in ("", *peers)]
        steps = [_beside(row, "QAT step", "step", peer) for peer in ("", *peers)]
        more = [f"{row[key]:.2f}" if key in row else "-" for key in ("in_a_row", "graphed", "memory")]
        launched = " → ".join(f"{row['kernels'][title]['kernels']:,}" for title in ("step", "QAT step"))
        rows.append((_net(net), batch, *passes, *steps, *more, launched))
    kinds = [f"{what}, {peer}" if peer else what for what in ("calibration", "QAT step") for peer in ("", *peers)]
    rest = ("steps in a row", "as CUDA graphs", "memory", "kernels of a step, plain → quantized")
    return table(("network", "batch", *kinds, *rest), rows) + _missed(result)


def _compiled(result: dict[str, Any]) -> str:
    """Draw both steps of every network in both modes of the compiler."""
    rows = []
    for net, row in result["data"]["nets"].items():
        cells = [_compiled_cell(row[kind]) for kind in ("compiled", "reduced")]
        memory, launched = row["compiled"]["memory_mib"], row["compiled"]["kernels"]
        kernels = " → ".join(f"{launched[title]['kernels']:,}" for title in ("step", "QAT step"))
        rows.append((_net(net), *cells, f"{memory['QAT step'] / memory['step']:.2f}", kernels))
    modes = ("default mode", 'mode "reduce-overhead"')
    return table(("network", *modes, "memory", "kernels of a step, plain → quantized"), rows) + _missed(result)


def _compiled_cell(found: dict[str, Any]) -> str:
    both = found["median_ms"]
    return f"{found['ratio']:.2f} ({both['QAT step']:.1f} : {both['step']:.1f} ms)"


def _gpu_rows(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(batch, net): row for batch, nets in result["data"]["batches"].items() for net, row in nets.items()}


def _beside(row: dict[str, Any], what: str, plain: str, peer: str) -> str:
    """Return a time as a multiple of the plain one; an opponent that launched no more than that did nothing."""
    title = f"{what}, {peer}" if peer else what
    if title not in row["median_ms"]:
        return "not run"
    if peer and row["kernels"][title]["kernels"] <= row["kernels"][plain]["kernels"]:
        return "does nothing"
    return f"{row['median_ms'][title] / row['median_ms'][plain]:.2f}"


def _coverage(result: dict[str, Any]) -> str:
    rows = [
        (name, row["route"], f"{row['error']:.1e}", "WRONG" if row["fault"] else "equal", str(row["conversions"]),
         str(row["fusions"]), str(len(row["refusals"])),
         ", ".join(f"{count} {kind}" for kind, count in row["left"].items()) or "-")
        for name, row in result["data"]["tensorrt"].items()
    ]  # fmt: skip
    titles = (
        "model",
        "route",
        "error / range",
        "outputs",
        "conversions",
        "fusions",
        "refusals",
        "layers with weights left",
    )
    boards = [
        (name, row["layers"], f"{row['error']:.1e}", ", ".join(row["outside"]) or "-")
        for name, row in result["data"]["lattice"].items()
    ]
    lattice = table(("Lattice", "layers outside its set, before and after", "error / range", "still outside"), boards)
    return f"{_one(result)}\n\n{table(titles, rows)}\n\n{lattice}"


def _models(result: dict[str, Any]) -> str:
    keys = ("route", "quantized", "norms", "simulated_db", "written_db", "running_db", "verified", "export_s")
    rows = [
        (
            row["name"],
            row["target"],
            *(str(row.get(key, "-")) for key in keys),
            row["failure"] or row.get("verdict", ""),
        )
        for row in result["data"]["rows"]
    ]
    titles = (
        "network", "target", "traced by", "weighted operators quantized", "BatchNormalization left", "simulated, dB",
        "as written, dB", "as it runs, dB", "verify", "export, CPU s", "failure",
    )  # fmt: skip
    return f"{_one(result)}\n\n{table(titles, [tuple(_plain(cell) for cell in row) for row in rows])}"


def _fault_of(row: dict[str, Any]) -> str:
    return str(row["failure"] or row.get("verdict", ""))


def _plain(cell: str) -> str:
    """Return a cell that no text of others can break out of."""
    return " ".join(cell.replace("|", "/").split())


LITERT = ("litert dialect", "ai-edge-quantizer")
_MAKERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "int8": _int8, "litert": _litert, "runtime_accuracy": _runtime_accuracy, "families": _families,
    "families-all": _families_all, "accuracy": _accuracy, "ptq": _ptq, "gpu": _gpu, "compiled": _compiled,
    "coverage-all": _coverage, "faults-all": _faults, "calibration-all": _calibration, "models-all": _models,
    "loadgen-all": _bounds,
}  # fmt: skip


def _source(result: dict[str, Any]) -> str:
    load = load_of(result["machine"])
    peers = "".join(f"; {name} {version}" for name, version in _named(result).items())
    mark = "QUICK, " if result["quick"] else ""
    where = _where(result) + (f", {load}" if load else "")
    return f"`./bench {result['name']}`: {mark}{result['date'][:10]}, {where}{peers}."


def _where(result: dict[str, Any]) -> str:
    """Return what was measured on: cores of a processor and its family, or the GPU whose name is that of the family."""
    here, family = result["machine"], family_of(result)
    device = str(result["versions"].get("device") or result["versions"].get("gpu", ""))
    if family in named(device):
        return device
    return f"{here.get('cores', '?')} cores of {here.get('cpu', 'a CPU')} ({family})"


def _sources(results: list[dict[str, Any]]) -> str:
    versions = {name: version for result in results for name, version in _named(result).items()}
    machines = sorted({_where(result) for result in results})
    busy = [result["name"] for result in results if load_of(result["machine"]).endswith(BUSY)]
    names = " ".join(result["name"] for result in results)
    dates = sorted(result["date"][:10] for result in results)
    peers = "".join(f"; {name} {version}" for name, version in versions.items())
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    mark = f"; {BUSY}: {', '.join(busy)}" if busy else ""
    return f"`./bench {names}`: {days}, {', '.join(machines)}{mark}{peers}."


def _named(result: dict[str, Any]) -> dict[str, str]:
    """Return the versions of opponents that no column names."""
    return {name: said for name, said in result["peers"].items() if name not in CANDIDATES | FILES}
