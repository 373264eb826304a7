"""What a version of a runtime does with each operator, as learned from it: rules over facts, with an example each.

Tables that ship lie in ``tables/``, one file per runtime and version; another is given by its path.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from embedl_deploy.dialect._facts import NodeFacts
from embedl_deploy.errors import DialectError, quoted_list
from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json

FORMAT = 1
FLOAT = "float"
ANY = "*"
"""Instead of an operator: a rule that holds for all of them."""

_NEIGHBORS = frozenset({"after", "after that", "before", "before that"})
_OPSET = re.compile(r"opset (\d+) or newer")
# Values that alone say too little in a sentence.
_VALUES = {
    "input": "the graph's input", "output": "the graph's output", "output and read": "the graph's output, and read",
    "more": "several",
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A fact that a node must have, or must not."""

    fact: str
    value: str
    holds_when: bool = True

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Tell whether a node meets it."""
        return (facts.get(self.fact, "-") == self.value) == self.holds_when

    def __str__(self) -> str:
        fact = self.fact.replace(", ", "'s ")
        if self.opset is not None:
            return f"opset {self.opset} or newer" if self.is_yes else f"opset older than {self.opset}"
        if self.value == "-":
            is_thing = self.fact in _NEIGHBORS or "moved" in self.fact
            absent, present = ("nothing", "something") if is_thing else ("no", "some")
            return f"{absent if self.holds_when else present} {fact}"
        return f"{fact} is {'' if self.holds_when else 'not '}{_VALUES.get(self.value, self.value)}"

    @property
    def is_yes(self) -> bool:
        """Whether a node must be so, of a fact that is so or not."""
        return (self.value == "yes") is self.holds_when

    @property
    def opset(self) -> int | None:
        """The opset that it is about; None for another fact."""
        found = _OPSET.fullmatch(self.fact)
        return None if found is None else int(found[1])


def words(conditions: Sequence[Condition]) -> str:
    """Return conditions in a sentence, each once; of bounds of one kind the closest."""
    bounds: dict[bool, list[int]] = {True: [], False: []}
    for each in conditions:
        if each.opset is not None:
            bounds[each.is_yes].append(each.opset)
    closest = {(True, max(bounds[True], default=0)), (False, min(bounds[False], default=0))}
    said = [each for each in conditions if each.opset is None or (each.is_yes, each.opset) in closest]
    return " and ".join(dict.fromkeys(map(str, said))) or "always"


@dataclass(frozen=True)
class Rule:
    """What becomes of an operator under some conditions."""

    operator: str
    conditions: tuple[Condition, ...]
    outcome: str  # ``integer KERNEL``, ``float``, ``taken`` by the kernel before it, ``refused`` or ``crashed``
    example: str  # the smallest graph that showed it, as `embedl_deploy.rules.Case` reads it
    graphs: int  # how many showed it

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Tell whether a node is one that it speaks of."""
        return all(condition.holds(facts) for condition in self.conditions)

    def __str__(self) -> str:
        operator = "every operator" if self.operator == ANY else self.operator
        return f"{operator}: {self.outcome} ({words(self.conditions)})"


@dataclass(frozen=True)
class RuleTable:
    """What one version of a runtime does, operator by operator."""

    runtime: str
    version: str
    processor: str  # where it was learned
    newest_opset: int  # the newest version of the standard operators that it reads
    rules: tuple[Rule, ...]
    graphs: int  # how many were run
    fused: Mapping[str, tuple[str, ...]]  # operators whose plain graph runs in integers, by the activations' type

    @cached_property
    def _by_operator(self) -> dict[str, list[Rule]]:
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            found.setdefault(rule.operator, []).append(rule)
        return found

    @cached_property
    def refusals(self) -> tuple[Rule, ...]:
        """The rules that tell which graphs it does not load, whatever else is in them."""
        return tuple(self._by_operator.get(ANY, ()))

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it speaks of."""
        return tuple(name for name in self._by_operator if name != ANY)

    def rule_for(self, facts: Mapping[str, str]) -> Rule | None:
        """Return the rule that speaks of a node; None for an operator that was not learned."""
        return next((rule for rule in self._by_operator.get(facts["operator"], ()) if rule.holds(facts)), None)

    def placement(self, nodes: Sequence[NodeFacts]) -> dict[str, str]:
        """Return where every node of a model runs, by its name; an operator that was not learned runs in float."""
        placed: dict[str, str] = {}
        for node in nodes:
            rule = self.rule_for(node.known(placed))
            placed[node.name] = FLOAT if rule is None else rule.outcome
        return placed

    def refused(self, nodes: Sequence[NodeFacts]) -> list[tuple[NodeFacts, Rule]]:
        """Return the nodes for which it does not load a model, each with the rule."""
        found = []
        for node in nodes:
            rule = next((rule for rule in self.refusals if rule.holds(node.facts)), None)
            if rule is not None and rule.outcome != FLOAT:
                found.append((node, rule))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        facts = sorted({condition.fact for rule in self.rules for condition in rule.conditions})
        values = sorted({condition.value for rule in self.rules for condition in rule.conditions})
        fact_at = {name: place for place, name in enumerate(facts)}
        value_at = {name: place for place, name in enumerate(values)}
        rows = [
            [rule.operator, rule.outcome, rule.example, rule.graphs,
             [[fact_at[each.fact], value_at[each.value], int(each.holds_when)] for each in rule.conditions]]
            for rule in self.rules
        ]  # fmt: skip
        return {
            "format": FORMAT, "runtime": self.runtime, "version": self.version, "processor": self.processor,
            "newest_opset": self.newest_opset, "graphs": self.graphs,
            "fused": {kind: list(names) for kind, names in self.fused.items()},
            "facts": facts, "values": values, "rules": rows,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Any) -> "RuleTable":
        """Read what `to_dict` wrote.

        Raises:
            DialectError: It is no table, or of another format.
        """
        try:
            if data["format"] != FORMAT:
                raise DialectError(
                    f"The rule table has format {data['format']}; this version reads {FORMAT}. Learn it again."
                )
            facts, values = data["facts"], data["values"]
            rules = tuple(
                Rule(
                    str(operator),
                    tuple(Condition(facts[fact], values[value], bool(holds)) for fact, value, holds in conditions),
                    str(outcome), str(example), int(graphs),
                )
                for operator, outcome, example, graphs, conditions in data["rules"]
            )  # fmt: skip
            return cls(
                str(data["runtime"]), str(data["version"]), str(data["processor"]), int(data["newest_opset"]), rules,
                int(data["graphs"]), {str(kind): tuple(map(str, names)) for kind, names in data["fused"].items()},
            )  # fmt: skip
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as exc:
            raise DialectError(f"This is no rule table ({type(exc).__name__}: {exc}). Learn it again.") from exc

    def save(self, path: Path) -> None:
        """Write it as JSON, one rule a line."""
        data = self.to_dict()
        rows = data.pop("rules")
        head = json.dumps(data, ensure_ascii=False, separators=(",", ":"))[:-1]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        path.write_text(f'{head},"rules":[\n{lines}\n]}}\n', encoding="utf-8")


def read_table(path: Path) -> RuleTable:
    """Read a table of your own.

    Raises:
        DialectError: The file is no table.
    """
    try:
        if path.stat().st_size > MOST_DOCUMENT_BYTES:
            raise DialectError(f"{path} is larger than any rule table.")
        return RuleTable.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, UnreadableError) as exc:
        raise DialectError(f"The rule table {path} cannot be read: {exc}.") from exc


@cache
def shipped_tables() -> tuple[tuple[str, str], ...]:
    """Return runtime and version of the tables that ship, the oldest of each runtime first."""
    folder = resources.files(__package__).joinpath("tables")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = [tuple(name.removesuffix(".json").split("-", 1)) for name in names if name.endswith(".json")]
    return tuple(
        sorted(((runtime, version) for runtime, version in found), key=lambda each: (each[0], number(each[1])))
    )


def number(version: str) -> tuple[int, ...]:
    """Return a version as numbers, to compare it."""
    parts = []
    for part in version.split("."):
        digits = "".join(letter for letter in part if letter.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def get_table(runtime: str, version: str) -> RuleTable:
    """Return the table of a runtime's version: of itself, else the newest one before it.

    A version that is named in part, ``1.28``, is any of those that begin so.

    Raises:
        DialectError: There is no table of the runtime, or the version is older than all of them.
    """
    known = [each for name, each in shipped_tables() if name == runtime]
    if not known:
        runtimes = quoted_list(sorted({name for name, _ in shipped_tables()}))
        raise DialectError(f"There is no rule table of {runtime!r}; known are {runtimes}. embedl-deploy dialect learn "
                           "makes one.")  # fmt: skip
    wanted = number(version)
    if not wanted:
        raise DialectError(f"{version!r} is no version; known of {runtime} are {quoted_list(known)}.")
    fits = [each for each in known if number(each)[: len(wanted)] <= wanted]
    if not fits:
        raise DialectError(f"{runtime} {version} is older than all rule tables; known are {quoted_list(known)}.")
    return _load(runtime, fits[-1])


@cache
def _load(runtime: str, version: str) -> RuleTable:
    text = resources.files(__package__).joinpath("tables", f"{runtime}-{version}.json").read_text(encoding="utf-8")
    return RuleTable.from_dict(json.loads(text))


def known_versions(runtime: str) -> Sequence[str]:
    """Return the versions of a runtime that have a table, the oldest first."""
    return [version for name, version in shipped_tables() if name == runtime]
