"""The GitHub action and the GitLab template, run as they are written: their exit codes, reports and summaries."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support.ci_runner import Ended, GitHubRunner, load_yaml, run_gitlab_job
from support.models import residual_net, save

from embedl_hub.tracking import Store

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "ci/github/gate/action.yml"
TEMPLATE = ROOT / "ci/gitlab/edgeproof.gitlab-ci.yml"
DEVICES = """
[devices.here]
type = "local"
lease_dir = ""
config = {{ iterations = 20, min_seconds = 0.02, max_warmup_seconds = 0.2, layer_runs = 0, threads = 1 }}
[devices.off]
type = "embedl_onnxruntime"
ssh = {{ host = "127.0.0.1", port = {port}, connect_timeout_s = 5.0 }}
"""

Job = Callable[..., Ended]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with a quick device and a board that is off."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "home").mkdir()
    (tmp_path / "home/devices.toml").write_text(DEVICES.format(port=port))
    return tmp_path / "home"


@pytest.fixture(params=["github", "gitlab"])
def job(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Job:
    """Run the gate of either; settings are named as the template's variables, in lower case."""
    work = tmp_path / "workspace"
    for name, size in (("net", 16), ("slow/net", 48)):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        save(residual_net(size=size), work / f"{name}.onnx")
    if request.param == "github":
        runner = GitHubRunner(tmp_path)
        names = {"strict": "fail_when_unsure"}

        def on_github(**settings: str) -> Ended:
            inputs = {names.get(name, name): value for name, value in settings.items()}
            ended = runner.run(ACTION, home=str(home), install="none", keep="none", **inputs)
            assert ended.outputs["exit-code"] == str(ended.code)
            return ended

        return on_github

    def on_gitlab(**settings: str) -> Ended:
        variables = {f"EDGEPROOF_{name.upper()}": value for name, value in settings.items()}
        name = ".edgeproof-record" if settings.get("record") == "true" else ".edgeproof-gate"
        variables |= {"EMBEDL_HUB_HOME": str(home), "EDGEPROOF_INSTALL": "none"}
        ended = run_gitlab_job(TEMPLATE, name, work, {}, **variables)
        summary = work / "edgeproof-gate.md"
        ended.summary = summary.read_text() if summary.exists() else ""
        if ended.summary:
            assert ended.summary.strip() in ended.log
        return ended

    return on_gitlab


def _junit(tmp_path: Path) -> ET.Element:
    places = ("workspace/edgeproof-gate/gate.xml", "workspace/edgeproof-gate.xml")
    (found,) = [tmp_path / place for place in places if (tmp_path / place).exists()]
    return ET.parse(found).getroot()  # noqa: S314 - our own file


def test_a_rig_fault_is_code_3(job: Job, tmp_path: Path) -> None:
    """A board that is off: an error in JUnit and in the summary, no failure; a missing baseline is wrong usage."""
    assert job(model="net.onnx", record="true", device="here").code == 0
    ended = job(model="net.onnx", device="off")
    assert ended.code == 3, ended.log
    assert (_junit(tmp_path).get("errors"), _junit(tmp_path).get("failures")) == ("1", "0")
    assert "### Edgeproof gate: not measured" in ended.summary
    assert "Connection refused" in ended.summary
    assert "exit code 3: the model was not judged" in ended.summary
    missing = job(model="net.onnx", baseline="stage=nope", device="here")
    assert missing.code == 2
    assert "has the tag stage=nope" in missing.log


@pytest.mark.slow
def test_a_passing_and_a_failing_gate(job: Job, tmp_path: Path, home: Path) -> None:
    """Codes 0 and 1, with the interval in the summary, the picture and JUnit."""
    recorded = job(model="net.onnx", record="true", device="here")
    assert recorded.code == 0, recorded.log
    assert "### Edgeproof gate: recorded" in recorded.summary
    fine = job(model="net.onnx", tolerance="300%", device="here")
    assert fine.code == 0, fine.log
    assert _junit(tmp_path).get("failures") == "0"
    worse = job(model="slow/net.onnx", device="here")
    assert worse.code == 1, worse.log
    assert _junit(tmp_path).get("failures") == "1"
    assert re.search(r"× \d\.\d{3} \\\(\d\.\d{3} to \d+\.\d{3}\\\), 99 % interval", worse.summary)
    pictures = [*tmp_path.glob("workspace/**/*gate.svg")]
    assert [ET.parse(each).getroot().tag for each in pictures] == ["{http://www.w3.org/2000/svg}svg"]  # noqa: S314
    assert len([*tmp_path.glob("workspace/**/*runs.zip")]) == 1
    if worse.outputs:
        assert worse.outputs["verdict"] == "worse"
        with Store(home) as store:
            assert store.run(worse.outputs["run"]).device == "here"
        assert "actions/upload-artifact@v4" in worse.used


def test_what_others_write_is_never_a_command(job: Job, tmp_path: Path) -> None:
    """A name of a model, a tag or a device that is shell, Python or an option stays a name."""
    mark = tmp_path / "mark"
    for text in (f"$(touch {mark}) '; touch {mark}; ' \"; touch {mark}; \" `touch {mark}`", "--help"):
        ended = job(model=text, baseline=f"a={text}", device=text, project=text, tolerance="5%")
        assert ended.code == 2, ended.log
    assert not mark.exists()


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else [str(value)]


def test_no_input_is_text_of_a_script() -> None:
    """Inputs reach the shell through env alone; every variable that the scripts use is one that they are given."""
    steps = load_yaml(ACTION)["runs"]["steps"]
    for step in steps:
        assert "${{" not in step.get("run", "")
        for name in re.findall(r"\$\{?(EDGEPROOF_\w+)", step.get("run", "")):
            assert name in step["env"]
    template = load_yaml(TEMPLATE)
    assert "$[[" not in TEMPLATE.read_text()
    used = set(re.findall(r"\$(EDGEPROOF_\w+)", "\n".join(_texts(template[".edgeproof"]))))
    assert used <= set(template[".edgeproof"]["variables"])


def test_inputs_are_described_and_documented() -> None:
    """Each says what it is for, and the how-to names it."""
    page = (ROOT / "docs/how-to/test-models-in-ci.md").read_text()
    action = load_yaml(ACTION)
    for name, each in (*action["inputs"].items(), *action["outputs"].items()):
        assert each["description"]
        assert f"`{name}`" in page
    for name in load_yaml(TEMPLATE)[".edgeproof"]["variables"]:
        assert f"`{name}`" in page


@pytest.mark.parametrize(("event", "recorded"), [("push", True), ("pull_request", False)])
def test_the_example_s_build_files_run_the_tests(event: str, recorded: bool, tmp_path: Path) -> None:
    """Their steps as written, on GitHub and GitLab: a push to main records, a request tests; installing apart."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/test_model.py").write_text(
        "def test_it(pytestconfig):\n"
        f"    assert pytestconfig.getoption('--hub-record') == {'stage=main' if recorded else None!r}\n"
        "    assert pytestconfig.getoption('--hub-summary')\n"
    )
    folder = ROOT / "examples/model_tests"
    steps = load_yaml(folder / "github-actions.yml")["jobs"]["tests"]["steps"]
    github = {"github.event_name": event, "github.run_id": "7", "github.run_attempt": "1"}
    # The plugins of the environment of these tests are many; one is enough.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "embedl_hub.pytest_plugin._plugin"}
    ended = GitHubRunner(tmp_path, **plugins).run_steps(
        [each for each in steps if each.get("name") != "Install"], github
    )
    assert ended.code == 0, ended.log
    assert ("actions/cache/save@v4" in ended.used) is recorded
    assert (tmp_path / "workspace/models.xml").exists()
    job = "record-tests" if recorded else "tests"
    done = run_gitlab_job(folder / "gitlab-ci.yml", job, tmp_path / "workspace", plugins, without=("before_script",))
    assert done.code == 0, done.log


@pytest.mark.slow
def test_the_action_installs_its_own_version(tmp_path: Path) -> None:
    """From the action's checkout, into an environment of its own; the gate it then runs is that one."""
    ended = GitHubRunner(tmp_path).run(ACTION, model="nothing.onnx", keep="cache", home=str(tmp_path / "home"))
    assert ended.code == 2, ended.log
    assert "'nothing.onnx' is neither a file here nor a run" in ended.log
    assert (tmp_path / "temp/edgeproof-venv/bin/embedl-hub").exists()
    restored = ended.used["actions/cache/restore@v4"]
    assert restored["path"] == str(tmp_path / "home")
    assert restored["restore-keys"] == "edgeproof-"
    assert "actions/cache/save@v4" not in ended.used
    assert json.loads(json.dumps(ended.outputs))["verdict"] == "not measured"
