"""Settings of Qualcomm AI Hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.device import NO_RUNNER, DeviceKind, ProviderConfig

if TYPE_CHECKING:
    from embedl_hub.core.device import CheckResult, DeviceSpec

TYPE = "qai_hub"


@dataclass(frozen=True)
class QAIHubConfig(ProviderConfig):
    """How jobs run in Qualcomm's cloud; which device is in the device's spec (``device_name``, ``os``).

    The token stays where the vendor's client keeps it (``qai-hub configure``); it is never read here.
    """

    compile_options: str = ""  # further options of compile jobs, as the vendor documents them
    quantize_options: str = ""  # of quantize jobs
    profile_options: str = ""  # of profile jobs
    inference_options: str = ""  # of inference jobs
    # Attributes the cloud's device must have, as ``chipset:qualcomm-snapdragon-8gen2``
    attributes: tuple[str, ...] = ()
    client_profile: str | None = None  # A named profile of the vendor's client; its default when not given
    timeout_s: float = 7200.0  # how long to wait for a job; the job goes on in the cloud
    poll_s: float = 5.0  # how often to ask for its state


def _doctor() -> list[CheckResult]:
    from embedl_hub.clouds.qai_hub.service import doctor  # noqa: PLC0415 - the vendor's package on use

    return doctor()


def _catalog() -> list[DeviceSpec]:
    from embedl_hub.clouds.qai_hub.service import offered_devices  # noqa: PLC0415 - the vendor's package on use

    return offered_devices()


KIND = DeviceKind(
    TYPE, "A device in Qualcomm's cloud.", QAIHubConfig, reached_by=(NO_RUNNER,), doctor=_doctor, catalog=_catalog
)
