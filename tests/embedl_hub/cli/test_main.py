"""The command line: help that helps, clean errors, machine-readable output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import embedl_hub
from embedl_hub.core import HubContext
from embedl_hub.tracking import Store


def hub(*arguments: str | Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = None if home is None else {"EMBEDL_HUB_HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-m", "embedl_hub", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a store with a finished and a failed run."""
    with HubContext("shapes", home=tmp_path) as ctx:
        with ctx.client.start_run("COMPILE", "good"):
            ctx.client.log_param("level", 3)
            ctx.client.log_metric("latency", 1.25)
            ctx.client.log_tag("stage", "[bold]ci[/bold] :warning:")
        with pytest.raises(ValueError, match="too small"), ctx.client.start_run("PROFILE", "bad"):
            raise ValueError("too small")
    return tmp_path


def test_version_and_help() -> None:
    """Every command is listed with its line."""
    assert hub("--version").stdout.strip() == f"embedl-hub, version {embedl_hub.__version__}"
    text = hub("--help").stdout
    assert "reindex" in text
    assert "Find, show, start, finish" in text


@pytest.mark.parametrize("words", ["--version", "run list --json"])
def test_a_start_pays_only_for_what_it_uses(home: Path, words: str) -> None:
    """Commands of other packages are looked up when ours has no such name, slips explained when there is one."""
    code = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
    code += "from embedl_hub.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True, text=True, timeout=60, check=True, env={"EMBEDL_HUB_HOME": str(home)},
    )  # fmt: skip
    assert done.stdout
    assert {"click", "importlib.metadata", "difflib", "rich"} & set(done.stderr.split()) == {"click"}


def test_the_two_names_are_one_program() -> None:
    """embedl-hub and ehub are installed beside Python."""
    for name in ("embedl-hub", "ehub"):
        program = Path(sys.executable).with_name(name)
        assert subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout.endswith(
            f"{embedl_hub.__version__}\n"
        )


def test_runs_are_listed_newest_first(home: Path) -> None:
    """As a table and as JSON, filtered on wish."""
    text = hub("run", "list", home=home).stdout
    assert text.index("bad") < text.index("good")
    runs = json.loads(hub("run", "list", "--json", "--status", "FAILED", home=home).stdout)["runs"]
    assert [run["name"] for run in runs] == ["bad"]
    assert runs[0]["error"] == "ValueError: too small"


def test_one_run_is_shown_by_the_beginning_of_its_id(home: Path) -> None:
    """With values, and with the traceback of a failed one; markup and names of emoji in values are text."""
    failed, finished = json.loads(hub("run", "list", "--json", home=home).stdout)["runs"]
    shown = hub("run", "show", finished["id"], home=home).stdout
    assert "param level" in shown
    assert "1.25" in shown
    assert "[bold]ci[/bold] :warning:" in shown
    assert "Traceback" in hub("run", "show", failed["id"], home=home).stdout
    assert json.loads(hub("run", "show", finished["id"], "--json", home=home).stdout)["params"] == {"level": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "show", "nothing"], "no run with an id starting with 'nothing'"),
        (["run", "list", "--home", "/nonexistent/place"], "There is no store at /nonexistent/place"),
        (["reindex", "--home", "/nonexistent/place"], "There is no store at /nonexistent/place"),
    ],
)
def test_what_a_user_can_fix_is_one_clean_message(home: Path, arguments: list[str], words: str) -> None:
    """No traceback, exit code 1, on stderr."""
    done = hub(*arguments, home=home)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_narrow_terminal_shows_whole_columns(home: Path) -> None:
    """Half an id is no id: columns go before cells are cut."""
    run_id = json.loads(hub("run", "list", "--json", home=home).stdout)["runs"][0]["id"]
    command = f"stty cols 70 && {sys.executable} -m embedl_hub run list --home {home} --status failed"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, check=True)
    assert run_id in done.stdout
    assert "FAILED" in done.stdout
    assert "started" not in done.stdout


def test_folders_that_cannot_be_read_are_named(home: Path) -> None:
    """The rest is indexed all the same."""
    (home / "runs" / "broken").mkdir()
    (home / "runs" / "broken" / "manifest.jsonl").write_text("rubbish")
    done = hub("reindex", home=home)
    assert done.returncode == 1
    assert ": 2" in done.stdout
    assert str(home / "runs" / "broken") in done.stderr


def test_a_series_is_shown_by_its_last_value(tmp_path: Path) -> None:
    """And by how many there are."""
    with HubContext("series", home=tmp_path) as ctx, ctx.client.start_run() as run:
        for step in range(5):
            ctx.client.log_metric("loss", 5 - step, step=step)
    assert "1 (last of 5)" in hub("run", "show", run.id, home=tmp_path).stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    """Exit code 2, as click does it."""
    done = hub("fly")
    assert done.returncode == 2
    assert "No such command 'fly'" in done.stderr


def test_reindex_rebuilds_the_database(home: Path) -> None:
    """Also a damaged one; the damaged file is kept."""
    (home / "hub.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    broken = hub("run", "list", home=home)
    assert broken.returncode == 1
    assert "embedl-hub reindex" in broken.stderr
    assert hub("reindex", home=home).stdout == f"Runs indexed in {home}: 2\n"
    with Store(home) as store:
        assert len(store.runs()) == 2
    assert list(home.glob("damaged-*"))
