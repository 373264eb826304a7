"""The checks in tests that pytest runs: figures, runs and reports; a board that is off is an error, no failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from support.models import images, residual_net, save
from support.sshd import SSHServer

from embedl_device.statistics import Ratio
from embedl_hub.comparison import Decision, decide
from embedl_hub.pytest_plugin import NotMeasuredError, assert_fits
from embedl_hub.pytest_plugin._accuracy import _difference, _wilson
from embedl_hub.tracking import RunStatus, Store

pytest_plugins = ["pytester"]

PROGRAM = Path(sys.executable).with_name("embedl-onnxruntime")
QUICK = "iterations = 20, min_seconds = 0.02, max_warmup_seconds = 0.2, layer_runs = 3, threads = 1"
HERE = f'[devices.here]\ntype = "local"\nlease_dir = ""\nconfig = {{ {QUICK} }}\n'
IMPORTS = """
import numpy as np
import pytest
from embedl_hub.pytest_plugin import *
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with two models, data, and a home whose measurements are short."""
    monkeypatch.delenv("EMBEDL_HUB_HOME", raising=False)
    save(residual_net(), pytester.path / "net.onnx")
    (pytester.path / "wide").mkdir()
    save(residual_net(size=48), pytester.path / "wide/net.onnx")
    np.savez(pytester.path / "data.npz", x=images(8))
    pytester.makeini(
        "[pytest]\nhub_home = home\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = default\n"
    )
    _devices(pytester, HERE)
    return pytester


def _devices(pytester: pytest.Pytester, text: str) -> None:
    (pytester.path / "home").mkdir(exist_ok=True)
    (pytester.path / "home/devices.toml").write_text(text)


def _board(server: SSHServer, folder: Path, name: str = "pi") -> str:
    ssh = {
        "host": "127.0.0.1", "port": server.port, "username": server.user, "identity_file": str(server.identity),
        "known_hosts": str(server.known_hosts), "config_file": str(server.client_config), "connect_timeout_s": 5.0,
    }  # fmt: skip
    settings = f'{QUICK}, embedl_onnxruntime_path = "{PROGRAM}", python_path = "{sys.executable}"'
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in ssh.items())
    return (
        f'[devices.{name}]\ntype = "embedl_onnxruntime"\nssh = {{ {words} }}\nconfig = {{ {settings} }}\n'
        f'lease_dir = "{folder / "lock"}"\nartifact_root = "{folder / name}"\n'
    )


def _run(project: pytest.Pytester, body: str, *options: object) -> pytest.RunResult:
    project.makepyfile(test_models=IMPORTS + body)
    return project.runpytest_inprocess("--junitxml=junit.xml", *map(str, options))


def _case(project: pytest.Pytester, name: str) -> ET.Element:
    root = ET.parse(project.path / "junit.xml").getroot()  # noqa: S314 - our own file
    (found,) = root.findall(f".//testcase[@name='{name}']")
    return found


def _properties(case: ET.Element) -> dict[str, str]:
    return {each.get("name", ""): each.get("value", "") for each in case.findall(".//property")}


def test_a_slower_model_fails_with_its_figures(project: pytest.Pytester) -> None:
    """The message, JUnit, the terminal and the summary have the interval, the place and the run, which is there."""
    body = """
def test_speed(board):
    assert_no_slower("wide/net.onnx", baseline="net.onnx", samples=20)
"""
    result = _run(project, body, "--hub-summary", "summary.md")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines_random([
        r"E +AssertionError: worse: latency_median of net.onnx, on this machine: worse by more than the tolerance.*",
        r"E +worsening: × \d+\.\d+ \(\d+\.\d+ to \d+\.\d+\), 99 % interval",
        r"E +differs in model: net.onnx \(\w+\) \| net.onnx \(\w+\)",
        r"E +runs: measured in turns \w+",
        r"=+ edgeproof =+",
        r"To look at a run: embedl-hub run show \w+ --home .*/home; at all in a browser: embedl-hub ui --home .*",
    ])  # fmt: skip
    # Nothing of ours stands between the test and the message.
    result.stdout.no_fnmatch_line("*pytest_plugin/_*")
    case = _case(project, "test_speed")
    assert case.find("failure") is not None
    properties = _properties(case)
    assert properties["edgeproof.outcome"] == "worse"
    with Store(project.path / "home") as store:
        run = store.run(properties["edgeproof.run"])
    assert run.status is RunStatus.FINISHED
    assert run.tags["test"] == "test_models.py::test_speed"
    summary = (project.path / "summary.md").read_text()
    assert "### Edgeproof tests: worse" in summary
    assert run.id in summary
    assert "●" in summary


def test_a_recorded_baseline_is_what_later_models_are_held_against(project: pytest.Pytester) -> None:
    """On main it is recorded, on a branch compared; one of another name is not taken for it."""
    body = """
def test_speed():
    assert_no_slower("{}", baseline="stage=main", samples=20)
"""
    recorded = _run(project, body.format("net.onnx"), "--hub-record", "stage=main")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(["*recorded: speed of net.onnx*recorded as the baseline stage=main*"])
    _run(project, body.format("wide/net.onnx")).assert_outcomes(failed=1)
    save(residual_net(), project.path / "other.onnx")
    other = _run(project, body.format("other.onnx"))
    other.assert_outcomes(errors=1)
    other.stdout.fnmatch_lines(["*with the tag stage=main measured 'other.onnx'; they measured 'net.onnx'*"])


@pytest.mark.slow
def test_another_metric_is_gated_by_profiles_in_turns(project: pytest.Pytester) -> None:
    """The runs of both are named; a metric that is not there is an error that lists those that are."""
    body = """
def test_memory():
    assert_no_slower("wide/net.onnx", baseline="net.onnx", metric="latency_min", most_pairs=3)
def test_missing():
    assert_no_slower("wide/net.onnx", baseline="net.onnx", metric="nope", most_pairs=3)
"""
    result = _run(project, body)
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.re_match_lines_random(
        [r"E +runs: candidate \w+, baseline \w+", r".*has no metric 'nope'; it has: .*"]
    )


LABELS = """
import onnxruntime
DATA = dict(np.load("data.npz"))
SESSION = onnxruntime.InferenceSession("net.onnx")
RIGHT = np.concatenate([SESSION.run(None, {"x": x[None]})[0] for x in DATA["x"]]).argmax(-1)
"""


def test_accuracy_is_counted_on_the_device(project: pytest.Pytester) -> None:
    """Labels that are one off are all wrong."""
    body = """
def test_wrong():
    assert_accuracy("net.onnx", DATA, (RIGHT + 1) % 10, at_least=0.5)
"""
    result = _run(project, LABELS + body)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines_random([
        r"E +AssertionError: worse: accuracy of net.onnx, on this machine: 0.0000 is less than 0.5",
        r"E +accuracy: 0.000 \(0.000 to 0.324\), 95 % interval of 8 samples",
    ])  # fmt: skip


@pytest.mark.slow
def test_accuracy_against_another_model_and_by_a_metric_of_ones_own(project: pytest.Pytester) -> None:
    """Labels from the model itself are all right; against itself nothing is lost; a function may count."""
    body = """
def test_right():
    assert_accuracy("net.onnx", "data.npz", RIGHT, at_least=1.0)
def test_itself():
    assert_accuracy("net.onnx", DATA, RIGHT, no_worse_than="net.onnx")
def test_own_metric():
    assert_accuracy("net.onnx", DATA, metric=lambda outputs, _: float(outputs["y"].shape[0]), at_least=9)
"""
    result = _run(project, LABELS + body)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *worse: <lambda> of net.onnx, on this machine: 8.0000 is less than 9"])
    assert _properties(_case(project, "test_itself"))["edgeproof.outcome"] == "ok"


def test_placement_and_memory(project: pytest.Pytester) -> None:
    """Layers that fell back are named with their nodes; a model too large says by how much."""
    body = """
def test_on_cuda():
    assert_placed("net.onnx", unit="CUDAExecutionProvider")
def test_fits():
    assert_fits("net.onnx")
def test_too_small():
    assert_fits("net.onnx", memory="1MB")
"""
    result = _run(project, body)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.re_match_lines_random([
        r"E +AssertionError: worse: placement of net.onnx, on this machine: \d+ of \d+ layers did not run on CUDA.*",
        r"E +elsewhere: .*conv/0.*",
        r"E +AssertionError: worse: memory of net.onnx, on 1MB of memory: will not fit: .*",
    ])  # fmt: skip


@pytest.mark.slow
def test_which_layers_compute_in_integers(project: pytest.Pytester) -> None:
    """Those that do not are named; where all are allowed to be elsewhere, nothing is known."""
    body = """
def test_on_cpu():
    assert_placed("net.onnx", unit="CPU")
def test_float_nodes():
    assert_placed("net.onnx", integer=["conv/0"])
def test_share():
    assert_placed("net.onnx", integer=0.5)
def test_allowed():
    assert_placed("net.onnx", integer=True, allow=["*"], strict=True)
"""
    result = _run(project, body)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.re_match_lines_random([
        r"E +in float: .*conv/0.*",
        r"E +time in integers: 0.0% of the layers that compute",
        r"E +AssertionError: cannot tell: placement of net.onnx.*does not tell which layers compute in integers",
    ])  # fmt: skip


def test_what_cannot_be_told_is_a_warning(project: pytest.Pytester) -> None:
    """Seen in the report; a failure where it is asked for."""
    _devices(project, HERE.replace("layer_runs = 3", "layer_runs = 0"))
    body = """
def test_placed():
    assert_placed("net.onnx", integer=True)
"""
    told = _run(project, body)
    told.assert_outcomes(passed=1, warnings=1)
    told.stdout.fnmatch_lines(["*CannotTellWarning: cannot tell: placement of net.onnx*the runtime told no layers*"])
    _run(project, body.replace("True)", "True, strict=True)")).assert_outcomes(failed=1)


def test_a_board_that_is_off_is_an_error_of_the_rig(
    project: pytest.Pytester, new_server: Callable[..., SSHServer]
) -> None:
    """In a fixture, in a check, in a step of the test's own, and where the test was expected to fail."""
    server = new_server()
    _devices(project, _board(server, project.path))
    server.stop()
    body = """
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.core.steps import keep_model
from pathlib import Path

def test_fixture(board):
    pass
def test_check():
    assert_accuracy("net.onnx", "data.npz", [0] * 8, at_least=0, device="pi")
@pytest.mark.xfail(reason="slow today")
def test_expected():
    assert_accuracy("net.onnx", "data.npz", [0] * 8, at_least=0, device="pi")
def test_step(hub):
    model = keep_model(hub, ONNXRuntimeProfiler, Path("net.onnx"))
    ONNXRuntimeProfiler().run(hub, model, device="pi")
"""
    result = _run(project, body, "--hub-summary", "summary.md")
    result.assert_outcomes(errors=4)
    for name in ("test_fixture", "test_check", "test_expected", "test_step"):
        case = _case(project, name)
        assert case.find("error") is not None
        assert case.find("failure") is None
        assert case.find("skipped") is None
    assert "4 not measured" in (project.path / "summary.md").read_text()
    assert "Connection refused" in (project.path / "summary.md").read_text()


def test_a_real_board(project: pytest.Pytester, ssh_server: SSHServer) -> None:
    """Chosen by what it is; it is the test's own while the test runs, and the answers come from it."""
    _devices(project, _board(ssh_server, project.path))
    body = """
from embedl_hub.core import HubContext
from embedl_hub.core.device import load_devices
from embedl_hub.errors import BusyError

@pytest.mark.board(kind="embedl-onnxruntime", memory_at_least="10 MB", cores_at_least=1)
def test_board(board, hub):
    assert board.name == "pi"
    assert board.runner.run(["echo", "there"], hide=True).stdout == "there\\n"
    assert_accuracy("net.onnx", "data.npz", [0] * 8, at_least=0.0)
    with HubContext("other", load_devices("home/devices.toml"), home="other") as other:
        with pytest.raises(BusyError):
            with other.claim("pi", wait_s=0.1):
                pass

@pytest.mark.board(memory_at_least="900 TiB")
def test_none_is_like_this(board):
    pass
"""
    result = _run(project, body)
    result.assert_outcomes(passed=1, errors=1)
    assert _properties(_case(project, "test_board"))["edgeproof.device"] == "device pi"
    result.stdout.fnmatch_lines(["*No device is 'memory>=900 TiB'*"])
    _run(project, body, "--hub-missing", "skip", "-k", "none").assert_outcomes(skipped=1, deselected=1)


def test_a_check_outside_of_a_test_says_so() -> None:
    """In a thread, or without the plugin."""
    from embedl_hub.pytest_plugin._running import CURRENT

    token = CURRENT.set(None)
    try:
        with pytest.raises(NotMeasuredError, match="outside of a test"):
            assert_fits("net.onnx")
    finally:
        CURRENT.reset(token)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('assert_no_slower("gone.onnx", baseline="net.onnx")', "'gone.onnx' is neither a file here nor a run*"),
        ('assert_no_slower("net.onnx", baseline="stage=main")', "*has the tag stage=main. Record one: *--hub-record*"),
        ('assert_no_slower("net.onnx", baseline="data.npz")', "It cannot be told what runs *data.npz*"),
        ('assert_no_slower("net.onnx", baseline="net.onnx", tolerance=-1)', "tolerance is -1; give a share*"),
        ('assert_no_slower("net.onnx", baseline="net.onnx", tolerance="5%")', "tolerance is '5%'; give a share*"),
        ('assert_no_slower("net.onnx", baseline="net.onnx", tolerance=5)', "tolerance is 5; give a share*"),
        ('assert_accuracy("net.onnx", "data.npz", [0], at_least=95)', "at_least is 95; give a share*"),
        ('assert_no_slower("net.onnx", baseline="net.onnx", device="mars")', "There is no device 'mars'*'here'*"),
        ('assert_accuracy("net.onnx", "data.npz", at_least=0.5)', "The metric 'accuracy' needs the labels*"),
        ('assert_accuracy("net.onnx", "data.npz", [0], at_least=0.5)', "Output 'y' has the shape [[]8, 10[]]*"),
        ('assert_accuracy("net.onnx", "gone.npz", [0], at_least=0.5)', "The inputs in gone.npz cannot be read*"),
        ('assert_accuracy("net.onnx", "data.npz", [0])', "*either at_least=0.9 or no_worse_than=MODEL*"),
        ('assert_accuracy("net.onnx", "data.npz", [0], metric="f1", at_least=1)', "There is no metric 'f1'; known*"),
        ('assert_fits("data.npz")', "It cannot be told what runs *data.npz*"),
        ('assert_fits("net.onnx", memory="much")', "The memory is given as 'much'; it must be a number with a unit*"),
        ('assert_placed("net.onnx")', "assert_placed takes unit= or integer=: *'CPU'*"),
        ('assert_placed("net.onnx", integer=["nope"])', "No layer stands for 'nope'; nodes of the model are: *"),
    ],
)
def test_a_mistake_is_one_clear_line(project: pytest.Pytester, call: str, message: str) -> None:
    """An error of the test that says what is known and what to do; nothing of our own is in the traceback."""
    result = _run(project, f"def test_it():\n    {call}\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E * embedl_hub.pytest_plugin.NotMeasuredError: {message}"])
    result.stdout.no_fnmatch_line("*pytest_plugin/_*")


@pytest.mark.parametrize(
    ("ratio", "decision"),
    [
        (Ratio(1.0, 0.98, 1.02), Decision.OK),
        (Ratio(1.2, 1.1, 1.3), Decision.WORSE),
        (Ratio(1.06, 1.02, 1.1), Decision.WORSE),
        (Ratio(1.04, 1.02, 1.06), Decision.OK),
        (Ratio(1.02, 0.9, 1.2), Decision.CANNOT_TELL),
        (Ratio(1.02), Decision.CANNOT_TELL),
    ],
)
def test_an_interval_decides(ratio: Ratio, decision: Decision) -> None:
    """Outside of the limit it is clear; across it, only what is worse for certain is decided by the middle."""
    assert decide(ratio, 0.05, "20 rounds")[0] is decision


def test_intervals_of_shares() -> None:
    """Wilson's of 8 of 10, by hand; of equal answers around nothing."""
    assert _wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)
    right = np.array([True] * 90 + [False] * 10)
    low, high = _difference(right, right)
    assert low < 0 < high
    low, high = _difference(right, np.ones(100, bool))
    assert low == pytest.approx(-0.1 - 1.96 * np.sqrt(11 - 1) / 100)
    assert high < 0
