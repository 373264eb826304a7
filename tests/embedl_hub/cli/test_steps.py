"""A toolchain of somebody else has its commands and options without a line written for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import answer, hub
from support.models import residual_net, save

from embedl_hub.cli._output import number, size
from embedl_hub.core.steps import read_arrays
from embedl_hub.errors import ConfigError

_PACKAGE = '''
"""A toolchain for toast."""
from dataclasses import dataclass
from pathlib import Path
from embedl_hub.core import HubContext
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, NoProviderError, RunType
from embedl_hub.core.toolchain import Toolchain

@dataclass(frozen=True)
class ToastCompiledModel(CompiledModel):
    crisp: int = 0

@dataclass(frozen=True)
class ToastResult(ComponentOutput):
    crumbs: float

class ToastCompiler(Component):
    """Toasts bread."""
    run_type = RunType.COMPILE
    def __init__(self, *, name=None, crisp: int = 1, heat: float = 0.5, butter: bool = False) -> None:
        super().__init__(name=name, crisp=crisp, heat=heat, butter=butter)
    def run(self, ctx: HubContext, bread: Path, *, crisp: int = 1, heat: float = 0.5, butter: bool = False
            ) -> ToastCompiledModel:
        """Toast.

        Args:
            ctx: A context.
            bread: The bread.
            crisp: How crisp it
                shall be.
        """
        raise NoProviderError

class ToastProfiler(Component):
    """Counts crumbs."""
    run_type = RunType.PROFILE
    def __init__(self, *, name=None) -> None:
        super().__init__(name=name)
    def run(self, ctx: HubContext, model: ToastCompiledModel) -> ToastResult:
        raise NoProviderError

@ToastCompiler.provider("local")
def toast(ctx, bread, *, crisp=1, heat=0.5, butter=False):
    ctx.client.log_artifact(bread, name="path")
    return ToastCompiledModel.from_current_run(ctx)

@ToastProfiler.provider("local")
def count(ctx, model):
    ctx.client.log_metric("crumbs", 100.0 * model.crisp)
    return ToastResult.from_current_run(ctx)

TOOLCHAIN = Toolchain("toast", "Toast", ToastCompiler, ToastCompiledModel, profiler=ToastProfiler,
                      providers={"local": "bread", "toaster": "bread"})
'''

_ENTRY_POINTS = """
[embedl_hub.toolchains]
toast = bread:TOOLCHAIN
[embedl_hub.providers]
broken = nowhere_to_be_found
"""


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    package = tmp_path / "bread-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bread\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(_ENTRY_POINTS)
    (tmp_path / "bread.py").write_text(_PACKAGE)
    (tmp_path / "slice.onnx").write_text("bread")
    return tmp_path


def test_a_new_toolchain_is_on_the_command_line(kitchen: Path) -> None:
    """Compiled by file, profiled by run; options are typed and described by the component."""
    path = {"PYTHONPATH": str(kitchen), "EMBEDL_HUB_HOME": str(kitchen / "home")}
    text = hub("compile", "toast", "--help", **path).stdout
    assert "How crisp it shall be." in text
    assert "--butter / --no-butter" in text
    words = ("--crisp", "3", "--butter", "--heat", "0.25", "--name", "breakfast")
    made = answer("compile", "toast", kitchen / "slice.onnx", *words, **path)
    run = answer("run", "show", made["run"], **path)
    assert run["name"] == "breakfast"
    assert {name: run["params"][name] for name in ("crisp", "butter", "heat")} == {
        "crisp": 3, "butter": True, "heat": 0.25,
    }  # fmt: skip
    counted = answer("profile", "toast", made["run"], **path)
    assert counted["metrics"] == {"crumbs": 300.0}
    assert hub("profile", "toast", counted["run"], **path).returncode == 1


def test_slips_with_it_are_said(kitchen: Path) -> None:
    """A number that is none, a device it does not take; a provider that cannot be imported hides nobody."""
    path = {"PYTHONPATH": str(kitchen), "EMBEDL_HUB_HOME": str(kitchen / "home")}
    wrong = hub("compile", "toast", kitchen / "slice.onnx", "--crisp", "very", **path)
    assert wrong.returncode == 1
    assert "--crisp is 'very'; it must be NUMBER" in wrong.stderr
    placed = hub("compile", "toast", kitchen / "slice.onnx", "--device", "oven", **path)
    assert placed.returncode == 1
    assert "takes no device" in placed.stderr
    results = {result["title"]: result for result in json.loads(hub("doctor", "--json", **path).stdout)}
    assert results["provider broken"]["is_ok"] is None
    assert "pip install" in results["provider broken"]["advice"]
    assert results["provider toaster"]["is_ok"]


def test_an_archive_of_arrays_has_its_own_names(tmp_path: Path) -> None:
    """A name before it would be passed over in silence, so it is refused."""
    np.savez(tmp_path / "data.npz", x=np.zeros(2))
    assert list(read_arrays((str(tmp_path / "data.npz"),))) == ["x"]
    with pytest.raises(ConfigError, match="holds its own names"):
        read_arrays((f"image={tmp_path / 'data.npz'}",))


@pytest.mark.parametrize(
    ("value", "text"), [(0.036264, "0.03626"), (3660.4, "3660"), (17645.0, "17645"), (1.25e-7, "1.25e-07")]
)
def test_counts_are_no_powers_of_ten(value: float, text: str) -> None:
    """Four digits of what is small, all before the point of what is not."""
    assert number(value) == text


def test_the_traceback_is_there_when_asked_for(tmp_path: Path) -> None:
    """With -vv, before the one clean line."""
    plain = hub("use", "--home", tmp_path)
    wordy = hub("-vv", "use", "--home", tmp_path)
    assert "Traceback" not in plain.stderr
    assert "Traceback" in wordy.stderr
    assert wordy.stderr.splitlines()[-1] == plain.stderr.strip()


def test_a_device_that_nobody_named_is_said_when_it_cannot_be_reached(tmp_path: Path) -> None:
    """And how to go elsewhere; one that was named needs no words."""
    words = ("--type", "embedl_onnxruntime", "--host", "127.0.0.1", "--port", "9")
    assert hub("device", "add", "far", *words, "--home", tmp_path).returncode == 0
    save(residual_net(), tmp_path / "net.onnx")
    call = ("compile", "onnxruntime", tmp_path / "net.onnx", "--home", tmp_path, "--project", "p")
    left_open, named = hub(*call), hub(*call, "--device", "far")
    assert left_open.returncode == named.returncode == 1
    assert "No device was named" in left_open.stderr
    assert "--here this machine" in left_open.stderr
    assert "No device was named" not in named.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.999977, "0.999977"), (1.0, "1"), (18410.0, "18410"), (0.12345, "0.1235"), (None, "-"), (1e20, "1e+20")],
)
def test_numbers_keep_what_they_mean(value: float | None, text: str) -> None:
    """Rounding must not make a cosine perfect, nor a count unreadable."""
    assert number(value) == text
    assert (size(34_000), size(999), size(2_500_000)) == ("34.0 kB", "999 bytes", "2.5 MB")


@pytest.mark.slow
def test_here_is_this_machine_in_every_command(tmp_path: Path) -> None:
    """Without a device of that name; other names are answered with those there are."""
    save(residual_net(), tmp_path / "net.onnx")
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    compiled = answer("compile", "onnxruntime", "net.onnx", "--device", "here", cwd=tmp_path, **home)["run"]
    profiled = answer("profile", "onnxruntime", compiled, "--device", "here", cwd=tmp_path, **home)["run"]
    assert answer("run", "show", profiled, **home)["device"] == "here"
    answer("predict", "net.onnx", "--device", "here", cwd=tmp_path, **home)
    wrong = hub("profile", "onnxruntime", compiled, "--device", "there", **home)
    assert "There is no device 'there'" in wrong.stderr
