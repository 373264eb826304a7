"""The published pages work as they stand: pasted from top to bottom, twice, as a notebook would run them.

The pages themselves are not kept here. Where they lie beside the repository their own code runs; otherwise, and always
besides, the facts of them do: names, signatures and the order in which providers are registered (``seed_pages/``).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.sshd import SSHServer

HERE = Path(__file__).resolve().parent
PAGES = Path(os.environ.get("EDGEPROOF_SEEDS", HERE.parents[2] / "shared/seeds"))

# What a page takes for granted, then the page in one namespace, twice, then what a reader does next.
DRIVER = """
import json, os, sys, warnings
from pathlib import Path
import onnx
from onnx import TensorProto, helper
from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.device import Device, SSHCommandRunner, SSHConfig

class MyCompiler(Component):
    run_type = RunType.COMPILE
    def __init__(self, *, name=None, device=None):
        super().__init__(name=name, device=device)
    def run(self, ctx, model_path: Path, *, device=None):
        raise NoProviderError

ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", ends[:1], ends[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
page, after, reached, dead = json.loads(sys.argv[1])
names = {"__name__": "__main__", "MyCompiler": MyCompiler, "dead": SSHCommandRunner(SSHConfig(**dead)),
         "runner": SSHCommandRunner(SSHConfig(**reached)), "my_ssh_runner": SSHCommandRunner(SSHConfig(**dead))}
for turn in range(2):
    for number, block in enumerate(page, 1):
        exec(compile(block, f"<block {number}>", "exec", dont_inherit=True), names)
exec(compile(after, "<after>", "exec", dont_inherit=True), names)
"""

AFTER_PROVIDERS = """
get_my_device("board.example", "me")
own = Device("main", runner=runner, provider_type="my_custom_backend", provider_config=MyBackendConfig("true"))
with HubContext("p", [own]) as ctx:
    assert ONNXRuntimeCompiler().run(ctx, "model.onnx") is None
    assert ctx.client.store.runs()[0].provider == "my_custom_backend"
with HubContext("p", [Device("main", runner=runner, provider_type="my_tflite_device")]) as ctx:
    made = TFLiteCompiler().run(ctx, "model.onnx")
    assert made.path.to_local(ctx).local().read_bytes() == made.input.to_local(ctx).local().read_bytes()
assert device.get_provider_config(MyBackendConfig, ONNXRuntimeProfiler).backend_path == "/usr/bin/profile-tool"
assert device.get_provider_config(MyBackendConfig, ONNXRuntimeCompiler).backend_path == "/usr/bin/compile-tool"
assert {"local", "my_custom_backend"} <= MyCompiler.provider_types()
"""

AFTER_TOOLCHAINS = """
from embedl_hub.tracking import RunStatus
with HubContext("My Project") as ctx:
    runs = ctx.client.store.runs()
    assert [run.provider for run in runs] == ["my_remote_backend", "local"] * 2
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    assert MyProfiler().run(ctx, None) is None
"""


@pytest.fixture
def paste(new_server: Callable[..., SSHServer], tmp_path: Path) -> Callable[..., str]:
    """Run a page's blocks twice in one interpreter, then what a reader does next; return what it warned of."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "my-tflite-compiler").write_text('#!/bin/sh\ncp "$1" "$3"\n')
    (programs / "my-tflite-compiler").chmod(0o755)
    board = new_server(environment={"PATH": f"{programs}:{os.environ['PATH']}"}).config()
    reached = {key: str(value) if isinstance(value, Path) else value for key, value in vars(board).items()}
    dead = {"host": "127.0.0.1", "username": "nobody", "port": 1}

    def run(blocks: list[str], after: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-W", "always::UserWarning", "-c", DRIVER, json.dumps([blocks, after, reached, dead])],
            cwd=tmp_path, env=dict(os.environ, EMBEDL_HUB_HOME=str(tmp_path / "home")),
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def facts(page: str) -> str:
    """Return the file with a page's facts."""
    return (HERE / "seed_pages" / f"{page}.py").read_text()


def seed(number: str) -> str:
    """Return a page."""
    return next(PAGES.glob(f"{number}_*.txt")).read_text()


def code_of(text: str) -> list[str]:
    """Return the code of a page: the longest runs of lines that are Python and do something."""
    lines = re.sub(r"(?m)^(\w+: .*= \(\)|name: str)$", r"    \1", text).splitlines()
    blocks, at = [], 0
    while at < len(lines):
        end = next((end for end in range(len(lines), at, -1) if _is_code("\n".join(lines[at:end]))), at)
        if end > at:
            blocks.append("\n".join(lines[at:end]))
        at = max(end, at + 1)
    return blocks


def _is_code(text: str) -> bool:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return bool(text[:1].strip()) and bool(body) and not any(_is_prose(node) for node in body)


def _is_prose(node: ast.stmt) -> bool:
    """Tell a heading of one word, or a signature in the text, from code."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    return (
        not isinstance(call, ast.Call) or any(isinstance(argument, ast.Name) for argument in call.args) or not call.args
    )


def test_the_facts_of_the_page_on_providers(paste: Callable[..., str]) -> None:
    """Both versions of a function with one name, a board that is used, one that is not."""
    assert "returned nothing" in paste([facts("providers")], AFTER_PROVIDERS)


def test_the_facts_of_the_page_on_toolchains(paste: Callable[..., str]) -> None:
    """A sample's empty body is run, on this machine and for a board that is off."""
    assert paste([facts("toolchains")], AFTER_TOOLCHAINS).count("returned nothing") == 5


def test_the_facts_of_the_page_on_backends(paste: Callable[..., str]) -> None:
    """Names, fields and defaults."""
    assert "Error" not in paste([facts("backends")])


# The pages are not ours to keep here: their facts are, above.
if PAGES.is_dir():

    def test_the_page_on_providers_as_it_stands(paste: Callable[..., str]) -> None:
        """Its own code, in its own order."""
        blocks = code_of(seed("000"))
        assert len(blocks) >= 7
        assert "returned nothing" in paste(blocks, AFTER_PROVIDERS)

    def test_the_page_on_backends_as_it_stands(paste: Callable[..., str]) -> None:
        """Its own code; what its class needs is imported before."""
        blocks = code_of(seed("002"))
        assert len(blocks) == 3
        modules = {"collections.abc": "Sequence", "dataclasses": "dataclass", "embedl_deploy.pattern": "Pattern"}
        before = "\n".join(f"from {module} import {name}" for module, name in modules.items())
        paste(
            [before, *blocks], "from embedl_deploy.backend import get_backend\nassert get_backend().name == 'tensorrt'"
        )

    def test_the_facts_are_those_of_the_page_on_toolchains() -> None:
        """That page lost its line breaks where it is kept; what is declared stands in it, in this order."""
        text = re.sub(r"\s+", "", seed("001"))
        at = 0
        for node in ast.parse(facts("toolchains")).body:
            for declared in _declarations(node):
                squeezed = re.sub(r"\s+", "", declared)
                found = max(text.find(variant, at) for variant in (squeezed, squeezed.replace(")", ",)", 1)))
                assert found >= 0, declared
                at = found

    def _declarations(node: ast.stmt) -> Iterator[str]:
        """Yield a statement's head, and those of what it holds, without bodies and docstrings."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from (f"@{ast.unparse(decorator).replace(chr(39), chr(34))}" for decorator in node.decorator_list)
            yield textwrap.dedent(ast.unparse(node)).split("\n")[len(node.decorator_list)].split(":\n")[0].rstrip(":")
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                yield from _declarations(each)
