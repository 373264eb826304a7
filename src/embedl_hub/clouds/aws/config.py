"""Settings of AWS Device Farm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.device import NO_RUNNER, DeviceKind, MeasuringConfig, check_args
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.core.device import CheckResult

TYPE = "aws"


@dataclass(frozen=True)
class AWSConfig(MeasuringConfig):
    """How phones of AWS Device Farm are chosen and used; which phone may also be in the device's spec.

    Keys stay where AWS's own client finds them (``aws configure``, environment, a role); they are never read here.
    """

    project_arn: str = ""  # the Device Farm project that runs are made in
    benchmark_model: str = ""  # google's ``benchmark_model`` for Android, on this machine; it is sent along
    # A device pool of the project; made for the run from ``attributes`` when not given
    device_pool_arn: str | None = None
    # Rules that phones must meet, as ``MODEL:EQUALS:Pixel 8`` (attribute, operator, value)
    attributes: tuple[str, ...] = ()
    xnnpack: bool = field(default=True, kw_only=True)  # let the XNNPACK delegate take the operators it can
    # Further arguments for ``benchmark_model``, such as ``--use_gpu=true``
    benchmark_args: tuple[str, ...] = field(default=(), kw_only=True)
    # The service ends the job after this long; what it costs is bounded by it
    job_timeout_minutes: int = field(default=10, kw_only=True)
    # For the estimate of costs; the service's list price by default
    price_per_minute_usd: float = field(default=0.17, kw_only=True)
    # A named profile of AWS's configuration; its default when not given
    aws_profile: str | None = field(default=None, kw_only=True)
    region: str = field(default="us-west-2", kw_only=True)  # device Farm has one
    # How long to wait for the whole run, its time in the queue included
    wait_s: float = field(default=7200.0, kw_only=True)
    poll_s: float = field(default=15.0, kw_only=True)  # how often to ask for its state

    def __post_init__(self) -> None:
        super().__post_init__()
        check_args("attributes", self.attributes)
        check_args("benchmark_args", self.benchmark_args)
        for rule in self.attributes:
            if rule.count(":") < 2:
                raise ConfigError(f"A rule of attributes reads ATTRIBUTE:OPERATOR:VALUE, not {rule!r}.")
        if self.job_timeout_minutes < 1:
            raise ConfigError(f"job_timeout_minutes must be at least 1, not {self.job_timeout_minutes!r}.")


def _doctor() -> list[CheckResult]:
    from embedl_hub.clouds.aws.service import doctor  # noqa: PLC0415 - AWS's package on use

    return doctor()


KIND = DeviceKind(TYPE, "A phone of AWS Device Farm.", AWSConfig, reached_by=(NO_RUNNER,), doctor=_doctor)
