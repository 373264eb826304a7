"""What changed between two versions of a runtime: the graphs on which they differ, as rules with the smallest graph.

It rests on what was observed, never on what rules predict: a graph that both versions ran, with another outcome.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from embedl_deploy._table import Printed, html_page, table
from embedl_deploy.dialect._facts import BEYOND, facts_of
from embedl_deploy.dialect._model import read, replace_all
from embedl_deploy.dialect._tables import Condition, RuleTable, get_table, known_versions, number, words
from embedl_deploy.errors import DialectError, quoted_list
from embedl_deploy.rules._cases import CENTER, Case, NoSuchGraphError, build
from embedl_deploy.rules._learn import Journal
from embedl_deploy.rules._tree import Sample, grow

MOST_NODES = 6
"""Where a change shows in larger graphs too is counted and not listed: nobody sees there what changed."""
_SAME = ""
_JOURNALS = "*.jsonl"


@dataclass(frozen=True)
class Observed:
    """What versions of a runtime made of the graphs on which they are not all of one mind, by case and version."""

    runtime: str
    versions: tuple[str, ...]  # the oldest first
    outcomes: Mapping[str, tuple[str, ...]]  # of each case, in the order of the versions; empty where it was not run

    def changed(self, old: str, new: str) -> Iterator[tuple[Case, str, str]]:
        """Yield the cases whose outcome two versions differ in."""
        first, second = self.versions.index(old), self.versions.index(new)
        for text, outcomes in self.outcomes.items():
            before, after = outcomes[first], outcomes[second]
            if before and after and before != after:
                yield Case.parse(text), before, after

    @property
    def operators(self) -> set[str]:
        """The operators of these cases."""
        return {Case.parse(text).operator for text in self.outcomes}

    def version(self, word: str) -> str:
        """Return the newest version that begins so.

        Raises:
            DialectError: None does.
        """
        wanted = number(word)
        found = [each for each in self.versions if wanted and number(each)[: len(wanted)] == wanted]
        if not found:
            raise DialectError(
                f"{self.runtime} {word} was not observed; known are {quoted_list(self.versions)}. "
                "embedl-deploy dialect learn observes another."
            )
        if len({number(each)[:2] for each in found}) > 1:
            raise DialectError(f"{self.runtime} {word} may be {quoted_list(found)}; name one of them.")
        return found[-1]

    def save(self, path: Path) -> None:
        """Write it as JSON, one case a line."""
        words = sorted({word for row in self.outcomes.values() for word in row})
        places = {word: place for place, word in enumerate(words)}
        lines = ",\n".join(
            f"{json.dumps(text)}:{json.dumps([places[word] for word in row], separators=(',', ':'))}"
            for text, row in sorted(self.outcomes.items())
        )
        head = json.dumps({"runtime": self.runtime, "versions": self.versions, "outcomes": words})[:-1]
        path.write_text(f'{head},"cases":{{\n{lines}\n}}}}\n', encoding="utf-8")


def read_journals(runtime: str, folder: Path) -> Observed:
    """Put the journals of a folder together, which `learn` wrote: ``RUNTIME-VERSION.jsonl``.

    Raises:
        DialectError: There are not two of them.
    """
    paths = {path.stem.removeprefix(f"{runtime}-"): path for path in folder.glob(f"{runtime}-{_JOURNALS}")}
    if len(paths) < 2:
        raise DialectError(
            f"{folder} holds {len(paths)} journals of {runtime}; two versions or more are compared. embedl-deploy "
            "dialect learn writes one for each."
        )
    return observed_in(runtime, {version: Journal.open(path) for version, path in paths.items()})


def observed_in(runtime: str, journals: Mapping[str, Journal]) -> Observed:
    """Return on which graphs the versions in journals differ."""
    versions = tuple(sorted(journals, key=number))
    cases = dict.fromkeys(case for version in versions for case in journals[version].answers)
    rows: dict[str, tuple[str, ...]] = {}
    for case in cases:
        row = tuple(str(journals[version].answers.get(case, {}).get(CENTER, "")) for version in versions)
        if len(set(row) - {""}) > 1:
            rows[str(case)] = row
    return Observed(runtime, versions, rows)


@cache
def shipped(runtime: str) -> Observed:
    """Return what was observed of a runtime and ships.

    Raises:
        DialectError: Nothing was.
    """
    folder = resources.files(__package__).joinpath("observed")
    entries = folder.iterdir() if folder.is_dir() else ()
    names = [entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")]
    if runtime not in names:
        raise DialectError(f"No two versions of {runtime!r} were observed; known are {quoted_list(sorted(names))}.")
    data = json.loads(folder.joinpath(f"{runtime}.json").read_text(encoding="utf-8"))
    words = data["outcomes"]
    rows = {text: tuple(words[place] for place in row) for text, row in data["cases"].items()}
    return Observed(data["runtime"], tuple(data["versions"]), rows)


@dataclass(frozen=True)
class Change:
    """An operator that one version runs otherwise than another, and where."""

    operator: str
    before: str
    after: str
    conditions: tuple[Condition, ...]
    example: str  # the smallest graph that shows it, as `Case` reads it
    nodes: int  # so many nodes `example_graph` has
    graphs: int  # how many showed it

    @property
    def where(self) -> str:
        """The conditions in words."""
        return words(self.conditions)

    @property
    def is_loss(self) -> bool:
        """Whether what ran in integers does no more."""
        return _is_integer(self.before) and not _is_integer(self.after)

    @property
    def is_gain(self) -> bool:
        """Whether it runs in integers now, and did not."""
        return _is_integer(self.after) and not _is_integer(self.before)


@dataclass(frozen=True, repr=False)
class DialectDiff(Printed):
    """What changed between two versions of a runtime; prints as a table."""

    runtime: str
    old: str
    new: str
    changes: tuple[Change, ...]
    compared: int  # graphs that both versions ran with another outcome
    larger: int = 0  # further conditions of these changes, that only graphs of more than `MOST_NODES` nodes meet
    asked: tuple[str, ...] = ()  # operators of which graphs were asked

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return asdict(self)

    def of(self, operator: str) -> "DialectDiff":
        """Return the changes of one operator.

        Raises:
            DialectError: No graph of it was asked.
        """
        own = tuple(each for each in self.changes if each.operator == operator)
        if not own and operator not in self.asked:
            close = get_close_matches(operator, self.asked, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known are {quoted_list(self.asked)}."
            raise DialectError(f"{self.runtime} was asked about no graph of {operator!r}. {hint}")
        return replace(self, changes=own, compared=sum(each.graphs for each in own), larger=0)

    def _line(self) -> str:
        gained, lost = sum(each.is_gain for each in self.changes), sum(each.is_loss for each in self.changes)
        return (
            f"{self.runtime} {self.old} to {self.new}: {len(self.changes)} changes, seen on {self.compared} graphs; "
            f"{lost} from integers, {gained} to integers."
            + (f" {self.larger} more conditions of them need more than {MOST_NODES} nodes." if self.larger else "")
        )

    def _rows(self) -> list[list[str]]:
        return [[each.operator, each.before, each.after, each.example, each.where] for each in self.changes]

    def __str__(self) -> str:
        if not self.changes:
            return f"{self.runtime} {self.old} and {self.new} made the same of every graph that was asked."
        counts = Counter(each.operator for each in self.changes).most_common()
        by_operator = ", ".join(f"{operator} {count}" for operator, count in counts)
        return "\n".join([table(_HEAD, self._rows(), widest=110), "", f"By operator: {by_operator}.", self._line()])

    def to_html(self) -> str:
        """Return it as a page of its own, with the graph of each change."""
        title = f"{self.runtime} {self.old} to {self.new}"
        body = [f"<h1>{escape(self.runtime)} <b>{escape(self.old)}</b> → <b>{escape(self.new)}</b></h1>"]
        body.append(f"<p class='lead'>{escape(self._line())}</p>")
        counts = Counter(each.operator for each in self.changes)
        links = (f"<a href='#{escape(name)}'>{escape(name)}<i>{count}</i></a>" for name, count in counts.items())
        body.append(f"<nav>{''.join(links)}</nav>")
        for operator in counts:
            body.append(f"<h2 id='{escape(operator)}'>{escape(operator)}</h2>")
            body += [_card(each) for each in self.changes if each.operator == operator]
        return html_page(title, _STYLE, body)


_HEAD = ("operator", "before", "after", "smallest graph", "where")
_STYLE = """
:root { color-scheme: light dark; --line: #e4e4e4; --soft: #f6f6f6; --faint: #666; --lost: #b00020; --won: #0a6b2d; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3a3a; --soft: #242424; --faint: #aaa; --lost: #ff8a8a; --won: #7bd88f; }
  body { background: #181818; color: #e6e6e6; } a { color: #9ecbff; }
}
body { max-width: 900px; } h1 { font-weight: 400; font-size: 1.6rem; } h2 { margin: 2rem 0 .5rem; }
.lead { color: var(--faint); } nav { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1rem 0; }
nav a { border: 1px solid var(--line); border-radius: 1em; padding: .1rem .7rem; text-decoration: none; }
nav i { color: var(--faint); font-style: normal; margin-left: .4em; }
article { border: 1px solid var(--line); border-radius: 8px; padding: .7rem 1rem; margin: .6rem 0; }
article p { margin: .2rem 0; overflow-wrap: anywhere; } .where, .seen { color: var(--faint); }
.lost { color: var(--lost); font-weight: 600; } .gained { color: var(--won); font-weight: 600; }
pre { background: var(--soft); border-radius: 6px; padding: .6rem; overflow: auto; font-size: 12.5px; }
"""


def _card(change: Change) -> str:
    graph = escape(_drawn(example_graph(Case.parse(change.example))))
    seen = f"{change.nodes} {'node' if change.nodes == 1 else 'nodes'} show it"
    graphs = "graph" if change.graphs == 1 else "graphs"
    return (
        f"<article><p>{escape(change.before)} → <span class='{_mark(change)}'>{escape(change.after)}</span></p>"
        f"<p class='where'>where {escape(change.where)}</p><pre>{graph}</pre>"
        f"<p class='seen'>{seen}; seen on {change.graphs} {graphs}. {escape(change.example)}</p></article>"
    )


def _mark(change: Change) -> str:
    return "lost" if change.is_loss else "gained" if change.is_gain else ""


def _is_integer(outcome: str) -> bool:
    return outcome.startswith("integer")


def diff(runtime: str, old: str, new: str, *, folder: Path | None = None) -> DialectDiff:
    """Tell what two versions of a runtime make of the same graphs that is not the same.

    Args:
        runtime: Its name, such as ``onnxruntime``.
        old: A version, in whole or its beginning: ``1.28``.
        new: The other one.
        folder: Where `learn` wrote journals; what ships when not given.

    Raises:
        DialectError: A version was not observed.
    """
    observed = shipped(runtime) if folder is None else read_journals(runtime, folder)
    old, new = observed.version(old), observed.version(new)
    if old == new:
        raise DialectError(f"Both are {runtime} {old}; known are {quoted_list(observed.versions)}.")
    every = changes_in(observed, old, new, _unchanged(runtime, old, new) if folder is None else ())
    small = {_outcomes(each) for each in every if each.nodes <= MOST_NODES}
    # One that no small graph shows is listed with its large one.
    shown = sorted((each for each in every if each.nodes <= MOST_NODES or _outcomes(each) not in small), key=_rank)
    compared = sum(1 for _ in observed.changed(old, new))
    asked = observed.operators | {each.operator for each in _unchanged(runtime, old, new)}
    return DialectDiff(runtime, old, new, tuple(shown), compared, len(every) - len(shown), tuple(sorted(asked)))


def _rank(change: Change) -> tuple[int, str, str, str, int]:
    """What was lost is why one asks; of an operator's changes the one with the smallest graph says most."""
    return 0 if change.is_loss else 1 if change.is_gain else 2, *_outcomes(change), change.nodes


def _outcomes(change: Change) -> tuple[str, str, str]:
    return change.operator, change.before, change.after


def changes_in(observed: Observed, old: str, new: str, unchanged: Sequence[Case] = ()) -> list[Change]:
    """Return what changed between two versions, by operator; graphs that both made the same of narrow it down."""
    changed = list(observed.changed(old, new))
    known = {case for case, _, _ in changed}
    found: list[Change] = []
    for operator in sorted({case.operator for case, _, _ in changed}):
        own = [(case, f"{before} → {after}") for case, before, after in changed if case.operator == operator]
        own += [(case, _SAME) for case in unchanged if case.operator == operator and case not in known]
        found += _changes(operator, own)
    return found


def _unchanged(runtime: str, old: str, new: str) -> list[Case]:
    return examples_of(get_table(runtime, each) for each in (old, new) if each in known_versions(runtime))


def examples_of(tables: Iterable[RuleTable]) -> list[Case]:
    """Return the examples of rules: graphs that every version was asked about, most of them with one outcome."""
    return [Case.parse(text) for text in sorted({rule.example for each in tables for rule in each.rules})]


def _changes(operator: str, cases: Sequence[tuple[Case, str]]) -> Iterator[Change]:
    samples = []
    for case, outcome in cases:
        try:
            model = build(case)
        except NoSuchGraphError:
            continue
        known = next(node.known({}) for node in facts_of(read(model)) if node.name == CENTER)
        facts = {name: value for name, value in known.items() if name not in BEYOND}
        samples.append(Sample(facts, outcome, str(case), len(stripped(model).graph.node)))
    for leaf in grow(samples):
        shown = [each for each in leaf.samples if each.outcome == leaf.outcome]
        if leaf.outcome != _SAME:
            smallest = min(shown, key=lambda each: (each.size, each.example))
            before, _, after = leaf.outcome.partition(" → ")
            yield Change(operator, before, after, leaf.conditions, smallest.example, smallest.size, len(shown))


def example_graph(case: Case) -> onnx.ModelProto:
    """Return the graph of a case in its smallest form: it takes and gives integers where the case has Q and DQ."""
    return stripped(build(case))


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the Q on its inputs and the DQ on its outputs: those tensors are integers instead."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    kinds = {value.name: value.data_type for value in graph.initializer}
    readers: dict[str, int] = {}
    for name in (name for node in graph.node for name in node.input):
        readers[name] = readers.get(name, 0) + 1
    gone: set[str] = set()
    for value in graph.input:
        first = [node for node in graph.node if value.name in node.input]
        if len(first) == 1 and first[0].op_type == "QuantizeLinear" and readers[value.name] == 1:
            gone.add(first[0].name)
            shape = value.type.tensor_type.shape
            value.CopyFrom(helper.make_tensor_value_info(first[0].output[0], kinds[first[0].input[2]], None))
            value.type.tensor_type.shape.CopyFrom(shape)
    makers = {name: node for node in graph.node for name in node.output}
    for value in graph.output:
        last = makers.get(value.name)
        if last is not None and last.op_type == "DequantizeLinear" and last.input[0] in makers:
            if readers.get(value.name, 0) or readers[last.input[0]] > 1:
                continue
            gone.add(last.name)
            shape = value.type.tensor_type.shape
            value.CopyFrom(helper.make_tensor_value_info(last.input[0], kinds[last.input[2]], None))
            value.type.tensor_type.shape.CopyFrom(shape)
    replace_all(graph.node, [node for node in graph.node if node.name not in gone])
    used = {name for node in graph.node for name in node.input}
    replace_all(graph.initializer, [value for value in graph.initializer if value.name in used])
    return copy


def _drawn(model: onnx.ModelProto) -> str:
    """Return a graph in lines, as a reader of ONNX would write it."""
    kinds = onnx.TensorProto.DataType.Name
    lines = []
    for value in model.graph.input:
        tensor = value.type.tensor_type
        sizes = [each.dim_param or str(each.dim_value) for each in tensor.shape.dim]
        lines.append(f"{value.name}: {kinds(tensor.elem_type).lower()}[{', '.join(sizes)}]")
    for node in model.graph.node:
        settings = ", ".join(f"{each.name}={helper.get_attribute_value(each)}" for each in node.attribute)
        reads = ", ".join(filter(None, (*node.input, settings)))
        lines.append(f"{', '.join(node.output)} = {node.op_type}({reads})")
    lines.append(f"return {', '.join(value.name for value in model.graph.output)}")
    return "\n".join(lines)
