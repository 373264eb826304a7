"""What all checks share: the model they are given, where they measure, and how they end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from embedl_hub.comparison import Finding, Outcome
from embedl_hub.core.component import CompiledModel, RunType
from embedl_hub.core.lookup import find_model, find_run, toolchain_of
from embedl_hub.core.steps import HERE
from embedl_hub.core.toolchain import Toolchain, find_component, find_toolchain, toolchains
from embedl_hub.errors import ConfigError
from embedl_hub.pytest_plugin._ends import CannotTellWarning
from embedl_hub.pytest_plugin._session import measuring

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.pytest_plugin._running import RunningTest
    from embedl_hub.tracking import Run, Store

Model: TypeAlias = "str | os.PathLike[str] | CompiledModel"
"""A file of a runtime's own format, the id of a run that made or used a model, or what a compiler returned."""
_TEST_TAG = "test"
_LONGEST_TAG = 250


@dataclass(frozen=True)
class Subject:
    """A model to be checked."""

    name: str  # its file's name
    model: CompiledModel
    toolchain: Toolchain


class Check:
    """One check while it runs."""

    def __init__(self, test: RunningTest, device: str | None) -> None:
        self._test = test
        self._given = device

    @property
    def hub(self) -> HubContext:
        """The context of the tests."""
        return self._test.session.context

    @property
    def store(self) -> Store:
        """The store of the tests."""
        store = self.hub.client.store
        assert store is not None  # noqa: S101 - the tests' context always tracks
        return store

    @property
    def records_as(self) -> str | None:
        """The TAG=VALUE that models are recorded as in this session."""
        return self._test.session.settings.record

    @property
    def chosen(self) -> str | None:
        """The device that somebody chose; None where nobody did."""
        return self._test.session.place_of(self._test.device, self._given)

    @property
    def device(self) -> str:
        """Where to measure: the device that somebody chose, else this machine."""
        return self.chosen or HERE

    def word(self, model: Model) -> str | None:
        """Return how the command line would name a model; None for one that a compiler returned."""
        if isinstance(model, CompiledModel):
            return None
        text = os.fspath(model)
        under_root = self._test.session.settings.root / text
        return str(under_root) if not Path(text).exists() and under_root.exists() else text

    def subject(self, model: Model) -> Subject:
        """Return the model that a test names."""
        word = self.word(model)
        if word is None:
            assert isinstance(model, CompiledModel)  # noqa: S101 - only those have no word
            found = next((each for each in toolchains() if isinstance(model, each.compiled_model)), None)
            if found is None:
                raise ConfigError(f"{type(model).__name__} is of no toolchain that is installed.")
            return Subject(model.path.file_name, model, found)
        if not Path(word).exists():
            find_run(self.hub, word)  # or an error that says what the word could be
        toolchain = find_toolchain(toolchain_of(self.hub, [word]))
        taken = find_model(self.hub, find_component(RunType.PROFILE, toolchain.name), word)
        return Subject(Path(word).name if Path(word).exists() else taken.path.file_name, taken, toolchain)

    def finish(self, find: Callable[[], Finding], *, strict: bool | None) -> None:
        """Measure, keep what was found, and end the test where the model is worse."""
        __tracebackhide__ = True
        with measuring():
            labels = {_TEST_TAG: self._test.nodeid[-_LONGEST_TAG:]}
            with self._test.session.alone(self.device), self.hub.client.labeling(labels):
                finding = find()
        self._test.add(finding)
        text = "\n".join(finding.lines())
        is_strict = self._test.session.settings.is_strict if strict is None else strict
        if finding.outcome is Outcome.WORSE or (finding.outcome is Outcome.CANNOT_TELL and is_strict):
            raise AssertionError(text)
        if finding.outcome is Outcome.CANNOT_TELL:
            warnings.warn(CannotTellWarning(text), stacklevel=3)


def place_name(device: str | None) -> str:
    """Return a device for people."""
    return "this machine" if device in (None, HERE) else f"device {device}"


def run_ids(*runs: tuple[str, Run | None]) -> tuple[tuple[str, str], ...]:
    """Return the ids of runs, by what they are."""
    return tuple((name, run.id) for name, run in runs if run is not None)


def check_share(name: str, value: object) -> None:
    """Refuse what is no share: whoever writes 5 or "5%" means five per cent, not five hundred."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}; give a share from 0 to 1, such as 0.05 for 5 %.")
