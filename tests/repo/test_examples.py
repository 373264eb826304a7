"""The hub's examples run as their pages say, on this machine and on a real sshd."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler, TFLiteCompiler
from embedl_hub.core.device import Device, LocalCommandRunner, SSHCommandRunner
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.errors import CompileError, ConfigError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import RunStatus, Store

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    """Import an example's script once per process: it registers its providers when it is imported."""
    module_name = f"example_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, ROOT / "examples" / name / "main.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]


@pytest.mark.parametrize("name", ["custom_toolchain", "custom_provider", "own_onnx"])
def test_an_example_runs_without_a_board(name: str, tmp_path: Path) -> None:
    """As its README says, from any folder, and tells where its runs are."""
    assert f"runs stored in {tmp_path / '.embedl'}" in _run(name, tmp_path)
    with Store(tmp_path / ".embedl") as store:
        assert {run.status for run in store.runs()} == {RunStatus.FINISHED}


@pytest.mark.slow
def test_a_gate_fails_only_for_the_slower_model(tmp_path: Path) -> None:
    """Three commits through the script that a build calls; the report has the failure."""
    out = _run("ci_gate", tmp_path)
    assert re.findall(r"exit code (\d)", out) == ["0", "0", "1"]
    assert '<failure type="worse"' in (tmp_path / "gate.xml").read_text()


@pytest.mark.slow
def test_tests_of_a_model_fail_only_for_the_slower_one(tmp_path: Path) -> None:
    """Three commits through pytest; the summary and JUnit have the failure, and nothing else fails with it."""
    out = _run("model_tests", tmp_path)
    assert re.findall(r"exit code (\d)", out) == ["0", "0", "1"]
    assert re.findall(r"(\d) failed, (\d) passed", out) == [("1", "3")]
    assert '<failure message="AssertionError: worse: latency_median' in (tmp_path / "slower.xml").read_text()
    assert re.findall(r"### Edgeproof tests: (.*)", (tmp_path / "summary.md").read_text()) == [
        "3 ok, 1 recorded", "4 ok", "3 ok, 1 worse",
    ]  # fmt: skip


@pytest.mark.slow
def test_one_network_on_four_runtimes_in_one_table(tmp_path: Path) -> None:
    """Every cell is done, with accuracy, latency, memory, size and a verdict, near what was simulated."""
    out = _run("runtimes", tmp_path)
    (simulated,) = re.findall(r"accuracy of the quantized network in PyTorch: ([\d.]+) %", out)
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if line.strip().startswith("digits ")]
    titles = ("ONNX Runtime", "OpenVINO", "LiteRT", "ExecuTorch")
    found = {option: numbers for _, option, *numbers in rows}
    assert list(found) == [f"{title} {form}" for title in titles for form in ("float", "INT8")]
    for option, (verdict, median, accuracy, *_, memory, size) in found.items():
        assert verdict.split()[0] in {"stable", "drifting", "noisy", "throttled"}
        assert min(map(float, (median, memory, size))) > 0
        if option.endswith("INT8"):
            assert abs(100 * float(accuracy) - float(simulated)) <= 2
    assert "8 done" in out


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ready_build_files_call_the_script(name: str) -> None:
    """They keep their home, tell the branch, call the script that is tested, and hand its report on."""
    text = (ROOT / "examples/ci_gate" / name).read_text()
    for line in ("EMBEDL_HUB_HOME: /", "BRANCH: ", "sh examples/ci_gate/check.sh model.onnx", "gate.xml"):
        assert line in text


def test_a_team_records_also_while_its_server_is_away(tmp_path: Path) -> None:
    """The run of the second person arrives later, once."""
    out = _run("team_server", tmp_path)
    assert """after ben's sync: [("ben's run", 1.5), ("ann's run", 2.5)]""" in out


def _run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / name / "main.py"],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.onnx"
    path.write_bytes(bytes(range(256)) * 200)
    return path


@pytest.fixture
def toolchain_board(board: SSHCommandRunner, tmp_path: Path) -> Device:
    """A device of the custom toolchain's own type on a real sshd."""
    return Device(
        "my-device",
        board,
        provider_type="my_remote_backend",
        artifact_root=tmp_path / "root",
        lease_dir=str(tmp_path / "lock"),
    )


def test_the_toolchain_runs_on_a_board(toolchain_board: Device, weights: Path, tmp_path: Path) -> None:
    """Compile and profile over SSH; the compiled file is the one this machine would make, the board is left clean."""
    example = load("custom_toolchain")
    result = example.run_all(weights, [toolchain_board], tmp_path / "home")
    assert result.latency > 0
    here = example.run_all(weights, [], tmp_path / "home")
    assert here.memory_mb == result.memory_mb
    with Store(tmp_path / "home") as store:
        remote_profile, remote_compile, *_ = reversed(store.runs())
        assert remote_compile.device == remote_profile.device == "my-device"
        local = next(run for run in store.runs() if run.type == "COMPILE" and run.device is None)
        assert (
            store.run(remote_compile.id if remote_compile.type == "COMPILE" else remote_profile.id)
            .artifacts["path"]
            .sha256
            == store.run(local.id).artifacts["path"].sha256
        )
    assert list((tmp_path / "root" / "runs").iterdir()) == []


def test_the_toolchains_providers_conform(toolchain_board: Device, weights: Path, tmp_path: Path) -> None:
    """Ours keep the rules we ask of others."""
    example = load("custom_toolchain")
    missing = weights.with_name("missing")
    check_provider(example.MyCompiler(), "local", weights, bad_args=[missing])
    check_provider(example.MyCompiler(), "my_remote_backend", weights, devices=[toolchain_board], bad_args=[missing])
    with HubContext("models", home=tmp_path / "models") as ctx:
        compiled = example.MyCompiler().run(ctx, weights)
    check_provider(example.MyProfiler(), "local", compiled)
    check_provider(example.MyProfiler(), "my_remote_backend", compiled, devices=[toolchain_board])


@pytest.fixture
def provider_board(board: SSHCommandRunner, tmp_path: Path) -> Device:
    """A device of the custom provider's type on a real sshd, with its backend installed."""
    example = load("custom_provider")
    path = tmp_path / "backend" / "my_backend.py"
    device: Device = example.get_device_on(board, name="main", config=example.MyBackendConfig(backend_path=str(path)))
    example.install_backend(device, str(path.parent))
    return replace(device, artifact_root=tmp_path / "root", lease_dir=str(tmp_path / "lock"))


def test_the_providers_of_ones_own_conform(provider_board: Device, weights: Path, tmp_path: Path) -> None:
    """Three components of the hub on a backend it does not know, over SSH."""
    missing = weights.with_name("missing")
    for component in (ONNXRuntimeCompiler(), TFLiteCompiler()):
        check_provider(component, "my_custom_backend", weights, devices=[provider_board], bad_args=[missing])
    with HubContext("models", [provider_board], home=tmp_path / "models") as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, weights)
    check_provider(ONNXRuntimeProfiler(), "my_custom_backend", compiled, devices=[provider_board])


def test_a_setting_for_one_component_goes_before_the_devices(provider_board: Device) -> None:
    """The profiler's override is found, the compiler gets the device's own."""
    example = load("custom_provider")
    changed = replace(
        provider_board,
        provider_config=example.MyBackendConfig(backend_path="/usr/bin/compile-tool"),
        provider_config_overrides={ONNXRuntimeProfiler: example.MyBackendConfig(backend_path="/usr/bin/profile-tool")},
    )
    for component, path in (
        (ONNXRuntimeProfiler, "/usr/bin/profile-tool"),
        (ONNXRuntimeCompiler, "/usr/bin/compile-tool"),
    ):
        config = changed.get_provider_config(example.MyBackendConfig, component)
        assert config is not None
        assert config.backend_path == path


def test_an_option_the_backend_cannot_honor_is_refused(provider_board: Device, weights: Path) -> None:
    """Silence would be a lie about the result."""
    with temporary_context([provider_board]) as ctx:
        with pytest.raises(CompileError, match="leave the other options out"):
            ONNXRuntimeCompiler().run(ctx, weights, quantize_io=True)
        assert ctx.client.store is not None
        assert ctx.client.store.runs()[0].status is RunStatus.FAILED


def test_the_forms_of_registration_the_contract_shows() -> None:
    """Every keyword by name, **kwargs for the rest, the enum or any string; each on a component of its own."""
    example = load("custom_toolchain")

    class Fresh(ONNXRuntimeCompiler):
        """Inherits the declaration, starts without providers of its own."""

    class FreshToo(example.MyCompiler):  # type: ignore[misc, name-defined]
        """Likewise."""

    @Fresh.provider("my_custom_backend")
    def _rest(ctx, onnx_path, *, device=None, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
        ...

    @FreshToo.provider("my_remote_backend")
    def _bare(ctx, model_path, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
        return example.MyCompiledModel(path=None)

    with temporary_context(
        [Device("my-device", LocalCommandRunner(), provider_type="my_remote_backend", lease_dir=None)]
    ) as ctx:
        assert FreshToo(device="my-device", optimize=True).run(ctx, Path("model.onnx")).path is None
    assert "my_custom_backend" in Fresh.provider_types()


def test_a_config_of_another_class_names_both() -> None:
    """What the device has, what the provider expects."""
    example = load("custom_provider")
    device = example.get_device_on(LocalCommandRunner(), name="main", config=example.MyBackendConfig())

    class Other(example.ProviderConfig):  # type: ignore[misc, name-defined]
        """A config nobody set."""

    with pytest.raises(ConfigError, match=r"configured with MyBackendConfig for ONNXRuntimeCompiler.*expects Other"):
        device.get_provider_config(Other, ONNXRuntimeCompiler)


@pytest.mark.slow
def test_the_notebook_runs_and_its_values_show_themselves(tmp_path: Path) -> None:
    """In a real kernel; each value has a table without scripts, and a text that fits a line."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples/notebook/first_look.ipynb", 4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert len(shown) == 6
    for output in shown:
        assert "<script" not in output.data["text/html"]
        assert len(output.data["text/plain"]) <= 120
        assert "\n" not in output.data["text/plain"]
    assert not [cell.source for cell in notebook.cells for output in cell.get("outputs", ()) if "error" in output]
