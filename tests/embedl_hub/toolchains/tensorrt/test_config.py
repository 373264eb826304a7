"""Settings that cannot be meant are refused when they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core.device import TensorRTRTXConfig, TrtexecConfig, device_kind_names, find_device_kind, load_devices
from embedl_hub.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cli_args": "--verbose"}, "tuple of strings"),
        ({"cli_args": ("--fp16",)}, "decided by precision"),
        ({"cli_args": ("--useCudaGraph",)}, "decided by cuda_graph"),
        ({"cli_args": ("--saveEngine=x",)}, "decided by the artifact folder"),
        ({"cli_args": ("--builderOptimizationLevel", "5")}, "--option=value"),
        ({"precision": "int4"}, "fp16, bf16, int8, fp8, best"),
        ({"opt_shapes": {"x": (0, 3)}}, "at least 1"),
        ({"opt_shapes": {"x": "1x3"}}, "at least 1"),
        ({"opt_shapes": ((1, 3),)}, "mapping"),
        ({"min_shapes": {"x": (1, 3)}}, "opt_shapes does not"),
        ({"workspace_mib": 0}, "at least 1"),
        ({"iterations": 0}, "at least 1"),
        ({"gpu": -1}, "at least 0"),
    ],
)
def test_wrong_settings_of_trtexec(settings: dict[str, Any], message: str) -> None:
    """Each names what would have been right."""
    with pytest.raises(ConfigError, match=message):
        TrtexecConfig(**settings)


@pytest.mark.parametrize("targets", [(), ("SM70",), "SM86", ("SM86", "sm89")])
def test_unknown_generations(targets: Any) -> None:
    """The known ones are listed."""
    with pytest.raises(ConfigError, match="SM75, SM80, SM86, SM89, SM120, SM121"):
        TensorRTRTXConfig(targets)


def test_hopper_is_not_offered() -> None:
    """And it is said who serves it."""
    with pytest.raises(ConfigError, match=r"Hopper \(SM90\); use trtexec"):
        TensorRTRTXConfig(("SM90",))


def test_devices_of_both_kinds_can_be_written_down(tmp_path: Path) -> None:
    """In the file of devices, shapes included; the kinds register themselves."""
    assert {"trtexec", "tensorrt_rtx"} <= set(device_kind_names())
    path = tmp_path / "devices.toml"
    path.write_text(
        """
        [devices.orin]
        type = "trtexec"
        ssh = { host = "orin.lan" }
        config = { precision = "fp16", opt_shapes = { image = [1, 3, 224, 224] }, cli_args = ["--useDLACore=0"] }
        [devices.here]
        type = "trtexec"
        runner = "local"
        [devices.ada]
        type = "tensorrt-rtx"
        config = { compute_capabilities = ["SM89"] }
        """
    )
    orin, here, ada = load_devices(path)
    assert orin.provider_config == TrtexecConfig(
        precision="fp16", opt_shapes={"image": [1, 3, 224, 224]}, cli_args=("--useDLACore=0",)
    )
    assert here.runner is not None
    assert ada.provider_config == TensorRTRTXConfig(("SM89",))
    assert find_device_kind("trtexec").checks(orin) == {"trtexec": ["trtexec", "--help"]}
