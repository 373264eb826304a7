"""What made a run slower or worse: the smallest set of recorded differences that explains it."""

from embedl_hub.bisection._bisect import BISECTION, BisectionResult, bisect, read_bisection
from embedl_hub.bisection._operators import Operator
from embedl_hub.bisection._oracle import STEP, Settings
from embedl_hub.bisection._plan import BisectionPlan, plan_bisection
from embedl_hub.bisection._search import Answer, Cause, Decision, Found, Switch, search

__all__ = [
    "BISECTION",
    "STEP",
    "Answer",
    "BisectionPlan",
    "BisectionResult",
    "Cause",
    "Decision",
    "Found",
    "Operator",
    "Settings",
    "Switch",
    "bisect",
    "plan_bisection",
    "read_bisection",
    "search",
]
