"""What quantisation did to a model: decisions, cures with their effects, float islands. Travels with the model."""

from dataclasses import dataclass

from torch import fx, nn

from embedl_deploy._graph import COSTS
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._cures import Treatment, treatments_table
from embedl_deploy.quantize._insert import setup_of
from embedl_deploy.quantize._placement import Placement
from embedl_deploy.quantize._sensitivity import Sensitivity

_KEY = "embedl_deploy.quantize.report"


@dataclass(frozen=True)
class Search:
    """What the search for float islands found.

    Attributes:
        islands: Layers that stay float.
        float_metric: The metric of the float model.
        metric: The metric of the result.
        allowed: The least that was asked for.
        tried: How many models were measured.
    """

    islands: tuple[str, ...]
    float_metric: float
    metric: float
    allowed: float
    tried: int

    @property
    def met(self) -> bool:
        """Whether the goal was reached."""
        return self.metric >= self.allowed

    def __str__(self) -> str:
        verdict = "met" if self.met else "not met"
        names = ", ".join(self.islands) or "none"
        return (
            f"Goal {verdict}: {self.metric:.4g}, float {self.float_metric:.4g}, at least {self.allowed:.4g} wanted; "
            f"{self.tried} models measured. Float islands: {names}"
        )


@dataclass(frozen=True)
class QuantReport:
    """The record of a quantisation.

    Attributes:
        placement: Every layer's decision and the rule behind it.
        calibration: The statistics; keep them to solve scales again without the data.
        treatments: Every cure that was tried, with its measured effect.
        search: The search for float islands, where a target was given.
        sensitivity: What each layer costs with all of them quantised, where a target was given.
        example_only: Ranges are those of the example inputs, as no other data was given.
    """

    placement: Placement
    calibration: Calibration
    treatments: tuple[Treatment, ...] = ()
    search: Search | None = None
    sensitivity: Sensitivity | None = None
    example_only: bool = False

    def __str__(self) -> str:
        total, done = len(self.placement.layers), len(self.placement.quantized)
        lines = [f"{done} of {total} layers quantised, {self.calibration.batches} batches", "", str(self.placement)]
        if self.example_only:
            lines.insert(1, "Warning: calibrated on the example inputs alone; give forward_loop=batches of real data.")
        if self.treatments:
            lines += ["", "Cures, by signal-to-noise ratio of the outputs:", treatments_table(self.treatments)]
        if self.search is not None:
            lines += ["", str(self.search)]
        return "\n".join(lines)


def put_report(model: fx.GraphModule, report: QuantReport) -> None:
    """Let a report travel with its model."""
    model.meta[_KEY] = report
    if report.sensitivity is not None:
        model.meta[COSTS] = report.sensitivity


def report_of(model: nn.Module) -> QuantReport:
    """Return how a model was quantised.

    Raises:
        QuantizationError: It was not.
    """
    setup = setup_of(model)
    assert isinstance(model, fx.GraphModule)
    found = model.meta.get(_KEY)
    return found if isinstance(found, QuantReport) else QuantReport(setup.placement, Calibration())
