"""The conformance check finds what it is there to find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.errors import CompileError, ConfigError
from embedl_hub.testing import ConformanceError, check_provider


def make_component() -> Any:
    class Packer(Component):
        run_type = RunType.COMPILE

        def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
            super().__init__(name=name, device=device)

        def run(self, ctx: HubContext, model: Path, *, device: str | None = None) -> CompiledModel:
            raise NoProviderError

    return Packer


def good(ctx: HubContext, model: Path, *, device: str | None = None) -> CompiledModel:
    if not model.is_file():
        raise CompileError(f"There is no model {model}.")
    target = ctx.artifact_dir / "packed.bin"
    target.write_bytes(model.read_bytes()[::-1])
    ctx.client.log_artifact(model, name="input")
    ctx.client.log_artifact(target, name="path")
    return CompiledModel.from_current_run(ctx)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(b"weights")
    return path


def test_a_good_provider_keeps_every_rule(model: Path) -> None:
    """Eleven rules with bad input given."""
    packer = make_component()
    packer.provider("local")(good)
    checks = check_provider(packer(), "local", model, bad_args=[model.with_name("nothing")])
    assert len(checks) == 11
    assert not any(check.fault for check in checks)


def _returns_nothing(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    good(ctx, model)


def _forgets_input(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    (ctx.artifact_dir / "x").write_bytes(b"x")
    ctx.client.log_artifact(ctx.artifact_dir / "x", name="path")
    return CompiledModel.from_current_run(ctx)


def _edits_input(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    result = good(ctx, model)
    model.write_bytes(b"changed")
    return result


def _sets_environment(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    os.environ["EDGEPROOF_TEST_LEFTOVER"] = "1"
    return good(ctx, model)


def _logs_environment(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    (ctx.artifact_dir / "env.txt").write_text(str(dict(os.environ)))
    ctx.client.log_artifact(ctx.artifact_dir / "env.txt", name="environment")
    return good(ctx, model)


def _needs_a_store(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    assert ctx.client.store is not None
    return good(ctx, model)


_SHARED: dict[str, str] = {}


def _shares_state(ctx: HubContext, model: Path, *, device: str | None = None) -> Any:
    own = ctx.client.run.id
    _SHARED["run"] = own
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        if _SHARED["run"] != own:
            raise RuntimeError("two runs at once")
        time.sleep(0.001)
    return good(ctx, model)


@pytest.mark.parametrize(
    ("provider", "rule"),
    [
        (_returns_nothing, "returns the declared output"),
        (_forgets_input, "logs its input under 'input'"),
        (_edits_input, "leaves its input files as they were"),
        (_sets_environment, "leaves working folder and environment as they were"),
        (_logs_environment, "keeps secrets out of the store"),
        (_needs_a_store, "works with tracking off"),
        (_shares_state, "keeps two runs at once apart"),
    ],
)
def test_each_broken_rule_is_found_and_named(
    provider: Callable[..., Any], rule: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider with one fault is refused, and the report says which rule it breaks."""
    monkeypatch.setenv("EDGEPROOF_TEST_LEFTOVER", "")
    packer = make_component()
    packer.provider("local")(provider)
    with pytest.raises(ConformanceError) as caught:
        check_provider(packer(), "local", model)
    assert rule in {check.rule for check in caught.value.checks if check.fault}
    assert f"BROKEN {rule}" in str(caught.value)


def test_bad_input_must_give_an_error_of_the_hub(model: Path) -> None:
    """A KeyError is not a clear error, and accepting is worse."""
    packer = make_component()

    def loose(ctx: HubContext, model: Path, *, device: str | None = None) -> CompiledModel:
        return good(ctx, {"model.bin": model}[model.name])

    packer.provider("local")(loose)

    with pytest.raises(ConformanceError, match="it raised KeyError"):
        check_provider(packer(), "local", model, bad_args=[model.with_name("nothing")])
    with pytest.raises(ConformanceError, match="it accepted"):
        check_provider(packer(), "local", model, bad_args=[model])


def test_the_wrong_provider_is_noticed(model: Path) -> None:
    """The call must reach the provider under test."""
    packer = make_component()
    packer.provider("local")(good)
    packer.provider("other")(good)
    with pytest.raises(ConformanceError, match="went to provider 'local'"):
        check_provider(packer(), "other", model)


def test_a_misspelt_type_or_a_class_is_told_at_once(model: Path) -> None:
    """Before anything runs, with what is known."""
    packer = make_component()
    packer.provider("local")(good)
    with pytest.raises(ConfigError, match="no provider 'locl'; it has: 'local'"):
        check_provider(packer(), "locl", model)
    with pytest.raises(ConfigError, match="takes an instance"):
        check_provider(packer, "local", model)
