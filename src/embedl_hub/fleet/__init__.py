"""Sweeps: many models, many options, many boards, on threads of this machine or another engine."""

from embedl_hub.fleet._boards import BoardHealth
from embedl_hub.fleet._engine import Engine, Workers, find_engine
from embedl_hub.fleet._evaluate import Score, evaluate_spread, score
from embedl_hub.fleet._matrix import Matrix, MatrixCell, Point, Slot, matrix_of
from embedl_hub.fleet._model import (
    Cell,
    CellResult,
    CellState,
    DeviceSelection,
    Job,
    Listener,
    Outcome,
    Plan,
    Progress,
    RankedOption,
    Ranking,
    Step,
    StepKind,
    Sweep,
    SweepModel,
    SweepOption,
    SweepResult,
    Target,
    TargetProgress,
)
from embedl_hub.fleet._plan import PLAN_ARTIFACT, SWEEP, expand, plan_of
from embedl_hub.fleet._rank import recorded_rankings
from embedl_hub.fleet._ray import Ray
from embedl_hub.fleet._ray_cluster import Host, NodePlan, become_node, cluster_hosts, node_address, plan_node, stop_node
from embedl_hub.fleet._read import read_sweep
from embedl_hub.fleet._sweep import find_sweep, plan_sweep, run_sweep
from embedl_hub.fleet._threads import Threads
from embedl_hub.fleet._work import OUTCOME_PARAMS, run_job

__all__ = [
    "OUTCOME_PARAMS",
    "PLAN_ARTIFACT",
    "SWEEP",
    "BoardHealth",
    "Cell",
    "CellResult",
    "CellState",
    "DeviceSelection",
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
    "cluster_hosts",
    "evaluate_spread",
    "expand",
    "find_engine",
    "find_sweep",
    "matrix_of",
    "node_address",
    "plan_node",
    "plan_of",
    "plan_sweep",
    "read_sweep",
    "recorded_rankings",
    "run_job",
    "run_sweep",
    "score",
    "stop_node",
]
