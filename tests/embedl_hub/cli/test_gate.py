"""``embedl-hub gate`` of a file: what is wrong is said before anything is measured, and is never the code for worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.models import residual_net, save

from embedl_hub.cli.main import cli
from embedl_hub.tracking import Store

QUICK = "iterations = 20, min_seconds = 0.02, max_warmup_seconds = 0.2, layer_runs = 0, threads = 1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model and a home with a quick device."""
    monkeypatch.chdir(tmp_path)
    save(residual_net(), tmp_path / "net.onnx")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/devices.toml").write_text(
        f'[devices.here]\ntype = "local"\nlease_dir = ""\nconfig = {{ {QUICK} }}\n'
    )
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.onnx", "--baseline", "a=b"], "'gone.onnx' is neither a file here nor a run"),
        (
            ["net.onnx", "--baseline", "a=b"],
            "embedl-hub gate MODEL --baseline a=b --record --project",
        ),
        (["net.onnx", "--baseline", "nothing"], "There is no run with an id starting with 'nothing'"),
        (["net.onnx", "--baseline", "nothing", "--record"], "--record takes a model file and a tag"),
        (["gone.onnx", "--baseline", "a=b", "--record"], "--record takes a model file and a tag"),
        (["net.onnx", "--baseline", "a=b", "--summary", "."], "--summary cannot be written to .: Is a directory."),
        (
            ["net.onnx", "--baseline", "a=b", "--summary", "net.onnx/s.md"],
            "--summary cannot be written to net.onnx/s.md",
        ),
        (["net.onnx", "--baseline", "a=b", "--junit", "home"], "--junit cannot be written to home: Is a directory."),
        (["net.onnx", "--baseline", "a=b", "--bundle", "home"], "--bundle cannot be written to home: Is a directory."),
        (["net.onnx", "--baseline", "a=b", "--picture", "p.png"], "it is an SVG file, so name it .svg"),
        (["net.onnx", "--baseline", "a=b", "--device", "mars"], "has the tag a=b"),
        (["net.onnx", "--baseline", "a=b", "--device", "mars", "--record"], "There is no device 'mars'"),
    ],
)
def test_wrong_words_are_code_2(home: Path, words: list[str], message: str) -> None:
    """With one sentence, and no file left behind."""
    before = {path.name for path in home.parent.iterdir()}
    done = CliRunner().invoke(cli, ["gate", *words, "--home", str(home)])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert {path.name for path in home.parent.iterdir()} == before


def test_a_baseline_is_recorded_and_found_by_the_name_of_its_model(home: Path) -> None:
    """Its run has the tag; a model of another name is not held against it."""
    words = ["--baseline", "stage=main", "--home", str(home)]
    done = CliRunner().invoke(cli, ["gate", "net.onnx", *words, "--record", "--summary", "s.md", "--junit", "g.xml"])
    assert done.exit_code == 0, done.output
    with Store(home) as store:
        (run,) = store.runs("type = 'PROFILE'")
    assert run.tags == {"stage": "main"}
    assert run.id in Path("s.md").read_text()
    assert "recorded as the baseline" in Path("g.xml").read_text()
    slip = CliRunner().invoke(cli, ["gate", "net.onnx", *words, "--metric", "latency_medium"])
    assert slip.exit_code == 2
    assert f"Run {run.id} (FINISHED) has no metric 'latency_medium'; it has:" in " ".join(slip.output.split())
    with Store(home) as store:
        assert len(store.runs("type = 'PROFILE'")) == 1
    save(residual_net(), Path("other.onnx"))
    other = CliRunner().invoke(cli, ["gate", "other.onnx", *words])
    assert other.exit_code == 2
    assert "measured 'other.onnx'; they measured 'net.onnx'." in " ".join(other.output.split())


def test_the_runs_of_a_gate_open_elsewhere(home: Path) -> None:
    """The bundle has both runs and every repeat; the summary says how to look at them."""
    words = ["--baseline", "stage=main", "--home", str(home)]
    assert CliRunner().invoke(cli, ["gate", "net.onnx", *words, "--record"]).exit_code == 0
    asked = ["--tolerance", "300%", "--most-pairs", "4", "--bundle", "runs.zip", "--summary", "s.md"]
    done = CliRunner().invoke(cli, ["gate", "net.onnx", *words, *asked])
    assert done.exit_code == 0, done.output
    assert "embedl-hub run import runs.zip && embedl-hub compare" in Path("s.md").read_text()
    imported = CliRunner().invoke(cli, ["run", "import", "runs.zip", "--home", "elsewhere"])
    assert imported.exit_code == 0, imported.output
    with Store(home) as store, Store(Path("elsewhere")) as other:
        baseline, candidate = store.runs("type = 'PROFILE'", order="started")
        repeats = store.tagged("gate", [candidate.id])
        assert len(repeats) >= 6
        assert {run.id for run in other.runs(archived=None)} == {
            baseline.id,
            candidate.id,
            *(run.id for run in repeats),
        }
