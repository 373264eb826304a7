"""What a board is: said by the user, completed by the board."""

import platform
from pathlib import Path

import pytest

from embedl_hub.core.device import CommandRunner, DeviceSpec
from embedl_hub.core.device._device import PROBE, parse_probe, spec_of


def test_a_real_board_answers(runner: CommandRunner, tmp_path: object) -> None:
    """Architecture, cores, memory and versions come from the machine itself."""
    answer = parse_probe(runner.run(["sh", "-c", PROBE, "label", f"{tmp_path}/root dir"], hide=True).stdout)
    spec = spec_of(answer)

    assert answer["root"] == [f"{tmp_path}/root dir"]
    assert spec.architecture == platform.machine()
    assert spec.os
    assert spec.cores
    assert spec.cores >= 1
    assert spec.memory_bytes
    assert spec.memory_bytes > 1 << 27
    assert spec.versions["kernel"] == platform.release()
    assert set(spec.features) <= set(Path("/proc/cpuinfo").read_text().split())
    assert spec.features
    assert spec.kernel_family("onnxruntime")


def test_what_the_user_said_stays() -> None:
    """The board's answer fills gaps and overrides nothing."""
    said = DeviceSpec(device_name="Mine", cores=2, accelerators=("NPU",), versions={"kernel": "x"})
    spec = said.over(
        spec_of(
            parse_probe("model=Board\ncores=8\nmemory_kib=1024\naccelerator=GPU\nversion.kernel=6.1\nversion.l4t=36\n")
        )
    )

    assert (spec.device_name, spec.cores, spec.memory_bytes) == ("Mine", 2, 1 << 20)
    assert spec.accelerators == ("NPU",)
    assert spec.versions == {"kernel": "x", "l4t": "36"}


def test_every_line_may_be_missing_or_odd() -> None:
    """A small board leaves fields open instead of failing."""
    spec = spec_of(parse_probe("noise\ncores=\nmemory_kib=many\ncpu=\nos=a=b\n\n"))

    assert spec == DeviceSpec(os="a=b")


def test_several_accelerators_are_kept_in_order() -> None:
    """A key may come more than once."""
    spec = spec_of(parse_probe("accelerator=GPU 0\naccelerator=GPU 1\nversion.d=1\nversion.d=1\n"))

    assert spec.accelerators == ("GPU 0", "GPU 1")
    assert spec.versions == {"d": "1"}


@pytest.mark.parametrize(
    ("architecture", "flags", "family"),
    [
        ("x86_64", "fpu sse4_2 avx2 avx512f avx512_vnni", "x86-vnni"),
        ("x86_64", "fpu sse4_2 avx2 avx_vnni", "x86-vnni"),
        ("x86_64", "fpu sse4_2 avx2 avx512f", "x86-avx2"),
        ("x86_64", "fpu sse4_2", "x86-sse"),
        ("aarch64", "fp asimd asimddp i8mm", "arm-i8mm"),
        ("aarch64", "fp asimd asimddp", "arm-dotprod"),
        ("aarch64", "fp asimd crc32", "arm-neon"),
        ("riscv64", "", None),
        # Nobody read the processor's list: that it has none of them would be a guess.
        ("x86_64", "", None),
    ],
)
def test_features_give_the_family_of_kernels(architecture: str, flags: str, family: str | None) -> None:
    """As the system lists them, without what decides nothing."""
    spec = spec_of(parse_probe(f"architecture={architecture}\nfeatures={flags}\n"))
    assert spec.features == tuple(name for name in flags.split() if name not in {"fpu", "fp", "crc32"})
    assert spec.kernel_family("onnxruntime") == family
    assert DeviceSpec(features=("mine",)).over(spec).features == ("mine",)
