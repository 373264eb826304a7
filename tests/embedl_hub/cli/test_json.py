"""Every command takes --json and prints one document of the shape that `schema` promises; errors are JSON as well."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
from support.cli import check_shape, hub
from support.models import residual_net, save

from embedl_device.json_output import printing, schema_of
from embedl_hub.cli.main import cli, own_commands
from embedl_hub.core import HubContext

# Checked where their parts are real, by support.cli, which holds all that is printed against the schemas.
_ELSEWHERE = {
    "auth": "test_auth.py",
    "bisect": "test_bisect.py",
    "board": "test_board.py",
    "cold-start": "test_paired.py",
    "concurrent": "test_paired.py",
    "device health": "test_device_health.py",
    "energy": "test_sustain.py",
    "fleet node": "../fleet/test_ray.py",
    "fleet status": "../fleet/test_ray.py",
    "predict": "test_predict.py",
    "run from-mlflow": "../mlflow",
    "run to-mlflow": "../mlflow",
    "sustain": "test_sustain.py",
    "sync": "test_auth.py",
    **{f"{step} {name}": "../toolchains" for step in ("compile", "profile", "invoke")
       for name in ("executorch", "openvino", "tensorrt", "tflite")},
}  # fmt: skip


def _leaves(command: click.Command, ctx: click.Context, name: str = "") -> dict[str, click.Command]:
    found = {}
    if not isinstance(command, click.Group) or (command.invoke_without_command and name):
        found[name] = command
    if isinstance(command, click.Group):
        # Commands of other packages speak for themselves.
        for word in command.list_commands(ctx) if name else sorted(own_commands()):
            below = command.get_command(ctx, word)
            assert below is not None
            found |= _leaves(below, click.Context(below, parent=ctx, info_name=word), f"{name} {word}".strip())
    return found


def test_every_command_takes_json_and_has_a_schema() -> None:
    """As the help says; each schema is one, by the rules of its own dialect."""
    own = own_commands()
    commands = {name: found for name, found in printing(cli, click.Context(cli)) if name.split()[0] in own}
    assert set(_leaves(cli, click.Context(cli))) == set(commands)
    for name, command in commands.items():
        jsonschema.Draft202012Validator.check_schema(schema_of("embedl-hub", name, command))


def _run(arguments: tuple[object, ...]) -> Any:
    """Run a command in this process and return the one document that it printed."""
    words = [*map(str, arguments), "--json"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main(words, standalone_mode=False)
    document = json.loads(printed.getvalue())
    check_shape(words, document)
    return document


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model in it, whose home is a new store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDL_HUB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EMBEDL_HUB_PREDICTION", "off")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    save(residual_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 3, 16, 16), np.float32))
    return tmp_path


def test_commands_print_what_their_schemas_say(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run for real on a small store; those that need more are named, with the tests that run them."""
    ran: set[str] = set()

    def run(name: str, *arguments: object) -> Any:
        ran.add(name)
        return _run((*name.split(), *arguments))

    run("completion", "bash")
    run("schema")
    run("init", "json")
    run("trust", store)
    run("trust", "--list")
    run("trust", store, "--remove")
    run("show")
    run("device add", "here", "--type", "local")
    run("device edit", "here", "--set", "min_seconds=0.05")
    run("device test", "here")
    run("device pool add", "all", "--where", "type=local")
    run("device pool list")
    run("device pool remove", "all")
    run("list-devices", "--no-offered")
    run("use", "--project", "json")
    run("doctor")
    run("fleet stop")
    _values(run, monkeypatch)
    _steps(run, store)
    _runs(run, store)
    run("device remove", "here")
    home = store / "served"
    key = run("serve key add", "ci", "--project", "*", "--home", home)
    run("serve key list", "--home", home)
    run("serve key revoke", key["id"], "--home", home)
    # Another test of this process may have registered a toolchain of its own.
    steps, ours = ("compile", "profile", "invoke"), ("executorch", "onnxruntime", "openvino", "tensorrt", "tflite")
    words = [name.split() for name in _leaves(cli, click.Context(cli))]
    known = {" ".join(each) for each in words if each[0] not in steps or each[-1] in ours}
    assert ran | set(_ELSEWHERE) | {"serve", "ui"} == known


def _values(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    started = run("run start", "--name", "by hand")["run"]
    run("log param", started, "precision", "int8")
    assert run("log metric", started, "loss", "nan")["value"] == "nan"
    run("log tag", started, "stage", "ci")
    run("log artifact", started, "net.onnx")
    monkeypatch.setattr(sys, "stdin", io.StringIO("metric loss 0.5 1\n"))
    run("batch", started)
    run("run finish", started)
    # JSON has no NaN: what is printed is what every reader takes.
    assert [metric["value"] for metric in run("run show", started)["metrics"]] == ["nan", 0.5]


def _steps(run: Callable[..., Any], store: Path) -> None:
    compiled = run("compile onnxruntime", "net.onnx")["run"]
    profiles = [run("profile onnxruntime", compiled)["run"] for _ in range(2)]
    run("invoke onnxruntime", compiled, "--input-data", store / "in.npz")
    run("memory", compiled, "--memory", "1GB")
    run("compare", *profiles)
    run("compare", "--paired", "--samples", "20", compiled, "net.onnx")
    run("gate", profiles[1], "--baseline", profiles[0], "--no-repeat", "--tolerance", "900%")
    plan = '[sweep]\ntoolchain = "onnxruntime"\n[models.net]\npath = "net.onnx"\n[options.float]\n'
    (store / "sweep.toml").write_text(plan, encoding="utf-8")
    run("sweep", "sweep.toml", "--dry-run")


def _runs(run: Callable[..., Any], store: Path) -> None:
    newest = run("run list")["runs"][0]["id"]
    run("run archive", newest)
    run("run bundle", newest, "-o", store / "runs.zip")
    run("run import", store / "runs.zip")
    run("run report", newest, "-o", store / "run.html")
    run("run table", "-o", store / "runs.csv")
    assert run("run table", "-o", store / "m.csv", "--rows", "metrics")["rows"] > 2
    assert run("run table", "-o", store / "l.csv", "--rows", "layers", "--type", "PROFILE")["rows"] > 2
    run("run import", store / "runs.csv", "--home", store / "copy")
    run("run delete", newest, "--yes")
    run("collect")
    assert run("reindex")["unread"] == []


def test_an_error_is_one_line_of_json_and_the_exit_code_stays(tmp_path: Path) -> None:
    """On standard error, with its kind; standard output stays empty."""
    for words, code, kind in (
        (("run", "list"), 1, "ConfigError"),
        (("run", "list", "--limit", "x"), 2, "BadParameter"),
    ):
        done = hub(*words, "--json", "--home", tmp_path / "none")
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count("\n") == 1
        error = json.loads(done.stderr)["error"]
        assert (error["kind"], error["exit_code"]) == (kind, code)
        assert error["message"]


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_a_server_prints_its_address_as_one_document(tmp_path: Path, command: str) -> None:
    """When it listens, and nothing more until it ends."""
    more = ["--no-browser"] if command == "ui" else []
    argv = [sys.executable, "-m", "embedl_hub", command, "--home", str(tmp_path), "--port", "0", *more, "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1].strip() != "}":
            assert lines[-1], process.communicate()
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    printed = json.loads("".join(lines) + rest)
    check_shape([command], printed)
    assert printed["address"].startswith("http://127.0.0.1:")


def test_a_schema_is_asked_for_by_the_words_of_a_command() -> None:
    """Or for all at once; a wrong one is answered with those there are."""
    assert json.loads(hub("schema", "run", "list").stdout)["title"] == "embedl-hub run list --json"
    assert "'run archive'" in hub("schema", "run").stderr


def test_numbers_that_json_has_not_are_text_in_one_place(tmp_path: Path) -> None:
    """In a list of runs as well."""
    with HubContext("p", home=tmp_path) as ctx, ctx.client.start_run():
        ctx.client.log_metric("loss", float("-inf"))
    text = hub("run", "list", "--json", "--home", tmp_path).stdout
    assert json.loads(text, parse_constant=pytest.fail)["runs"][0]["metrics"] == {"loss": "-inf"}
