"""What Qualcomm's cloud offers, and whether it can be asked at all."""

from __future__ import annotations

import importlib.metadata

from embedl_hub.core.component import CheckResult
from embedl_hub.core.device import DeviceSpec
from embedl_hub.errors import DeviceError, NoProviderError
from embedl_hub.providers.qai_hub.service import vendor_client

_CONFIGURE = "qai-hub configure --api_token <token>"


def offered_devices() -> list[DeviceSpec]:
    """Return the devices that jobs can be sent to."""
    try:
        devices = vendor_client().get_devices()
    except NoProviderError:
        raise
    except Exception as error:  # the vendor's client raises many kinds, its HTTP library more
        words = " ".join(str(error).split())
        if _is_not_set_up(words):
            raise DeviceError(f"Qualcomm AI Hub is not set up on this machine. Set it up with: {_CONFIGURE}") from error
        raise DeviceError(f"Qualcomm AI Hub did not list its devices: {words[:300]}") from error
    return [
        DeviceSpec(device_name=str(device.name), os=str(device.os), versions=_attributes(device.attributes))
        for device in devices
    ]


def doctor() -> list[CheckResult]:
    """Tell whether the vendor's client is here and set up; nothing is asked over the network."""
    title = "qai_hub client"
    try:
        vendor = vendor_client()
    except NoProviderError as error:
        return [CheckResult(title, is_ok=None, says="not installed", advice=str(error).rpartition("with: ")[2])]
    version = importlib.metadata.version("qai-hub")
    try:
        # Read on first use, not when it is made.
        _ = vendor.Client().config
    except Exception as error:  # noqa: BLE001 - as above
        words = " ".join(str(error).split())
        # The vendor's own words go on with a drawn box that holds the advice.
        says = f"{version}, not set up" if _is_not_set_up(words) else f"{version}, not set up: {words[:120]}"
        return [CheckResult(title, is_ok=None, says=says, advice=_CONFIGURE)]
    return [CheckResult(title, is_ok=True, says=version)]


def _is_not_set_up(words: str) -> bool:
    return "configuration file" in words or "client.ini" in words


def _attributes(attributes: object) -> dict[str, str]:
    """Return a device's attributes, which come as words like ``chipset:qualcomm-snapdragon-8gen2``."""
    words = [attributes] if isinstance(attributes, str) else attributes
    pairs = [str(word).partition(":") for word in words] if isinstance(words, list | tuple) else []
    found: dict[str, str] = {}
    for key, _, value in pairs:
        found[key] = f"{found[key]} {value}" if key in found else value
    return found
