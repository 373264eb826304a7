"""Devices by what they are: ``arch=aarch64, accelerator=gpu, memory>=4GB``. Every clause must hold.

    name=pi-*                a name, with * for any letters
    type=my_board            the provider type
    arch=aarch64             arm64 and amd64 mean aarch64 and x86_64
    os=ubuntu, cpu=a76       a part of the text, in any case
    accelerator=gpu          a kind (see accelerators.KINDS), none, or a part of an accelerator's name
    memory>=4GB, cores>4     a size with its unit; a number
    versions.python>=3.11    as many parts as are given: 3.11 is 3.11.4 too

What is not known of a device is never met: neither ``arch=aarch64`` nor ``arch!=aarch64``.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embedl_hub import accelerators
from embedl_hub.core.device._device import DeviceSpec
from embedl_hub.errors import ConfigError, UnknownDeviceError, quoted_list

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
SIGNS = tuple(_COMPARE)
_EQUAL = ("=", "!=")
UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}
# Kernel and GPU keep a part of the memory a board is sold with, so that a board of 4 GB reports 3.9; and GB is
# often said for GiB. No two sizes on sale are as close as this.
_SAME_SIZE = 1 / 8
_CLAUSE = re.compile(
    r"""\s* (?P<name>[A-Za-z_][\w.-]*) \s* (?P<sign>[<>!=]+) \s*
        (?P<value> '[^']*' | "[^"]*" | [^,'"]*? ) \s* (?:,|$)""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True)
class _Facts:
    """What a clause looks at."""

    name: str
    type: str
    spec: DeviceSpec


@dataclass(frozen=True)
class _Attribute:
    """One thing that can be asked of a device."""

    signs: tuple[str, ...]  # what it can be compared by
    read: Callable[[str], Any]  # return the wanted value of a clause, or raise
    found: Callable[[_Facts], Any]  # return what a device has; None when that is not known
    # Compare found with wanted: 0 when they are the same, below or above 0 else; None when they cannot be.
    order: Callable[[Any, Any], int | None]
    show: Callable[[Any], str] = str  # a found value for people


def _sign_of(difference: float) -> int:
    return (difference > 0) - (difference < 0)


def _contains(found: str, wanted: str) -> int:
    return 0 if wanted in found.lower() else 1


def _pattern(found: str, wanted: str) -> int:
    # Only the star means something: a name may hold brackets and question marks.
    pattern = re.sub(r"[?\[]", lambda letter: f"[{letter[0]}]", wanted)
    return 0 if fnmatch.fnmatchcase(found, pattern) else 1


def _read_arch(wanted: str) -> str:
    return _ARCHITECTURES.get(wanted.lower(), wanted.lower())


def _read_size(wanted: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", wanted)
    if parts is None:
        raise ConfigError(f"memory is a number with a unit, as 4GB, not {wanted!r}.")
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if parts[2].lower() not in units:
        raise ConfigError(f"memory is {wanted!r}; its unit must be one of {quoted_list(UNITS)}, as in 4GB.")
    return float(parts[1]) * units[parts[2].lower()]


def _order_sizes(found: float, wanted: float) -> int:
    difference = found - wanted
    return 0 if abs(difference) <= wanted * _SAME_SIZE else _sign_of(difference)


def same_size(one_bytes: float, other_bytes: float) -> bool:
    """Tell whether two memories are of one size, as far as what the kernel keeps for itself lets one say."""
    return _order_sizes(min(one_bytes, other_bytes), max(one_bytes, other_bytes)) == 0


def _read_count(wanted: str) -> int:
    if not wanted.isdecimal() or not wanted.isascii():
        raise ConfigError(f"cores is a whole number, not {wanted!r}.")
    return int(wanted)


def _accelerators(facts: _Facts) -> tuple[str, ...] | None:
    # A board that was asked says what it is; one without any accelerator says nothing of those.
    asked = facts.spec.accelerators or facts.spec.architecture is not None
    return facts.spec.accelerators if asked else None


def _order_accelerators(found: tuple[str, ...], wanted: str) -> int:
    if wanted == "none":
        return 0 if not found else 1
    words = accelerators.KINDS.get(wanted, (wanted,))
    return 0 if any(word in name.lower() for name in found for word in words) else 1


def _order_versions(found: str, wanted: str) -> int | None:
    number = _NUMBER.search(found)
    if number is None or not _NUMBER.fullmatch(wanted):
        return 0 if wanted in found.lower() else None
    wants = [int(part) for part in wanted.split(".")]
    has = [int(part) for part in number[0].split(".")]
    has = (has + [0] * len(wants))[: len(wants)]
    return (has > wants) - (has < wants)


_ATTRIBUTES = {
    "name": _Attribute(_EQUAL, str, lambda facts: facts.name, _pattern),
    "type": _Attribute(
        _EQUAL, lambda wanted: wanted.replace("-", "_"), lambda facts: facts.type, lambda *pair: pair[0] != pair[1]
    ),
    "arch": _Attribute(
        _EQUAL, _read_arch, lambda facts: facts.spec.architecture, lambda found, wanted: _read_arch(found) != wanted
    ),
    "os": _Attribute(_EQUAL, str.lower, lambda facts: facts.spec.os, _contains),
    "cpu": _Attribute(_EQUAL, str.lower, lambda facts: facts.spec.cpu, _contains),
    "accelerator": _Attribute(
        _EQUAL, str.lower, _accelerators, _order_accelerators, lambda found: " and ".join(found) or "none"
    ),
    "memory": _Attribute(
        SIGNS, _read_size, lambda facts: facts.spec.memory_bytes, _order_sizes, lambda found: f"{found / 1e9:.3g} GB"
    ),
    "cores": _Attribute(
        SIGNS, _read_count, lambda facts: facts.spec.cores, lambda found, wanted: _sign_of(found - wanted)
    ),
}
_NOTHING = DeviceSpec()
_OF_ITSELF = ("name", "type")
"""What is known of a device without asking it."""


@dataclass(frozen=True)
class Clause:
    """One condition: ``memory>=4GB``."""

    name: str
    sign: str
    value: str

    def __post_init__(self) -> None:
        attribute = self._attribute()
        if self.sign not in attribute.signs:
            raise ConfigError(
                f"{self.name!r} cannot be compared by {self.sign!r}; it can by: {' '.join(attribute.signs)}."
            )
        if not self.value:
            raise ConfigError(f"{self.name}{self.sign} lacks its value.")
        if "'" in self.value and '"' in self.value:
            raise ConfigError(f"{self.value!r} holds both kinds of quotation marks; a part of it without is enough.")
        attribute.read(self.value)

    def __str__(self) -> str:
        mark = '"' if "'" in self.value else "'"
        plain = not re.search(r"""[,'"<>=!]|^\s|\s$""", self.value)
        return f"{self.name}{self.sign}{self.value if plain else f'{mark}{self.value}{mark}'}"

    def why_not(self, facts: _Facts) -> str:
        """Return why a device does not meet this; nothing when it does."""
        attribute = self._attribute()
        found = attribute.found(facts)
        if found is None:
            return f"its {self.name} is not known (ask it: embedl-hub device health {facts.name})"
        order = attribute.order(found, attribute.read(self.value))
        # Text that has no order is at least not the wanted one.
        if self.sign == "!=" if order is None else _COMPARE[self.sign](order, 0):
            return ""
        return f"its {self.name} is {attribute.show(found)}, wanted is {self}"

    def _attribute(self) -> _Attribute:
        group, dot, version = self.name.partition(".")
        if group == "versions" and dot and version:
            return _Attribute(SIGNS, str.lower, lambda facts: facts.spec.versions.get(version), _order_versions)
        if self.name not in _ATTRIBUTES:
            names = quoted_list((*_ATTRIBUTES, "versions.NAME"))
            raise ConfigError(f"Devices cannot be asked for {self.name!r}; known: {names}.")
        return _ATTRIBUTES[self.name]


@dataclass(frozen=True)
class DeviceQuery:
    """Which devices are wanted: those that meet every clause; without clauses, all."""

    clauses: tuple[Clause, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DeviceQuery:
        """Return what a query says, or an error with what it could say."""
        clauses, place = [], 0
        while place < len(text):
            found = _CLAUSE.match(text, place)
            if found is None:
                raise ConfigError(
                    f"The query {text!r} cannot be read at {text[place:].strip()[:40]!r}. It is a list of conditions "
                    "such as: arch=aarch64, accelerator=gpu, memory>=4GB"
                )
            name, sign, value = found.group("name", "sign", "value")
            if sign not in SIGNS:
                raise ConfigError(f"{sign!r} after {name!r} is no comparison; known: {' '.join(SIGNS)}.")
            clauses.append(Clause(name, sign, value[1:-1] if value[:1] in ("'", '"') else value))
            place = found.end()
        if not clauses:
            raise ConfigError("The query is empty; name=* takes every device.")
        return cls(tuple(clauses))

    def __str__(self) -> str:
        return ", ".join(map(str, self.clauses))

    @property
    def without_spec(self) -> DeviceQuery:
        """What of it can be told of a device that nobody asked what it is."""
        return DeviceQuery(tuple(clause for clause in self.clauses if clause.name in _OF_ITSELF))

    def matches(self, device_name: str, provider_type: str, spec: DeviceSpec = _NOTHING) -> bool:
        """Tell whether a device meets every clause."""
        return not self.why_not(device_name, provider_type, spec)

    def why_not(self, device_name: str, provider_type: str, spec: DeviceSpec = _NOTHING) -> str:
        """Return the first reason why a device is not meant; nothing when it is."""
        facts = _Facts(device_name, provider_type, spec)
        return next((reason for clause in self.clauses if (reason := clause.why_not(facts))), "")

    def select(self, devices: Mapping[str, tuple[str, DeviceSpec]]) -> list[str]:
        """Return the names of the devices that match; an ``UnknownDeviceError`` says of each why not if none does."""
        reasons = {name: self.why_not(name, *facts) for name, facts in devices.items()}
        if found := [name for name, reason in reasons.items() if not reason]:
            return found
        lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
        raise UnknownDeviceError(
            f"No device is {str(self)!r}{':' if lines else '; there are no devices. Add one: embedl-hub device add'}"
            f"{lines}"
        )
