"""Whether boards are fit to measure on: checks that are runs, and a watch that repeats them."""

from embedl_hub.health._check import Health, HealthReport, check_device, device_health
from embedl_hub.health._checks import CheckOutcome, HealthCheck, HealthLimits, reach_device
from embedl_hub.health._watch import HealthChange, HealthWatch

__all__ = [
    "CheckOutcome",
    "Health",
    "HealthChange",
    "HealthCheck",
    "HealthLimits",
    "HealthReport",
    "HealthWatch",
    "check_device",
    "device_health",
    "reach_device",
]
