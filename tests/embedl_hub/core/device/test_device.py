"""A device: a named target, checked when it is described."""

from dataclasses import dataclass
from typing import Any

import pytest

from embedl_hub.core.device import Device, DeviceSpec, LocalCommandRunner, ProviderConfig
from embedl_hub.errors import ConfigError
from embedl_hub.paths import RemotePath


@dataclass(frozen=True)
class Tuned(ProviderConfig):
    level: int = 0


@dataclass(frozen=True)
class Other(ProviderConfig):
    pass


class Step:
    pass


class SpecialStep(Step):
    pass


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "name must be printable text, not ''"),
        ({"name": "  "}, "name must be printable text"),
        ({"name": "a\nb"}, "name must be printable text, not 'a\\nb'"),
        ({"name": 3}, "name must be printable text, not 3"),
        ({"provider_type": ""}, "provider_type must be printable text"),
        ({"runner": object()}, "has no run, put and get; use SSHCommandRunner, LocalCommandRunner or your own"),
        ({"provider_config": {"level": 1}}, "{'level': 1} is not a ProviderConfig; subclass it"),
        ({"provider_config_overrides": {Step: 3}}, "3 is not a ProviderConfig"),
        ({"provider_config_overrides": {"Step": Tuned()}}, "keyed by component class, not 'Step'"),
    ],
)
def test_a_wrong_device_is_refused(fields: dict[str, Any], says: str) -> None:
    """The message shows what was given and what is right."""
    with pytest.raises(ConfigError) as caught:
        Device(**{"name": "board", **fields})

    assert says in str(caught.value)


def test_a_device_may_have_no_runner() -> None:
    """A vendor's cloud is a device too."""
    assert Device("cloud", provider_type="qai_hub").runner is None


def test_the_hyphen_form_of_a_provider_type_means_the_same() -> None:
    """One spelling inside."""
    assert Device("cloud", provider_type="qai-hub") == Device("cloud", provider_type="qai_hub")


def test_the_config_of_a_component_is_its_override_or_the_devices() -> None:
    """The nearest class with an override wins; without any it is the device's config, or None."""
    device = Device(
        "board", provider_config=Tuned(1), provider_config_overrides={Step: Tuned(2)}, runner=LocalCommandRunner()
    )

    assert device.get_provider_config(Tuned, SpecialStep) == Tuned(2)
    assert device.get_provider_config(Tuned, Step) == Tuned(2)
    assert device.get_provider_config(Tuned, Device) == Tuned(1)
    assert Device("bare").get_provider_config(Tuned, Step) is None


def test_the_nearest_override_wins() -> None:
    """An override for a subclass hides that of its parent."""
    device = Device("board", provider_config_overrides={Step: Tuned(1), SpecialStep: Tuned(2)})

    assert device.get_provider_config(Tuned, SpecialStep) == Tuned(2)
    assert device.get_provider_config(Tuned, Step) == Tuned(1)


def test_a_config_of_another_class_is_named() -> None:
    """The message has both classes, the component and the provider."""
    device = Device("board", provider_type="aws", provider_config=Other())
    with pytest.raises(ConfigError) as caught:
        device.get_provider_config(Tuned, Step)

    for part in ("'board'", "Other", "Step", "'aws'", "Tuned"):
        assert part in str(caught.value)


def test_the_artifact_folder_needs_an_open_context() -> None:
    """Outside of one the message says where to take the device from."""
    with pytest.raises(ConfigError, match=r"not on an open context; use ctx.devices\['board'\]"):
        _ = Device("board").artifact_dir


def test_the_artifact_folder_is_found_by_the_context() -> None:
    """A device on a context asks it."""
    device = Device("board", _find_artifact_dir=lambda: RemotePath("/runs/1"))

    assert device.artifact_dir == RemotePath("/runs/1")


def test_a_device_has_a_spec_even_if_none_is_given() -> None:
    """Its fields are open until the board is asked."""
    assert Device("board").spec == DeviceSpec()
