"""``embedl-hub board``: a model on a board over SSH, float and INT8, with nothing prepared there but Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device.schema import NUMBER, TEXT, WHOLE, Shape, array, by_name, fields, maybe, of
from embedl_hub.cli._output import (
    PATH,
    RUINED,
    alarm,
    as_value,
    check_report_path,
    emit,
    home_option,
    json_option,
    number,
    pairs,
    read_shape,
    size,
    table,
    working,
    write_report,
)
from embedl_hub.cli._settings import project_in_use
from embedl_hub.cli.device import write_device
from embedl_hub.comparison import Comparison, compare
from embedl_hub.core import HubContext
from embedl_hub.core.device import DEVICES_FILE, Device, base_of, make_device, read_devices
from embedl_hub.core.document import headlines
from embedl_hub.core.steps import read_arrays
from embedl_hub.core.toolchain import board_toolchain
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import check_name, find_home

if TYPE_CHECKING:
    from embedl_hub.cli._on_board import Figures, Found
    from embedl_hub.machine.install import BoardPython

_ADDRESS = re.compile(r"(?:(?P<username>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^@:\s]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class _Target:
    """The board: its device, and the table it is kept by."""

    device: Device
    table: Mapping[str, Any]
    is_kept: bool


def _shape() -> Shape:
    from embedl_device.statistics import Summary, Verdict  # noqa: PLC0415 - only for the schema
    from embedl_hub.core.invoke import OutputDifference  # noqa: PLC0415
    from embedl_hub.machine.install import BoardPython  # noqa: PLC0415

    result = {
        "precision": TEXT, "latency_ms": of(Summary), "verdict": maybe(of(Verdict)), "verdict_reason": maybe(TEXT),
        "metrics": by_name(NUMBER), "size_bytes": WHOLE, "differences": array(of(OutputDifference)),
        "runs": by_name(TEXT),
    }  # fmt: skip
    return fields(
        {
            "device": TEXT, "python": of(BoardPython, version=array(WHOLE), libc=array(TEXT)),
            "results": array(fields(result)), "comparison": maybe(array(TEXT)), "notes": array(TEXT), "report": TEXT,
            "ruined": array(TEXT),
        }
    )  # fmt: skip


@click.command()
@click.argument("address", metavar="[USER@]HOST[:PORT]")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65_535), help="ssh: port.")
@click.option("--identity", type=click.Path(path_type=Path), help="ssh: private key; your agent's are used as well.")
@click.option("--jump-host", help="ssh: [user@]host[:port] to go through.")
@click.option("--known-hosts", type=click.Path(path_type=Path), help="ssh: another known_hosts file.")
@click.option("--config-file", type=click.Path(path_type=Path), help="ssh: another configuration.")
@click.option("--python", help="The board's Python; python3 if not given.")
@click.option("--name", help="Keep the board as a device of this name.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting: threads=2, min_seconds=5.")
@click.option("--input-shape", metavar="N,N,...", help="Fixes an open shape; an open batch alone becomes 1.")
@click.option(
    "--calibration-data", type=PATH, help="A folder of .npy or .npz files, or one .npz: what INT8 is calibrated on."
)
@click.option("--input-data", multiple=True, metavar="PATH", help="What both are run on: an .npz, or NAME=FILE.npy.")
@click.option("--float-only", is_flag=True, help="No INT8.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="The HTML file; MODEL-BOARD.html here.")
@click.option("--project", help="Record under this project; the one in use if not given.")
@home_option
@json_option(_shape)
def command(  # noqa: PLR0913, PLR0917 - click's options
    address: str, model: Path, port: int | None, identity: Path | None, jump_host: str | None,
    known_hosts: Path | None, config_file: Path | None, python: str | None, name: str | None, settings: tuple[str, ...],
    input_shape: str | None, calibration_data: Path | None, input_data: tuple[str, ...], float_only: bool,
    report: Path | None, project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Take an ONNX model to a board over SSH: compile, profile and run it there, as it is and as INT8.

    The board needs Python 3.8 or newer and a login without a password. NumPy and ONNX Runtime are sent there if it has
    none, into a folder of ours. Its host key must be known here: connect once by hand and compare it.

    The name of a device that is kept may stand for the address. Without --calibration-data INT8 is calibrated on
    made-up numbers: its speed is real, its answers mean nothing.

    \b
    embedl-hub board pi@kitchen.local net.onnx
    embedl-hub board pi@10.0.0.7:2222 net.onnx --calibration-data samples/ --name kitchen
    """  # noqa: D301 - click reads the mark
    if float_only and calibration_data is not None:
        raise click.UsageError("--float-only and --calibration-data contradict each other.")
    from embedl_hub.cli import _on_board as steps  # noqa: PLC0415 - --help must not pay for it

    subject = steps.read_subject(
        model, read_shape(input_shape), read_arrays(input_data), calibration_data, with_int8=not float_only
    )
    folder = find_home(home)
    ssh = {
        "port": port, "identity_file": identity, "jump_host": jump_host, "known_hosts": known_hosts,
        "config_file": config_file,
    }  # fmt: skip
    target = _target(address, name, folder / DEVICES_FILE, ssh, pairs(settings))
    report = report or Path(f"{model.stem}-{re.sub(r'[^A-Za-z0-9._-]+', '-', target.device.name)}.html")
    # Refused before a board has measured for minutes what could not be written afterwards.
    check_report_path(report)
    if not report.absolute().parent.is_dir():
        raise ConfigError(f"There is no folder {report.absolute().parent} for the report; make it first.")
    device = target.device

    def say(text: str) -> None:
        # Programs that read JSON want nothing else.
        if not as_json:
            click.echo(f"{target.device.name}: {text}", err=True)

    try:
        say(f"connecting, looking for Python with {' and '.join(board_toolchain().board_packages)}")
        with working(f"preparing {device.name}"):
            device, found_python = steps.prepare(device, folder, project_in_use(home, project), python)
        if name is not None and not target.is_kept:
            config = {**target.table.get("config", {}), "python_path": found_python.path}
            write_device(folder / DEVICES_FILE, name, {**target.table, "config": config})
        with HubContext(project_in_use(home, project), [device], home=folder) as ctx:
            with working(f"measuring on {device.name}"):
                found = steps.measure(ctx, subject, say)
            store = ctx.client.store
            assert store is not None  # noqa: S101 - the command line always tracks
            runs = [figures.runs["profile"] for figures in found.figures]
            comparison = compare([store.run(run) for run in runs]) if len(runs) > 1 else None
            write_report(store, runs, report)
    finally:
        if callable(close := getattr(target.device.runner, "close", None)):
            close()
    ruined = [] if subject.is_made_up else [each for each in found.figures if each.parity.is_ruined]
    if as_json:
        facts = _as_dict(device.name, found_python, found, comparison, report)
        emit({**facts, "ruined": [each.precision for each in ruined]})
        click.get_current_context().exit(int(bool(ruined)))
    for each in ruined:
        alarm(f"{each.precision} on {device.name}: {RUINED}")
    _show(found, comparison, subject.is_made_up)
    packages = ", ".join(f"{package} {version}" for package, version in found_python.packages.items())
    click.echo(f"Python there: {found_python.path}, {packages}.")
    if name is not None:
        click.echo(f"The board is kept as device {name!r}: embedl-hub board {name} MODEL, or --device {name} anywhere.")
    click.echo(f"The report: {report.absolute()}. Every run: embedl-hub ui --home {folder}")
    click.get_current_context().exit(int(bool(ruined)))


def _target(address: str, name: str | None, path: Path, ssh: Mapping[str, Any], settings: Mapping[str, str]) -> _Target:
    """Return the board that an address, or the name of a kept device, means."""
    kept = read_devices(path)
    given = {key: value for key, value in ssh.items() if value is not None}
    config = {key: as_value(value) for key, value in settings.items()}
    if address in kept:
        if given or name is not None:
            raise click.UsageError(f"{address!r} is a kept device; change it with: embedl-hub device edit {address}")
        values = dict(kept[address])
        changed = {**values, "config": {**values.get("config", {}), **config}}
        return _Target(make_device(address, changed, where=str(path), base=base_of(path)), values, True)
    if name is not None and name in kept:
        raise ConfigError(
            f"There is a device {name!r} in {path} already; say its name instead of an address, or take another name."
        )
    parts = _parse(address, kept)
    if parts.get("port") and given.get("port") not in {None, parts["port"]}:
        raise click.UsageError(f"The address says port {parts['port']}, --port {given['port']}.")
    for key in ("identity_file", "known_hosts", "config_file"):
        if key in given:
            given[key] = str(given[key].expanduser().absolute())
    values = {
        "type": board_toolchain().device_kinds[0].type,
        "ssh": {**parts, **given},
        **({"config": config} if config else {}),
    }
    title = name or address
    check_name("device name", title)
    return _Target(make_device(title, values, where=str(path), base=base_of(path)), values, False)


def _parse(address: str, kept: Mapping[str, Any]) -> dict[str, object]:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        devices = f" Kept devices: {', '.join(kept)}." if kept else ""
        raise click.UsageError(f"{address!r} is no address; write user@host or user@host:port.{devices}")
    parts: dict[str, Any] = {key: value for key, value in found.groupdict().items() if value}
    parts["host"] = parts["host"].strip("[]")
    if "port" in parts:
        parts["port"] = int(parts["port"])
    return parts


def _show(found: Found, comparison: Comparison | None, is_made_up: bool) -> None:
    figures = found.figures
    metrics = [each.document.metrics() for each in figures]
    rows = [
        ("latency, median", *(_latency(each) for each in figures)),
        ("verdict on it", *(str(each.profile.verdict) for each in figures)),
        *(
            (row.title.lower(), *(number(values.get(row.key), row.unit) for values in metrics))
            for row in headlines()
            if row.per_second or (row.column and not row.is_speed and any(row.key in values for values in metrics))
        ),
        ("model", *(size(each.size_bytes) for each in figures)),
        ("outputs", *_outputs(figures, is_made_up)),
        ("profile run", *(each.runs["profile"] for each in figures)),
    ]
    table(("", *(each.precision for each in figures)), rows, folds=True)
    for each in figures:
        if each.profile.verdict is None or not each.profile.verdict.is_stable:
            click.echo(f"! {each.precision}: {each.profile.verdict_reason}")
    for line in (*(() if comparison is None else comparison.headline()), *found.notes):
        click.echo(line)


def _latency(figures: Figures) -> str:
    times = figures.document.latency_ms
    median, low, high = times.median or 0.0, times.median_low or 0.0, times.median_high or 0.0
    return f"{number(median, 'ms')} ± {max(median - low, high - median):.2g}"


def _outputs(figures: Sequence[Figures], is_made_up: bool) -> list[str]:
    first = figures[0].parity
    cells = [f"as on this machine to {first.max_abs_error:.2g}" if first.max_abs_error else "as on this machine"]
    for each in figures[1:]:
        top1 = each.parity.top1_agreement
        same = "" if top1 is None else f", {top1:.1%} same class"
        cells.append("mean nothing" if is_made_up else f"cosine {number(each.parity.cosine)} to float{same}")
    return cells


def _as_dict(
    board: str, python: BoardPython, found: Found, comparison: Comparison | None, report: Path
) -> dict[str, object]:
    return {
        "device": board,
        "python": asdict(python),
        "results": [
            {
                "precision": each.precision, "latency_ms": each.document.latency_ms._asdict(),
                "verdict": each.profile.verdict, "verdict_reason": each.profile.verdict_reason,
                "metrics": each.document.metrics(), "size_bytes": each.size_bytes,
                "differences": [asdict(output) for output in each.parity.outputs], "runs": dict(each.runs),
            }
            for each in found.figures
        ],
        "comparison": None if comparison is None else comparison.headline(),
        "notes": list(found.notes),
        "report": str(report.absolute()),
    }  # fmt: skip
