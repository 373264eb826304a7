"""``sustain`` and ``energy`` as a user calls them: a load here, then a meter's record of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import answer, hub
from support.models import residual_net, save


@pytest.mark.slow
def test_a_load_and_a_meters_record_of_it(tmp_path: Path) -> None:
    """The table of a load, its JSON, and the energy by a meter as a run of its own that the load is tagged with."""
    model, home = save(residual_net(), tmp_path / "net.onnx"), tmp_path / "home"
    where = {"EMBEDL_HUB_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    facts = answer("sustain", model, "--here", "--seconds", "2", "--idle-seconds", "2", **where)
    assert facts["metrics"]["steady_latency"] > 0
    assert facts["energy_problem"] or facts["metrics"]["mean_power"] > 0
    assert facts["stopped"] == "after 2 s, as asked"
    meter = tmp_path / "meter.csv"
    rows = [f"{number / 20},{9 if 3 <= number / 20 <= 5 else 4}" for number in range(160)]
    meter.write_text("\n".join(["time,power", *rows]))
    done = hub("energy", facts["run"], "--meter", meter, **where)
    assert done.returncode == 0, done.stderr
    assert "found by the step of the power from rest to load" in done.stdout
    found = answer("energy", facts["run"], "--meter", meter, "--clock-offset", "3", **where)
    assert abs(found["metrics"]["idle_power"] - 4) < 0.5
    assert found["metrics"]["energy"] > 0
    assert answer("run", "show", facts["run"], **where)["tags"]["energy_run"] == found["run"]
    wrong = hub("energy", found["run"], "--meter", meter, **where)
    assert "kept no journal; give a run of: embedl-hub sustain" in wrong.stderr
    none = hub("sustain", "--collect", found["run"], **where)
    assert "put nothing under load" in none.stderr
    backwards = tmp_path / "backwards.csv"
    backwards.write_text(meter.read_text().replace(",9", ",-1").replace(",4", ",-9"))
    turned = hub("energy", facts["run"], "--meter", backwards, "--clock-offset", "3", **where)
    assert "W under load, which nothing draws" in turned.stderr
    elsewhere = hub("energy", facts["run"], "--meter", meter, "--clock-offset", "1e9", **where)
    assert "gives no energy of an inference" in elsewhere.stderr
    zone = hub("energy", facts["run"], "--meter", meter, "--time-zone", "Mars/Olympus", **where)
    assert "'Mars/Olympus' is no time zone" in zone.stderr
    for wrong in (turned, elsewhere, zone):
        assert wrong.returncode == 1
    assert answer("run", "show", facts["run"], **where)["tags"]["energy_run"] == found["run"]
    late = hub("sustain", model, "--here", "--seconds", "1", "--idle-seconds", "0", "--rate", "1000000", **where)
    assert "inferences came too late for the rate" in late.stdout
