"""What a board's lines mean."""

from embedl_hub.core.device import Device
from embedl_hub.health import HealthLimits
from embedl_hub.health._checks import Facts, judge, read_facts

WELL = "epoch=1000\nwritable=yes\nfree_kib=2000000\ntemperature=41000\ntemperature=47500\ncooling=0 Processor\n"
LIMITS = HealthLimits()


def verdicts(facts: Facts) -> dict[str, tuple[str, str]]:
    return {check.name: (check.outcome, check.message) for check in judge(Device("pi"), facts, LIMITS)}


def test_a_board_that_is_well() -> None:
    """Its hottest sensor counts; a fan or a cooling step of nought slows nothing down."""
    facts = read_facts(WELL, here_s=1001.5)
    assert facts == Facts("", 2_048_000_000, -1.5, (), 47.5, ())
    assert {verdict for verdict, _ in verdicts(facts).values()} == {"ok"}


def test_every_line_may_be_missing_or_odd() -> None:
    """A small board leaves things open; only a folder that is not said to be writable is a failure."""
    facts = read_facts("epoch=\nfree_kib=-\ntemperature=-273000\ntemperature=x\ncooling=\nvc_throttled=?\n", here_s=0)
    assert facts == Facts("it did not say why", None, None, (), None, ())
    assert [name for name, (verdict, _) in verdicts(facts).items() if verdict != "ok"] == ["disk"]


def test_what_is_warned_of() -> None:
    """A clock that is off and a processor that is slowed: the board stays in."""
    text = "cooling=3 cpufreq-cpu0\nvc_throttled=0x50005\n" + WELL
    found = verdicts(read_facts(text, here_s=5000))
    assert found["clock"] == ("warning", "its clock is 4000 s behind this machine's.")
    assert found["heat"][0] == "warning"
    assert "cpufreq-cpu0 at step 3, too little voltage, throttling" in found["heat"][1]
    # The high bits tell of the past.
    assert verdicts(read_facts("vc_throttled=0x50000\n" + WELL, here_s=1000))["heat"][0] == "ok"


def test_what_takes_a_board_out() -> None:
    """Heat at rest, processes left behind, no space."""
    found = verdicts(read_facts("temperature=98000\nprocess=12 python3\n" + WELL, here_s=1000))
    assert found["heat"] == ("failed", "98 °C at rest, 95 °C are allowed.")
    assert found["leftovers"] == ("failed", "processes of earlier runs are still there: 12 python3.")
    assert verdicts(read_facts("writable=yes\nfree_kib=1000\n", here_s=0))["disk"][0] == "failed"
