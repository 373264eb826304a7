"""Devices by what they are: what a query says, whom it means, and why not."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_hub.accelerators import KINDS
from embedl_hub.core.device import Clause, DeviceQuery, DeviceSpec
from embedl_hub.core.device._query import SIGNS, UNITS, same_size
from embedl_hub.errors import ConfigError, UnknownDeviceError

PI = DeviceSpec(
    device_name="Raspberry Pi 4", os="Debian GNU/Linux 12 (bookworm)", architecture="aarch64", cpu="Cortex-A72",
    cores=4, memory_bytes=3_884_360 * 1024, versions={"python": "3.11.2", "kernel": "6.1.0-rpi7-rpi-v8"},
)  # fmt: skip
JETSON = DeviceSpec(
    device_name="Jetson Orin Nano", os="Ubuntu 22.04.3 LTS", architecture="aarch64", cpu="Cortex-A78AE", cores=6,
    memory_bytes=7_802_000 * 1024, accelerators=("NVIDIA Tegra",), versions={"l4t": "# R36 (release), REVISION: 3.0"},
)  # fmt: skip
HAILO = dataclasses.replace(PI, accelerators=("hailo0",))
UNKNOWN = DeviceSpec()

NUMBERED = ("memory", "cores", "versions.python")
NAMES = ("name", "type", "arch", "os", "cpu", "accelerator")


def meant(query: str, spec: DeviceSpec = PI, name: str = "pi-1", provider_type: str = "embedl_onnxruntime") -> bool:
    return DeviceQuery.parse(query).matches(name, provider_type, spec)


@pytest.mark.parametrize(
    ("query", "spec"),
    [
        ("arch=aarch64, memory>=4GB", PI),
        ("arch=arm64", PI),
        ("arch=aarch64, accelerator=gpu, memory>=4GB", JETSON),
        ("memory=4GB, memory=4GiB, memory<=4GB", PI),
        ("memory=8GB, memory > 4GB, memory<16gib", JETSON),
        ("cores=4, cores>3, cores<5, cores>=4, cores<=4, cores!=5", PI),
        ("os=debian, os!=ubuntu, cpu=a72", PI),
        ("os='Debian GNU/Linux 12 (bookworm)'", PI),
        ("accelerator=none, accelerator!=gpu", PI),
        ("accelerator=tegra, accelerator!=npu, accelerator!=none", JETSON),
        ("accelerator=npu, accelerator=hailo, accelerator!=gpu", HAILO),
        ("versions.python=3.11, versions.python>=3.11, versions.python<3.12, versions.python!=3.10", PI),
        ("versions.python>3.9.18, versions.kernel>=6.1", PI),
        ("versions.l4t>=36, versions.l4t=revision", JETSON),
        ("name=pi-*, name!=jetson-*, type=embedl-onnxruntime, type!=local", PI),
        ("name=*", UNKNOWN),
    ],
)
def test_what_is_meant(query: str, spec: DeviceSpec) -> None:
    """Every clause holds, in the words people use."""
    assert DeviceQuery.parse(query).why_not("pi-1", "embedl_onnxruntime", spec) == ""


@pytest.mark.parametrize(
    ("query", "spec", "reason"),
    [
        ("arch=x86_64", PI, "its arch is aarch64, wanted is arch=x86_64"),
        ("memory>=8GB", PI, "its memory is 3.98 GB, wanted is memory>=8GB"),
        ("memory>4GB", PI, "its memory is 3.98 GB"),
        ("memory!=4GB", PI, "its memory is 3.98 GB"),
        ("accelerator=gpu", PI, "its accelerator is none"),
        ("accelerator=gpu", HAILO, "its accelerator is hailo0"),
        ("accelerator!=gpu", JETSON, "its accelerator is NVIDIA Tegra"),
        ("versions.python>3.11", PI, "its versions.python is 3.11.2"),
        ("versions.tensorrt>=10", PI, "its versions.tensorrt is not known"),
        ("name=jetson-*", PI, "its name is pi-1"),
        ("name=pi-[0-9]", PI, "its name is pi-1"),
        ("cores>4, arch=x86_64", PI, "its cores is 4"),
        ("arch=aarch64", UNKNOWN, "its arch is not known (ask it: embedl-hub device health pi-1)"),
        ("arch!=aarch64", UNKNOWN, "its arch is not known"),
        ("accelerator=none", UNKNOWN, "its accelerator is not known"),
    ],
)
def test_why_a_device_is_not_meant(query: str, spec: DeviceSpec, reason: str) -> None:
    """The first clause that does not hold, with what the device has; what is not known is never met."""
    said = DeviceQuery.parse(query).why_not("pi-1", "embedl_onnxruntime", spec)
    assert said.startswith(reason)
    assert not meant(query, spec)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", ("empty", "name=*")),
        ("color=red", ("'color'", "'accelerator'", "'versions.NAME'")),
        ("versions.=3", ("'versions.'", "'versions.NAME'")),
        ("arch>aarch64", ("'arch'", "'>'", "= !=")),
        ("arch=>aarch64", ("'=>'", ">= <= != = > <")),
        ("memory>=4", ("'4'", "'GB'", "'MiB'")),
        ("memory>=4XB", ("'4XB'", "'GB'")),
        ("memory>=lots", ("4GB", "'lots'")),
        ("cores>=four", ("whole number", "'four'")),
        ("cores>=", ("cores>= lacks its value",)),
        ("just words", ("cannot be read at 'just words'", "arch=aarch64")),
        ("arch=aarch64, ???", ("cannot be read at '???'",)),
        ("os='never closed", ("cannot be read",)),
    ],
)
def test_a_slip_is_answered_with_what_is_known(query: str, words: tuple[str, ...]) -> None:
    """Names, comparisons and units."""
    with pytest.raises(ConfigError) as caught:
        DeviceQuery.parse(query)
    for word in words:
        assert word in str(caught.value)


def test_no_match_says_why_for_each_device() -> None:
    """So that the user sees which clause to change."""
    query = DeviceQuery.parse("memory>=16GB")
    with pytest.raises(UnknownDeviceError) as caught:
        query.select({"pi": ("local", PI), "jetson": ("local", JETSON), "new": ("local", UNKNOWN)})
    assert "No device is 'memory>=16GB'" in str(caught.value)
    assert "\n  pi: its memory is 3.98 GB" in str(caught.value)
    assert "\n  jetson: its memory is 7.99 GB" in str(caught.value)
    assert "\n  new: its memory is not known" in str(caught.value)
    with pytest.raises(UnknownDeviceError, match="there are no devices"):
        query.select({})
    found = DeviceQuery.parse("memory>=8GB").select({"pi": ("local", PI), "jetson": ("local", JETSON)})
    assert found == ["jetson"]


def test_what_needs_no_asking() -> None:
    """A name and a type are known of every device."""
    query = DeviceQuery.parse("name=pi-*, arch=aarch64, type=local")
    assert query.without_spec == DeviceQuery.parse("name=pi-*, type=local")


VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).map(str.strip).filter(bool)


@st.composite
def clauses(draw: st.DrawFn) -> Clause:
    """Any clause that can be written."""
    name = draw(st.sampled_from((*NAMES, *NUMBERED)))
    if name == "memory":
        unit = draw(st.sampled_from(list(UNITS)))
        return Clause(name, draw(st.sampled_from(SIGNS)), f"{draw(st.integers(0, 10**6))}{unit}")
    if name == "cores":
        return Clause(name, draw(st.sampled_from(SIGNS)), str(draw(st.integers(0, 10**6))))
    value = draw(VALUES.filter(lambda text: not ("'" in text and '"' in text)))
    return Clause(name, draw(st.sampled_from(SIGNS if name in NUMBERED else SIGNS[2:4])), value)


@given(st.lists(clauses(), min_size=1, max_size=5))
def test_what_is_written_is_read_again(parts: list[Clause]) -> None:
    """A query is its text, whatever the values hold."""
    query = DeviceQuery(tuple(parts))
    assert DeviceQuery.parse(str(query)) == query


@given(st.text())
def test_any_text_is_a_query_or_a_config_error(text: str) -> None:
    """Nothing else escapes, and what was read can be asked."""
    try:
        query = DeviceQuery.parse(text)
    except ConfigError:
        return
    assert isinstance(query.matches("pi", "local", PI), bool)


@given(st.sampled_from(NUMBERED), st.integers(1, 10**12), st.integers(1, 64), st.integers(0, 30))
def test_signs_do_not_contradict_each_other(name: str, memory: int, wanted: int, minor: int) -> None:
    """Exactly one of less, the same and more holds; the other signs follow from these."""
    spec = dataclasses.replace(PI, memory_bytes=memory, cores=memory % 97, versions={"python": f"3.{minor}"})
    value = {"memory": f"{wanted}GB", "cores": str(wanted), "versions.python": f"3.{wanted % 31}"}[name]
    holds = {sign: DeviceQuery((Clause(name, sign, value),)).matches("pi", "local", spec) for sign in SIGNS}
    assert [holds["<"], holds["="], holds[">"]].count(True) == 1
    assert holds["!="] == (not holds["="])
    assert holds["<="] == (holds["<"] or holds["="])
    assert holds[">="] == (holds[">"] or holds["="])


def test_sizes_on_sale_are_told_apart() -> None:
    """What the kernel keeps for itself is forgiven; the next size is another size."""
    sizes = [gib << 30 for gib in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    for size, larger in itertools.pairwise(sizes):
        assert same_size(int(size * 0.92), size)
        assert not same_size(size, larger)
        assert not same_size(int(size * 1.0), int(larger * 0.92))


def test_every_kind_of_accelerator_is_documented() -> None:
    """A kind means at least its own name, and its words stand in the how-to."""
    page = (Path(__file__).parents[4] / "docs/how-to/keep-boards-healthy.md").read_text()
    for kind, words in KINDS.items():
        assert kind in words
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` | {kind},")]
        assert all(word in row or word in KINDS["tpu"] for word in words)


def test_every_unit_is_documented() -> None:
    """So that 4GB need not be guessed."""
    page = (Path(__file__).parents[4] / "docs/how-to/keep-boards-healthy.md").read_text()
    assert all(f"`{unit}`" in page for unit in UNITS)
