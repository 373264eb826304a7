"""Options of compilations as switches: where both models were compiled from one source, which option it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.bisection._plan import OPTION, BisectionPlan, is_effort
from embedl_hub.bisection._search import Names, Switch
from embedl_hub.core.component import CompiledModel
from embedl_hub.core.steps import options_of
from embedl_hub.errors import ConfigError, HubError
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import LoggedArtifact, Run

_DATA = "calibration_data"


@dataclass(frozen=True)
class Compilations:
    """Two compilations of one source, and the options that they differ in."""

    source: LoggedArtifact
    device: str | None  # where BAD was compiled
    ends: tuple[Mapping[str, Any], Mapping[str, Any]]  # the options of GOOD and of BAD
    switches: tuple[Switch, ...]  # one for each option that differs, those that cannot be set too


def compilations_of(plan: BisectionPlan) -> tuple[Compilations | None, str | None]:
    """Return what both models were compiled with; None, and why where that is worth knowing, if it tells nothing."""
    runs = plan.good.compiled, plan.bad.compiled
    if runs[0] is None or runs[1] is None:
        return None, None
    sources = [run.artifacts.get("input") for run in runs if run is not None]
    if sources[0] is None or sources[1] is None or sources[0].sha256 != sources[1].sha256:
        return None, None
    compiler = plan.toolchain.compiler
    if any(run is None or run.component != compiler.__name__ for run in runs):
        return None, None
    names = [option.name for option in options_of(compiler)]
    ends = _options(runs[0], names), _options(runs[1], names)
    others = _other_settings(runs[0], runs[1])
    differing = [name for name in names if ends[0][name] != ends[1][name]]
    if others:
        return None, f"it was compiled with other settings of the device too ({', '.join(others)}), so layers are asked"
    switches = tuple(
        Switch(f"{OPTION}{name}", _words(ends[0][name]), _words(ends[1][name]), "part", _refusal(plan, name, ends))
        for name in differing
    )
    return (Compilations(sources[1], runs[1].device, ends, switches), None) if switches else (None, None)


def _options(run: Run, names: list[str]) -> dict[str, Any]:
    return {name: run.params[name].value if name in run.params else None for name in names}


def _other_settings(good: Run, bad: Run) -> list[str]:
    both = [run.params["provider_config"].value if "provider_config" in run.params else {} for run in (good, bad)]
    first, second = (each if isinstance(each, dict) else {} for each in both)
    return [name for name in sorted({*first, *second}) if not is_effort(name) and first.get(name) != second.get(name)]


def _words(value: object) -> str:
    return "not given" if value is None else str(value)


def _refusal(plan: BisectionPlan, name: str, ends: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str | None:
    if name == _DATA and all(end[name] is not None for end in ends):
        return "calibration data is in no record; compile with each and bisect the layers of these"
    if plan.calibration_data is None and any(end.get(_DATA) is not None for end in ends):
        return "to compile again, give the data that it was calibrated with: --calibration-data"
    return None


@dataclass
class Compiling:
    """Compiles the source with some options as in BAD, each set of them once."""

    ctx: HubContext
    plan: BisectionPlan
    _made: dict[Names, Path] = field(default_factory=dict)

    def model(self, compilations: Compilations, names: Names) -> Path:
        """Return the file that options make, those with a name as in BAD and all others as in GOOD."""
        chosen = frozenset(name for name in names if name.startswith(OPTION))
        if chosen not in self._made:
            good, bad = compilations.ends
            options = {name: (bad if f"{OPTION}{name}" in chosen else good)[name] for name in good}
            options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
            if options.get(_DATA) is not None:
                options[_DATA] = self.plan.calibration_data
            device = compilations.device if compilations.device in self.ctx.devices else self.plan.device
            try:
                made = self.plan.toolchain.compiler().run(  # type: ignore[attr-defined]
                    self.ctx, self.ctx.bring_here(compilations.source), device=device, **options
                )
            except ConfigError:
                raise
            except HubError as error:
                raise RefusedError(f"it cannot be compiled: {error}") from error
            if not isinstance(made, CompiledModel):
                raise RefusedError("its compilation made no model")
            self._made[chosen] = self.ctx.bring_here(made.path)
        return self._made[chosen]
