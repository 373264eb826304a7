"""What runtimes make of Q/DQ graphs, learned from the runtimes themselves, version by version.

Graphs of one operator each are run by the real runtime, chosen where the rules found so far are least certain. From
what ran in integers, what was taken into a kernel before it, what fell back to float and what was refused come rules,
each with the smallest graph that shows it. `embedl_deploy.dialect` applies the tables that ship.
"""

from typing import TYPE_CHECKING

from embedl_deploy._extras import lazy

if TYPE_CHECKING:
    from embedl_deploy.rules._cases import Case, operators
    from embedl_deploy.rules._diff import Change, DialectDiff, diff, example_graph
    from embedl_deploy.rules._environment import cache_folder
    from embedl_deploy.rules._learn import Journal, Learner, Lesson
    from embedl_deploy.rules._open import open_journal, open_probe
    from embedl_deploy.rules._probe import OnnxRuntimeProbe, Placement, Probe
    from embedl_deploy.rules._sweep import Learned, learn

__getattr__ = lazy(
    __name__, _cases="Case operators", _diff="Change DialectDiff diff example_graph", _environment="cache_folder",
    _learn="Journal Learner Lesson", _open="open_journal open_probe", _probe="OnnxRuntimeProbe Placement Probe",
    _sweep="Learned learn",
)  # fmt: skip

__all__ = [
    "Case",
    "Change",
    "DialectDiff",
    "Journal",
    "Learned",
    "Learner",
    "Lesson",
    "OnnxRuntimeProbe",
    "Placement",
    "Probe",
    "cache_folder",
    "diff",
    "example_graph",
    "learn",
    "open_journal",
    "open_probe",
    "operators",
]
