"""What one version of a runtime makes of a file, by its rule table: as a prediction, and in what is written for it.

A dialect describes the newest version that there is a table of. For an older one, what only the newer ones run in
integers stays float in the file, and the file has operators of a version that the runtime reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from embedl_deploy.dialect._dialects import Contract, Verdict
from embedl_deploy.dialect._facts import NOT_COMPUTING, facts_of
from embedl_deploy.dialect._files import relax_opset
from embedl_deploy.dialect._model import QdqModel, opset_of, read, replace_all
from embedl_deploy.dialect._qdq_placement import View
from embedl_deploy.dialect._tables import ANY, FLOAT, RuleTable, get_table, known_versions, number
from embedl_deploy.errors import DialectError, first_line, quoted_list

_INTEGER, _TAKEN = "integer", "taken"


@dataclass(frozen=True)
class Version:
    """The table that tells of a version of a runtime, and one line where that is another version's."""

    table: RuleTable
    newest: RuleTable
    note: str = ""

    @property
    def name(self) -> str:
        """The runtime and the version whose rules are used."""
        return f"{self.table.runtime} {self.table.version}"


def find_version(runtime: str, version: str) -> Version | None:
    """Return what is known of a version of a runtime, None for a runtime that nothing is known of.

    Raises:
        DialectError: This is no version.
    """
    known = known_versions(runtime)
    if not known:
        return None
    if not number(version):
        raise DialectError(f"{version!r} is no version of {runtime}; known are {quoted_list(known)}.")
    oldest, newest = get_table(runtime, known[0]), get_table(runtime, known[-1])
    wanted = number(version)
    if number(known[0])[: len(wanted)] > wanted:
        note = f"{runtime} {version} is older than all that is known; the rules are those of {oldest.version}."
        return Version(oldest, newest, note)
    table = get_table(runtime, version)
    same = number(table.version)[: len(wanted)] == wanted
    note = (
        "" if same else f"{runtime} {version} was not learned; the rules are those of {table.version}, the next older."
    )
    return Version(table, newest, note)


def fit_version(qdq: QdqModel, version: Version) -> None:
    """Take away the Q/DQ by which only newer versions run an operator in integers; notes say where."""
    if version.note:
        qdq.notes.append(version.note)
    if version.table.version == version.newest.version:
        return
    nodes = facts_of(qdq, opset=min(qdq.opset, version.table.newest_opset))
    now, newest = version.table.placement(nodes), version.newest.placement(nodes)
    view = View(qdq)
    learned = set(version.table.operators)
    # Where a version has a kernel, to lose it by a rule that is wrong costs more than a Q/DQ too many.
    fused = {rule.operator for rule in version.table.rules if rule.outcome.startswith(_INTEGER)}
    for node in qdq.graph.node:
        if node.op_type not in learned - fused:
            continue  # what nobody asked of this version is left as it is
        if now[node.name] != FLOAT or not newest[node.name].startswith(_INTEGER):
            continue
        for index in range(len(node.input)):
            if (node.name, index) in qdq.edges and not _is_needed(qdq, view, (node.name, index), now):
                del qdq.edges[node.name, index]
        qdq.notes.append(
            f"{node.name}: {version.name} runs this {node.op_type} in float, {version.newest.version} not."
        )
    qdq.prune()


def _is_needed(qdq: QdqModel, view: View, edge: tuple[str, int], placed: Mapping[str, str]) -> bool:
    """Tell whether a boundary is what lets the operator before it run in integers: nobody else reads it."""
    boundary = qdq.edges[edge]
    if any(held == boundary for other, held in qdq.edges.items() if other != edge):
        return False
    maker = view.maker.get(qdq.tensor_of[boundary])
    while maker is not None and maker.op_type in NOT_COMPUTING and maker.input:
        maker = view.maker.get(maker.input[0])
    return maker is not None and placed.get(maker.name, FLOAT).startswith((_INTEGER, _TAKEN))


def fit_opset(model: onnx.ModelProto, version: Version) -> None:
    """Say an older version of the operators where the runtime reads no newer one, or refuses what it makes of it.

    Raises:
        DialectError: The file needs more than that version has.
    """
    if version.table.version == version.newest.version:
        return
    newest = version.table.newest_opset
    # Tools declare domains that no operator is of, in versions that an older runtime refuses.
    used = {node.domain or "ai.onnx" for node in model.graph.node} | {"ai.onnx"}
    replace_all(model.opset_import, [entry for entry in model.opset_import if (entry.domain or "ai.onnx") in used])
    try:
        relax_opset(model, newest)
    except onnx.checker.ValidationError as exc:
        raise DialectError(
            f"{version.name} reads operators of opset {newest} at most, and the model needs newer ones: "
            f"{first_line(exc)}. Name another runtime version, or leave these operators out of the model."
        ) from exc
    # A version may read an opset and have no kernel for what it fuses there: 1.18 refuses a MatMul of opset 21.
    while version.table.refused(facts_of(read(model))):
        try:
            relax_opset(model, opset_of(model) - 1)
        except onnx.checker.ValidationError:
            return  # check tells that it is refused, and why


def by_version(
    qdq: QdqModel, rows: Sequence[Verdict], version: Version, dialect: str, confirmed: Contract | None
) -> Contract:  # fmt: skip
    """Return what a version makes of a file, from verdicts on the newest; as confirmed where it was asked itself."""
    nodes = facts_of(qdq)
    found = {node.name: version.table.rule_for(node.known({})) for node in nodes}
    placed = version.table.placement(nodes)
    for name in _biases(qdq, placed):
        placed[name] = _TAKEN
    judged = tuple(_judged(row, placed.get(row.node, FLOAT), str(found.get(row.node) or ""), version) for row in rows)
    is_too_new = qdq.opset > version.table.newest_opset
    # What holds for every operator of a newer opset is said once.
    refused = [f"{node.name}: {rule}" for node, rule in version.table.refused(nodes)
               if rule.operator != ANY or not is_too_new]  # fmt: skip
    if is_too_new:
        refused.insert(
            0, f"opset {qdq.opset} is newer than {version.table.newest_opset}, the newest that {version.name} reads; "
            f"--runtime-version {version.table.version} of export and relower writes an older one"
        )  # fmt: skip
    if confirmed is not None:
        names = {row.node: row for row in confirmed.rows}
        told = (replace(row, found=names[row.node].found, in_integers=names[row.node].in_integers) for row in judged)
        return replace(confirmed, rows=tuple(told))
    text = f"Predicted from the rules learned from {version.name}, " + (
        "and from nothing else." if version.note else "which is not the version that is installed here."
    )
    return Contract(dialect, judged, " ".join(filter(None, (text, version.note))), "; ".join(refused[:3]))


def _biases(qdq: QdqModel, placed: Mapping[str, str]) -> list[str]:
    """Return the additions that a product of integers does: one kernel, of which rules speak as of two nodes."""
    view = View(qdq)
    products = [node for node in qdq.graph.node if placed.get(node.name, FLOAT) == f"{_INTEGER} QGemm"]
    return [last.name for node in products if (last := view.bias_tail(node)) is not node]


def unlearned(runtime: str, wanted: str, here: str) -> str:
    """Say of a version whose rules nobody learned what an answer is worth; nothing where it is the installed one.

    Raises:
        DialectError: This is no version.
    """
    if not number(wanted):
        raise DialectError(f"{wanted!r} is no version of {runtime}.")
    if here and number(here)[: len(number(wanted))] == number(wanted):
        return ""
    asked = f"; who was asked is {here}, which is installed here" if here else ""
    return f"Nothing is known of {runtime} {wanted} in particular: versions of {runtime} were not learned{asked}."


def _judged(row: Verdict, outcome: str, rule: str, version: Version) -> Verdict:
    if row.operator in NOT_COMPUTING or row.operator not in version.table.operators or row.state == "rounded":
        return row
    if outcome.startswith(_INTEGER):
        kernel = outcome.partition(" ")[2]
        same = row.state == _INTEGER
        return replace(row, kernel=kernel, state=_INTEGER, reason=row.reason if same else f"{version.name}: {rule}")
    if outcome == _TAKEN:
        return row if row.state == _TAKEN else replace(row, state=_TAKEN, reason=f"{version.name}: {rule}")
    if row.state in (_INTEGER, _TAKEN):
        lost = "unfused" if row.state == _INTEGER else FLOAT
        return replace(row, kernel=row.operator, state=lost, reason=f"{version.name}: {rule or 'in float'}")
    return row
