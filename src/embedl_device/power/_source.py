"""What a source of energy or power is, and which of several are added up."""

from __future__ import annotations

import re
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.errors import BoardError

# What a source covers. BOARD is everything, so that the others are parts of it; a RAIL is a supply of which only the
# name is known.
BOARD, CPU, GPU, MEMORY, RAIL = "board", "cpu", "gpu", "memory", "rail"
_PARTS = (CPU, GPU, MEMORY)

# Names of supplies on boards; the first that fits decides.
_DOMAINS = (
    (BOARD, re.compile(r"^(VDD_IN|POM_5V_IN|VIN|5V_IN|VBUS_IN|VBAT|PSYS|TOTAL.*|BOARD.*|INPUT.*)$")),
    (CPU, re.compile(r"^(VDD_(SYS_)?CPU|POM_5V_CPU|CPU|ESOCKET[0-9]+|PACKAGE.*)$")),
    (GPU, re.compile(r"^(VDD_(SYS_)?GPU|POM_5V_GPU|GPU|PPT)$")),
    (MEMORY, re.compile(r"^(VDD_(SYS_)?DDR|VDDRQ|VDDQ.*|DDR|DRAM|MEM)$")),
)


class Source:
    """One sensor. A counter's `read` returns joules since any beginning, another's the watts of now.

    `read` may raise an OSError or a ValueError; that reading is then left out.
    """

    name: str  # what it is called, sensor and supply: ``RAPL package-0``
    domain: str  # what it covers
    family: str  # which kind of sensor; several of a kind may be added up, two kinds may count the same thing twice
    is_counter: bool  # joules, else watts

    def read(self) -> float:
        """Return joules, or watts."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of files and processes."""


class Found(NamedTuple):
    """Sources that can be read, and in words those that cannot."""

    sources: Sequence[Source] = ()
    problems: Sequence[str] = ()


def domain_of(label: str) -> str:
    """Return what a supply of this name covers."""
    return next((domain for domain, form in _DOMAINS if form.match(label.strip().upper())), RAIL)


def choose(names: Iterable[Tuple[str, str, str]], wanted: Sequence[str] = ()) -> Tuple[List[str], Optional[str]]:
    """Return which sources are added up to what is quoted, and why none is where that is so.

    What covers the board is taken before its parts; parts of one domain come from one kind of sensor.

    Args:
        names: Name, domain and family of each source, the most trusted kind first.
        wanted: Names that the user chose instead.
    """
    known = list(names)
    if wanted:
        unknown = sorted(set(wanted) - {name for name, _, _ in known})
        if unknown:
            raise BoardError(
                "There is no power source {}; this board has: {}.".format(
                    ", ".join(unknown), ", ".join(name for name, _, _ in known) or "none"
                )
            )
        return [name for name, _, _ in known if name in wanted], None
    whole = [name for name, domain, _ in known if domain == BOARD]
    if whole:
        return whole[:1], None
    parts: List[str] = []
    for part in _PARTS:
        of_part = [(name, family) for name, domain, family in known if domain == part]
        parts += [name for name, family in of_part if family == of_part[0][1]]
    if parts:
        return parts, None
    if len(known) == 1:
        return [known[0][0]], None
    if known:
        rails = ", ".join(name for name, _, _ in known)
        return [], "it is not known what the supplies {} feed; say which count with --power-source".format(rails)
    return [], "no sensor of energy or power was found"


def words_of(names: Sequence[str], domains: Sequence[str]) -> str:
    """Return what was added up, in words."""
    cover = "" if BOARD in domains else "; the rest of the board is not counted"
    return " + ".join(names) + cover
