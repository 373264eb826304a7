"""``embedl-hub energy``: the energy of an inference by an external meter's record of a sustained run."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import NUMBER, TEXT, both, fields, maybe
from embedl_hub.cli._output import PATH, emit, home_option, json_option, number, open_store, table
from embedl_hub.cli._steps import STEP, open_context, step_facts
from embedl_hub.core.component import RunType
from embedl_hub.errors import ConfigError


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--meter", type=PATH, required=True, help="The meter's CSV file.")
@click.option("--clock-offset", type=float, metavar="SECONDS",
              help="How far the meter's clock is ahead of the device's, or, where its times begin at 0, when the load "
              "began; found by the step from rest to load if not given.")  # fmt: skip
@click.option(
    "--voltage",
    type=click.FloatRange(min=0, min_open=True),
    help="What a file with current alone was measured at, in V.",
)
@click.option("--time-zone", help="Of dates that name none, such as Europe/Stockholm; UTC if not given.")
@home_option
@json_option(both(STEP, fields({"clock_offset_s": NUMBER, "energy_problem": maybe(TEXT)})))
def command(
    run_id: str, meter: Path, clock_offset: float | None, voltage: float | None, time_zone: str | None,
    home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Lay a meter's record beside a sustained RUN: idle power, power under load, energy of an inference.

    The answer is a run of its own; the sustained run gets the tag energy_run.
    """
    from embedl_hub.core.profile import metered, read_journal, read_meter  # noqa: PLC0415 - few commands need it

    record = read_meter(meter, voltage=voltage, time_zone=time_zone)
    with open_store(home) as store:
        found = store.run(run_id)
    with open_context(home, found.project, here=True) as hub:
        if "journal" not in found.artifacts:
            raise ConfigError(f"Run {found.id} kept no journal; give a run of: embedl-hub sustain.")
        try:
            recording = read_journal(found.artifacts["journal"].local())
        except ValueError as error:
            raise ConfigError(f"The journal of run {found.id} cannot be used: {error}.") from error
        result = metered(recording, record, clock_offset)
        energy = result.energy
        if "problem" in energy:
            raise ConfigError(
                f"The meter's record gives no energy of an inference: {energy['problem']}. Its clock is taken as "
                f"{result.offset_s:.2f} s ahead, {result.offset_words}; --clock-offset SECONDS says another."
            )
        if (energy.get("mean_w") or 0.0) <= 0:
            raise ConfigError(
                f"The meter's record has {energy.get('mean_w')} W under load, which nothing draws; are its leads or "
                "its sign turned round?"
            )
        with hub.client.start_run(RunType.CUSTOM, "energy by meter", device=found.device) as run:
            hub.client.log_artifact(meter, name="meter")
            if "input" in found.artifacts:
                hub.client.log_artifact(found.artifacts["input"], name="input", ctx=hub)
            run.log_batch({
                "of_run": found.id, "clock_offset_s": result.offset_s, "clock_offset": result.offset_words,
                "meter": energy["method"], "idle": energy.get("idle"), "energy_problem": energy.get("problem"),
            })  # fmt: skip
            ends = energy.get("energy") or {}
            values = {
                "energy": ends.get("value"), "energy_low": ends.get("low"), "energy_high": ends.get("high"),
                "mean_power": energy.get("mean_w"), "idle_power": energy.get("idle_w"),
            }  # fmt: skip
            for name, value in values.items():
                if value is not None:
                    run.log_metric(name, value)
        assert hub.client.store is not None  # noqa: S101 - the command line always tracks
        hub.client.store.label(found.id, "energy_run", run.id)
        kept = hub.client.store.run(run.id)
    if as_json:
        emit({**step_facts(kept), "clock_offset_s": result.offset_s, "energy_problem": energy.get("problem")})
        return
    units = {"energy": "mJ", "mean_power": "W", "idle_power": "W"}
    rows = [(name, number(values[name], unit)) for name, unit in units.items() if values[name] is not None]
    if ends.get("low") is not None:
        rows[0] = ("energy", f"{rows[0][1]} ({number(ends['low'])} to {number(ends['high'])})")
    click.echo(f"{kept.id}, of run {found.id}")
    table(None, [*rows, ("clock offset", f"{result.offset_s:.2f} s, {result.offset_words}")])
