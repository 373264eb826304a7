"""Sweeps: many models, many options, many boards, on threads of this machine or another engine."""

from embedl_hub.fleet._boards import BoardHealth
from embedl_hub.fleet._engine import Engine, Job, Outcome, Workers
from embedl_hub.fleet._engines import find_engine
from embedl_hub.fleet._evaluate import Score, score
from embedl_hub.fleet._expand import expand
from embedl_hub.fleet._matrix import (
    HIGHER_IS_BETTER,
    Matrix,
    MatrixCell,
    Point,
    Slot,
    Standing,
    matrix_of,
)
from embedl_hub.fleet._model import (
    Cell,
    DeviceWish,
    Plan,
    Step,
    StepKind,
    Sweep,
    SweepModel,
    SweepOption,
    Target,
)
from embedl_hub.fleet._plan_file import PLAN_ARTIFACT, SWEEP, plan_of
from embedl_hub.fleet._progress import Progress, TargetProgress
from embedl_hub.fleet._ray import Ray
from embedl_hub.fleet._ray_cluster import Host, cluster_hosts
from embedl_hub.fleet._ray_node import NodePlan, become_node, plan_node, stop_node
from embedl_hub.fleet._read import read_sweep
from embedl_hub.fleet._results import CellResult, CellState, Listener, RankedOption, Ranking, SweepResult
from embedl_hub.fleet._spread import evaluate_spread
from embedl_hub.fleet._sweep import find_sweep, plan_sweep, run_sweep
from embedl_hub.fleet._targets import HERE
from embedl_hub.fleet._threads import Threads
from embedl_hub.fleet._work import OUTCOME_PARAMS, carry_out

__all__ = [
    "HERE",
    "HIGHER_IS_BETTER",
    "OUTCOME_PARAMS",
    "PLAN_ARTIFACT",
    "SWEEP",
    "BoardHealth",
    "Cell",
    "CellResult",
    "CellState",
    "DeviceWish",
    "Engine",
    "Host",
    "Job",
    "Listener",
    "Matrix",
    "MatrixCell",
    "NodePlan",
    "Outcome",
    "Plan",
    "Point",
    "Progress",
    "RankedOption",
    "Ranking",
    "Ray",
    "Score",
    "Slot",
    "Standing",
    "Step",
    "StepKind",
    "Sweep",
    "SweepModel",
    "SweepOption",
    "SweepResult",
    "Target",
    "TargetProgress",
    "Threads",
    "Workers",
    "become_node",
    "carry_out",
    "cluster_hosts",
    "evaluate_spread",
    "expand",
    "find_engine",
    "find_sweep",
    "matrix_of",
    "plan_node",
    "plan_of",
    "plan_sweep",
    "read_sweep",
    "run_sweep",
    "score",
    "stop_node",
]
