"""What a board is: said by the user, completed by the board."""

import platform

from embedl_hub.core.device import CommandRunner, DeviceSpec
from embedl_hub.core.device._spec import PROBE, parse_probe, spec_of


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
