"""Learn what a runtime does with each operator: ask about graphs where the rules found so far are least certain.

Each round draws graphs of an operator at random and lets a committee of trees, each grown on a draw of what is known,
vote on them. Those on which it disagrees are run, and a few at random, which test the rules before they learn from
them. An operator is learned when the rules were right on every random graph of two rounds.

A second version begins with the first one's rules: the graphs that show them are asked, and only an operator of which
one came out otherwise is learned anew.

What was asked is written to a journal at once; learning goes on from there.
"""

import itertools
import json
import platform
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import onnx
from onnx import TensorProto, helper

from embedl_deploy.dialect._facts import BEYOND, NOT_COMPUTING, NodeFacts, facts_of
from embedl_deploy.dialect._model import read
from embedl_deploy.dialect._tables import ANY, FLOAT, Rule, RuleTable
from embedl_deploy.errors import DialectError
from embedl_deploy.rules._cases import (
    CENTER,
    COMMON,
    Case,
    NoSuchGraphError,
    build,
    few_twin_cases,
    operators,
    plain_cases,
    plain_with,
    random_case,
    space_of,
    twin_cases,
)
from embedl_deploy.rules._probe import FAILED, INTEGER, REFUSED, UNTOLD, Placement, Probe
from embedl_deploy.rules._tree import Leaf, Sample, grow, outcome_by
from embedl_device.readers import UnreadableError, parse_json, read_plain

_POOL, _ASKED, _TESTED, _BESIDE = 60, 20, 10, 20
_COMMITTEE = 5
_SHOWN = 2  # graphs of each rule of another version that are asked
_AT_ONCE = 1000
_ACTIVATIONS = ("uint8", "int8", "uint16", "int16")
_MOST_ROUNDS, _MORE_ROUNDS, _SLOW_ROUNDS, _GOOD_ROUNDS = 12, 4, 1, 2
_NEWEST_OPSET = 30
_USUAL_OPSET = "17"
_MOST_NODES = 40
_OUTCOME = re.compile(r"(float|taken|untold|built|refused|crashed|timed out|integer [\w.:]{1,60})")

Say = Callable[[str], None]
# Graphs to ask, once and again, and in the end how well the operator is known.
_Course = Generator[list[Case], None, "Lesson"]


@dataclass
class Journal:
    """What a runtime answered, by case; every answer is written to a file at once."""

    path: Path | None = None
    answers: dict[Case, Placement] = field(default_factory=dict)
    damaged: int = 0  # lines that tell nothing: the last one of a killed learner, for one
    is_cut: bool = False  # whether the file ends within a line

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Read what is there; a line that was cut off by a kill is asked again.

        Raises:
            DialectError: The file cannot be read, or is larger than a journal gets.
        """
        journal = cls(path)
        try:
            data = read_plain(path)
        except FileNotFoundError:
            return journal
        except (OSError, UnreadableError) as exc:
            raise DialectError(f"The journal {path} cannot be read: {exc}. Name another folder.") from exc
        journal.is_cut = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            try:
                text, placement = parse_json(line)
                journal.answers[Case.parse(str(text))] = _checked(placement)
            except (ValueError, TypeError):
                journal.damaged += 1
        return journal

    def add(self, case: Case, placement: Placement) -> None:
        """Note an answer."""
        self.answers[case] = placement
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * self.is_cut + json.dumps([str(case), dict(placement)]) + "\n")
        except OSError as exc:
            raise DialectError(f"The journal {self.path} cannot be written: {exc}.") from exc
        self.is_cut = False


def _checked(placement: object) -> Placement:
    """Return a placement of a journal, which may be anybody's."""
    if not isinstance(placement, dict) or CENTER not in placement or len(placement) > _MOST_NODES:
        raise ValueError
    if not all(isinstance(word, str) and _OUTCOME.fullmatch(word) for word in placement.values()):
        raise ValueError
    return {str(name): str(word) for name, word in placement.items()}


@dataclass(frozen=True)
class Lesson:
    """How well an operator is known."""

    operator: str
    graphs: int
    tested: int  # graphs whose outcome was predicted before they were run
    wrong: int  # of these, the ones predicted wrong
    is_settled: bool
    is_known: bool = False  # whether another version's rules were kept: it answered the same to all their graphs


class Graphs:
    """The graphs of cases and the facts in them: the same for every runtime, so that several learners share them."""

    def __init__(self) -> None:
        self._facts: dict[Case, list[NodeFacts]] = {}

    def facts(self, case: Case) -> list[NodeFacts]:
        """Return the facts of a case's nodes, nothing for one without a graph."""
        if case not in self._facts:
            try:
                self._facts[case] = facts_of(read(build(case)))
            except NoSuchGraphError:
                self._facts[case] = []
        return self._facts[case]


class Learner:
    """Learns from one probe, from nothing or from what is known of another version."""

    def __init__(
        self,
        probe: Probe,
        journal: Journal | None = None,
        *,
        graphs: Graphs | None = None,
        prior: Journal | None = None,
        seed: int = 0,
    ) -> None:
        self.probe = probe
        self.journal = journal or Journal()
        self.random = Random(seed)  # noqa: S311 - nothing is kept secret by it
        self.prior = prior
        self._plain = frozenset(getattr(probe, "plain_settings", ()))
        # To find out which graph of a file is refused takes most of the time: what one was refused for is not repeated.
        self._is_slow = bool(getattr(probe, "is_slow", False))
        self._refused: set[tuple[str, str]] = set()
        self._opset = ""  # in which graphs are asked that name none
        self._known: dict[str, list[Leaf]] = {}  # operators whose rules are another version's, which held
        self._looks_beyond = bool(getattr(probe, "looks_beyond", False))
        left_out = frozenset() if self._looks_beyond else BEYOND
        self._samples = _Samples(self.journal, (graphs or Graphs()).facts, left_out)
        self._facts_of = self._samples.facts_of

    def run(self, names: Sequence[str] | None = None, *, say: Say | None = None) -> tuple[RuleTable, list[Lesson]]:
        """Learn operators, all that there are graphs of when none is named."""
        chosen = list(names or operators())
        before = None if self.prior is None else _Samples(self.prior, self._facts_of, self._samples.left_out)
        if self._is_slow:
            self.ask(plain_cases(chosen[0]))
            self._refused = self._refused_settings(chosen[0]) & {
                (name, value) for name in COMMON for value in COMMON[name]
            }
        self._opset = self._usual_opset(chosen[0])
        courses = {name: self._course(name, before) for name in chosen}
        lessons: dict[str, Lesson] = {}
        while courses:  # a round of all operators together: some runtimes take seconds for a question of any size
            wanted: list[Case] = []
            for name, course in list(courses.items()):
                try:
                    wanted += next(course)
                except StopIteration as done:
                    lessons[name] = done.value
                    del courses[name]
                    if say is not None:
                        say(f"{len(lessons)} of {len(chosen)}: {_words(lessons[name])}")
            self.ask(wanted)
        return self.table(), [lessons[name] for name in chosen]

    def _course(self, operator: str, before: "_Samples | None") -> _Course:
        """Learn one operator: yield the graphs to ask next, go on when they were."""
        begun = None if before is None else (yield from self._compare(operator, before))
        if begun is not None and begun.is_known:
            return begun
        return (yield from self._learn(operator, begun))

    def _compare(self, operator: str, before: "_Samples") -> _Course:
        """Ask the graphs that show another version's rules of an operator; its rules are kept where all answers are.

        The plain ones and a few at random test them on this version, as they were tested on the other.
        """
        leaves = grow(before.of(operator))
        failing = before.failing(operator)
        shown = [sample.example for leaf in (*leaves, *failing) for sample in _apart(leaf.samples, _SHOWN)]
        plain = (*plain_cases(operator), *(plain_with(operator, kind) for kind in _ACTIVATIONS))
        asked_for = dict.fromkeys(map(self._fitted, (*map(Case.parse, shown), *plain)))
        cases = [case for case in asked_for if case.operator == operator]
        fresh = list(itertools.islice((case for case in self._draw(operator) if case not in cases), _TESTED))
        yield [*cases, *fresh]
        asked = [case for case in (*cases, *fresh) if self._is_told(case)]
        wrong = sum(self._expected(leaves, failing, case) != self.journal.answers[case][CENTER] for case in asked)
        theirs = before.journal.answers
        both = [case for case in asked if case in theirs]
        same = not wrong and all(theirs[case][CENTER] == self.journal.answers[case][CENTER] for case in both)
        if same:
            self._known[operator] = leaves
        return Lesson(operator, self._count(operator), len(asked), wrong, is_settled=not wrong, is_known=same)

    def _has_kernel(self, operator: str) -> bool:
        """Tell whether any graph of an operator ran in integers: of others there is little to learn."""
        own = (answer for case, answer in self.journal.answers.items() if case.operator == operator)
        return any(answer[CENTER].startswith(INTEGER) for answer in own)

    def ask(self, cases: Iterable[Case]) -> None:
        """Run graphs that were not run; combinations without a graph are left out."""
        wanted = [case for case in dict.fromkeys(cases) if case not in self.journal.answers and self._is_asked(case)]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            for case, placement in zip(some, self.probe.ask([build(case) for case in some]), strict=True):
                self.journal.add(case, placement)

    def _is_asked(self, case: Case) -> bool:
        """Tell whether a case has a graph and nothing that this runtime is not asked about."""
        if any(name in self._plain or (name, value) in self._refused for name, value in case.settings):
            return False
        return bool(self._facts_of(case))

    def _usual_opset(self, operator: str) -> str:
        """Return the opset that graphs are asked in where they name none: most files' own, where that matters.

        A version may read a newer opset and not do there what it does in those it was written for.
        """
        if "opset" in self._plain or _USUAL_OPSET not in space_of(operator)["opset"]:
            return ""
        newer = [case for case in (*plain_cases(operator), *few_twin_cases(operator, beyond=False))
                 if "opset" not in dict(case.settings)]  # fmt: skip
        pairs = [(case, case.with_setting("opset", _USUAL_OPSET)) for case in newer]
        self.ask(case for pair in pairs for case in pair)
        answers = self.journal.answers
        both = [(answers[one], answers[other]) for one, other in pairs if one in answers and other in answers]
        return _USUAL_OPSET if any(one[CENTER] != other[CENTER] for one, other in both) else ""

    def _fitted(self, case: Case) -> Case:
        """Return a case in the version of the operators that this runtime is asked in, where it has a graph in it."""
        if not self._opset or "opset" in dict(case.settings) or self._opset not in space_of(case.operator)["opset"]:
            return case
        fitted = case.with_setting("opset", self._opset)
        return fitted if self._facts_of(fitted) else case

    def _refused_settings(self, operator: str) -> set[tuple[str, str]]:
        """Return the settings with which alone an operator's graph does not run."""
        answers = self.journal.answers
        own = (case for case in answers if case.operator == operator and len(case.settings) == 1)
        return {case.settings[0] for case in own if answers[case][CENTER] in FAILED}

    def _is_told(self, case: Case) -> bool:
        """Tell whether the runtime said what it made of a case."""
        return self.journal.answers.get(case, {}).get(CENTER, UNTOLD) != UNTOLD

    def _learn(self, operator: str, begun: Lesson | None) -> _Course:
        """Ask about an operator until its rules predict what is drawn at random."""
        yield [*map(self._fitted, plain_cases(operator))]
        has_kernel = self._has_kernel(operator) or self._is_slow  # between other kernels it may have one
        if has_kernel:
            twins = few_twin_cases(operator, beyond=self._looks_beyond) if self._is_slow else twin_cases(operator)
            yield [*map(self._fitted, twins)]
        tested, wrong = (begun.tested, begun.wrong) if begun is not None else (0, 0)
        good = 0
        rounds = _SLOW_ROUNDS if self._is_slow else _MOST_ROUNDS if begun is None else _MORE_ROUNDS
        for _ in range(rounds):
            own = self._samples.of(operator)
            leaves, failing = grow(own), self._samples.failing(operator)
            pool = [case for case in self._draw(operator) if not self._is_slow or not self._fails(failing, case)]
            fresh, rest = pool[:_TESTED], pool[_TESTED:]
            committee = [grow(own, self.random) for _ in range(_COMMITTEE)]
            doubts = [(self._doubt(committee, case), case) for case in rest]
            doubtful = [case for doubt, case in sorted(doubts, key=lambda each: -each[0]) if doubt > 0][:_ASKED]
            beside = self._beside(operator, leaves)
            fresh += [case for case in beside if not self._is_slow or not self._fails(failing, case)]
            yield [*fresh, *doubtful]
            fresh = [case for case in fresh if self._is_told(case)]
            errors = sum(self._expected(leaves, failing, case) != self.journal.answers[case][CENTER] for case in fresh)
            tested, wrong = tested + len(fresh), wrong + errors
            good = 0 if errors else good + 1
            if good >= (_GOOD_ROUNDS if has_kernel else 1):
                break
        return Lesson(operator, self._count(operator), tested, wrong, is_settled=good > 0)

    def _count(self, operator: str) -> int:
        return sum(case.operator == operator for case in self.journal.answers)

    def _draw(self, operator: str) -> Iterator[Case]:
        """Draw graphs that were not run."""
        drawn = dict.fromkeys(self._fitted(random_case(operator, self.random)) for _ in range(_POOL))
        return (case for case in drawn if case not in self.journal.answers and self._is_asked(case))

    def _beside(self, operator: str, leaves: Sequence[Leaf]) -> list[Case]:
        """Draw graphs that differ in one setting from one that ran in integers: is each condition known?"""
        found: dict[Case, None] = {}
        shown = [sample for leaf in leaves if leaf.outcome.startswith(INTEGER) for sample in leaf.samples[:3]]
        for text in sorted({sample.example for sample in shown}):
            case = Case.parse(text)
            if case.operator == operator:
                flips = [(name, value) for name, values in space_of(operator).items() for value in values]
                found |= dict.fromkeys(case.with_setting(*flip) for flip in flips)
        unknown = [case for case in found if case not in self.journal.answers]
        self.random.shuffle(unknown)
        return list(itertools.islice((case for case in unknown if self._is_asked(case)), _BESIDE))

    def _expected(self, leaves: Sequence[Leaf], failing: Sequence[Leaf], case: Case) -> str | None:
        facts = self._center(case)
        failed = outcome_by(failing, facts)
        return failed if failed in FAILED else outcome_by(leaves, facts)

    def _fails(self, failing: Sequence[Leaf], case: Case) -> bool:
        return outcome_by(failing, self._center(case)) in FAILED

    def _center(self, case: Case) -> dict[str, str]:
        # What stands before the center is an input, a Relu or a move, all of them in float.
        return next(node for node in self._facts_of(case) if node.name == CENTER).known({})

    def _doubt(self, committee: Sequence[Sequence[Leaf]], case: Case) -> int:
        """Return how many of the committee are not of the majority's opinion."""
        votes = Counter(outcome_by(leaves, self._center(case)) for leaves in committee)
        return len(committee) - votes.most_common(1)[0][1]

    def table(self) -> RuleTable:
        """Return what is known as rules."""
        fused = self._fused()
        rules = []
        for operator, samples in self._samples.all().items():
            leaves = self._known.get(operator)
            for leaf in grow(samples) if leaves is None else _filled(leaves, samples):
                shown = [each for each in leaf.samples if each.outcome == leaf.outcome]
                example = min(shown, key=lambda each: (each.size, each.example)).example
                rules.append(Rule(operator, leaf.conditions, leaf.outcome, example, len(shown)))
        return RuleTable(
            self.probe.runtime, self.probe.version, platform.machine(), newest_opset(self.probe), tuple(rules),
            len(self.journal.answers), fused,
        )  # fmt: skip

    def _fused(self) -> dict[str, tuple[str, ...]]:
        """Return the operators whose plain graph runs in integers, by the type of the activations."""
        names = sorted({case.operator for case in self.journal.answers})
        found: dict[str, tuple[str, ...]] = {}
        for kind in _ACTIVATIONS:
            self.ask(plain_with(name, kind) for name in names)
            answers = {name: self.journal.answers.get(plain_with(name, kind), {}) for name in names}
            found[kind] = tuple(name for name, each in answers.items() if each.get(CENTER, "").startswith(INTEGER))
        return found


class _Samples:
    """The nodes of a journal's graphs as samples, by operator; those of ``*`` tell which graphs run at all."""

    def __init__(
        self, journal: Journal, facts_of: Callable[[Case], list[NodeFacts]], left_out: frozenset[str]
    ) -> None:  # fmt: skip
        self.journal = journal
        self.left_out = left_out
        self.facts_of = facts_of
        self._found: dict[str, list[Sample]] = {}
        self._counted = 0

    def all(self) -> dict[str, list[Sample]]:
        for case in list(itertools.islice(self.journal.answers, self._counted, None)):
            self._note(case, self.journal.answers[case])
        self._counted = len(self.journal.answers)
        return dict(sorted(self._found.items()))

    def of(self, operator: str) -> list[Sample]:
        return self.all().get(operator, [])

    def failing(self, operator: str) -> list[Leaf]:
        """Return what is known of graphs of an operator that do not run."""
        return grow([each for each in self.of(ANY) if each.facts["operator"] == operator])

    def _of(self, facts: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in facts.items() if name not in self.left_out}

    def _note(self, case: Case, placement: Placement) -> None:
        nodes = self.facts_of(case)
        size = len(nodes) + len(case.settings)
        failed = placement[CENTER] in FAILED
        for node in nodes:
            operator = node.facts["operator"]
            if node.name == CENTER:
                outcome = placement[CENTER] if failed else FLOAT
                self._found.setdefault(ANY, []).append(Sample(self._of(node.facts), outcome, str(case), size))
            # What a runtime does not tell teaches nothing: where it tells of such a node, that is the rule.
            if not failed and operator not in NOT_COMPUTING and placement.get(node.name, UNTOLD) != UNTOLD:
                sample = Sample(self._of(node.known(placement)), placement[node.name], str(case), size)
                self._found.setdefault(operator, []).append(sample)


def _apart(samples: Sequence[Sample], count: int) -> Sequence[Sample]:
    """Return the smallest of some samples, and others far from it in size."""
    ordered = sorted(samples, key=lambda each: (each.size, each.example))
    step = max(1, len(ordered) // count)
    return ordered[::step][:count]


def _filled(leaves: Sequence[Leaf], samples: Sequence[Sample]) -> list[Leaf]:
    """Return the rules of another version with the samples of this one; a rule that none shows is left out."""
    held: dict[int, list[Sample]] = {}
    for sample in samples:
        place = next((n for n, leaf in enumerate(leaves) if all(c.holds(sample.facts) for c in leaf.conditions)), -1)
        held.setdefault(place, []).append(sample)
    found = []
    for place, leaf in enumerate(leaves):
        own = held.get(place, [])
        if any(each.outcome == leaf.outcome for each in own):
            found.append(Leaf(leaf.conditions, leaf.outcome, tuple(own), leaf.mixed))
    return found


def _words(lesson: Lesson) -> str:
    how = "as in the other version" if lesson.is_known else "learned" if lesson.is_settled else "NOT settled"
    return (
        f"{lesson.operator}, {lesson.graphs} graphs, {lesson.wrong} of {lesson.tested} predicted wrong before they "
        f"were run; {how}"
    )


def newest_opset(probe: Probe) -> int:
    """Return the newest version of the standard operators that a runtime reads."""
    known = range(13, min(onnx.defs.onnx_opset_version(), _NEWEST_OPSET) + 1)
    answers = list(probe.ask([_smallest(opset) for opset in known]))
    taken = [opset for opset, answer in zip(known, answers, strict=True) if REFUSED not in answer.values()]
    return max(taken, default=0)


def _smallest(opset: int) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"], name="abs")], "opset", [value], [end])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
