"""The plugin around the checks: it costs nothing where it is not used, chooses boards, works with pytest-xdist."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.models import residual_net, save

from embedl_hub.tracking import Store

pytest_plugins = ["pytester"]

POOL = """
[devices.one]
type = "local"
lease_dir = ""
spec = { architecture = "aarch64" }
[devices.two]
type = "local"
lease_dir = ""
spec = { architecture = "aarch64" }
[devices.three]
type = "local"
lease_dir = ""
spec = { architecture = "riscv64" }
[pools.pair]
devices = ["one", "two"]
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a model, and no home that somebody named."""
    monkeypatch.delenv("EMBEDL_HUB_HOME", raising=False)
    save(residual_net(), pytester.path / "net.onnx")
    return pytester


def _home(project: pytest.Pytester) -> Path:
    home = project.path / "home"
    home.mkdir()
    (home / "devices.toml").write_text(POOL)
    return home


def test_a_project_that_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    """Nothing of the hub but the plugin's own light files is imported, also after a failure."""
    project.makeconftest("""
import sys
def pytest_sessionfinish():
    loaded = sorted(name for name in sys.modules if name.startswith("embedl_hub."))
    heavy = [name for name in ("numpy", "onnx", "click", "rich", "sqlite3") if name in sys.modules]
    print("\\nloaded:", *loaded, "heavy:", *heavy)
""")
    project.makepyfile("def test_one(): pass\ndef test_two(): assert 0\n")
    result = project.runpytest_subprocess("-s", "-p", "no:hypothesispytest", "-p", "no:schemathesis")
    result.assert_outcomes(passed=1, failed=1)
    own = [f"embedl_hub.pytest_plugin{name}" for name in ("", "._ends", "._plugin", "._running")]
    result.stdout.fnmatch_lines([f"loaded: embedl_hub._version {' '.join(own)} heavy:"])
    result.stdout.no_fnmatch_line("*= edgeproof =*")


@pytest.mark.slow
def test_workers_share_a_store_and_one_report(project: pytest.Pytester) -> None:
    """What workers of pytest-xdist found is in the terminal, the summary and JUnit; the store is pytest's cache's."""
    project.makepyfile("""
from embedl_hub.pytest_plugin import assert_fits
def test_one():
    assert_fits("net.onnx")
def test_two():
    assert_fits("net.onnx", memory="1MB")
""")
    result = project.runpytest_subprocess("-n", "2", "--junitxml=junit.xml", "--hub-summary=summary.md")
    result.assert_outcomes(passed=1, failed=1)
    home = project.path / ".pytest_cache/d/edgeproof"
    result.stdout.fnmatch_lines_random([
        "test_*::test_one: ok: memory of net.onnx*", "test_*::test_two: worse: memory of net.onnx*",
        f"*embedl-hub ui --home {home}*",
    ])  # fmt: skip
    root = ET.parse(project.path / "junit.xml").getroot()  # noqa: S314 - our own file
    ids = [each.get("value", "") for each in root.findall(".//property[@name='edgeproof.run']")]
    with Store(home) as store:
        assert {store.run(each).name for each in ids} == {"fits net.onnx"}
    assert len(ids) == 2
    assert "1 ok, 1 worse" in (project.path / "summary.md").read_text()


def test_a_test_runs_once_for_each_board_of_a_pool(project: pytest.Pytester) -> None:
    """By a pool, by what boards are, and by the option; each is the device of its test."""
    project.makepyfile("""
import pytest
@pytest.mark.board(pool="pair")
def test_pool(board, request):
    assert board.name == request.node.callspec.id
@pytest.mark.board(arch="aarch64", each=True)
def test_like(board): pass
@pytest.mark.board("arch=riscv64")
def test_first(board):
    assert board.name == "three"
""")
    home = _home(project)
    result = project.runpytest_inprocess("-v", "--strict-markers", "--hub-home", home)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines_random(["*test_pool[[]one[]] PASSED*", "*test_like[[]two[]] PASSED*"])
    project.makepyfile("def test_plain(board): pass\n")
    chosen = project.runpytest_inprocess("-v", "--hub-home", home, "--hub-device", "three,one", "-k", "plain")
    chosen.stdout.fnmatch_lines_random(["*test_plain[[]three[]] PASSED*", "*test_plain[[]one[]] PASSED*"])
    undecided = project.runpytest_inprocess("--hub-home", home, "-k", "plain")
    undecided.assert_outcomes(errors=1)
    undecided.stdout.fnmatch_lines(["*'one', 'three', 'two': say which one a test is for, by --hub-device NAME*"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('pool="nope"', "*There is no pool 'nope'; pools are: 'pair'."),
        ('color="red"', "*@pytest.mark.board has no 'color'; it has: 'accelerator', 'arch'*"),
        ('memory_at_least="2 apples"', "*memory is '2 apples'; its unit must be one of 'GB'*"),
        ('arch="m68k"', "*No device is 'arch=m68k'*"),
        ('"arch~x"', "*The query 'arch~x' cannot be read*"),
    ],
)
def test_a_marker_that_names_nothing_is_an_error(project: pytest.Pytester, marker: str, message: str) -> None:
    """With what is known; the tests beside it run."""
    project.makepyfile(
        f"import pytest\n@pytest.mark.board({marker})\ndef test_it(board): pass\ndef test_other(): pass\n"
    )
    result = project.runpytest_inprocess("--hub-home", _home(project))
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([message])


def test_a_pool_of_the_command_line_that_is_not_there_is_an_error_of_the_tests_that_ask(
    project: pytest.Pytester,
) -> None:
    """And of no other."""
    project.makepyfile("def test_it(board): pass\ndef test_other(): pass\n")
    result = project.runpytest_inprocess("--hub-home", _home(project), "--hub-device", "pool:nope")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*There is no pool 'nope'; pools are: 'pair'."])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hub-summary", "."], "ERROR: --hub-summary cannot be written to .: Is a directory."),
        (["--hub-summary", "/proc/nope/s.md"], "ERROR: --hub-summary cannot be written to /proc/nope/s.md: *"),
        (["--hub-summary", "net.onnx/s.md"], "ERROR: --hub-summary cannot be written to net.onnx/s.md: *"),
        (["--hub-record", "main"], "ERROR: --hub-record is 'main'; it must look like TAG=VALUE, as stage=main."),
        (["-o", "hub_missing=maybe"], "ERROR: hub_missing is 'maybe'; it is error or skip."),
    ],
)
def test_options_that_cannot_work_are_refused_at_the_start(
    project: pytest.Pytester, options: list[str], message: str
) -> None:
    """Before any test runs, with pytest's code for wrong usage."""
    result = project.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_folder_that_is_no_store_is_not_made_one(project: pytest.Pytester) -> None:
    """A foreign folder, and a file."""
    project.makepyfile("def test_it(hub): pass\n")
    (project.path / "photos").mkdir()
    (project.path / "photos/cat.png").write_text("x")
    for home, message in (("photos", "*photos is no store of Edgeproof: it holds other files*"), ("net.onnx", "*")):
        result = project.runpytest_inprocess("--hub-home", home)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"E *NotMeasuredError: {message}"])
    assert [path.name for path in (project.path / "photos").iterdir()] == ["cat.png"]
