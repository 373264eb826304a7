"""JSON of a board: what is none, and what would take more than it is worth, is one error."""

import subprocess
import sys

import pytest

from embedl_hub.core.answer import parse_answer

HOSTILE = {
    "deep lists": "[" * 100_000,
    "deep objects": '{"a":' * 50_000,
    "many lists": "[" + "[]," * 5_000_000 + "0]",
    "many objects": "[" + '{"":0},' * 2_000_000 + "0]",
    "many numbers": "[" + "1.5," * 4_000_000 + "0]",
    "many texts": "[" + '"ab",' * 3_000_000 + "0]",
    "long": '"' + "x" * (20 << 20) + '"',
    "a long number": "9" * 1_000_000,
    "nothing": "",
    "no JSON": "hello",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_worth_it_is_one_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_answer(text)
    assert len(str(caught.value)) < 300


def test_an_honest_answer_is_read() -> None:
    """The largest profile that anybody measures."""
    samples = [float(number) + 0.123456789 for number in range(200_000)]
    text = f'{{"samples_us": {samples}, "layers": {[[]] * 1000}}}'
    value = parse_answer(text)
    assert isinstance(value, dict)
    assert value["samples_us"] == samples
    assert parse_answer('"a\tb"', strict=False) == "a\tb"


def test_memory_stays_bounded() -> None:
    """The worst that passes the bounds, in a process that may have 256 MB more than an honest one."""
    worst = "'[' + '{\"a\":[0.5]},' * 99_000 + '\"ab\",' * 900_000 + '0]'"
    code = (
        "import resource; from embedl_hub.core.answer import parse_answer; parse_answer('[]')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"value = parse_answer({worst})\n"
        "print(len(value), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    count, megabytes = map(int, done.stdout.split())
    assert count == 999_001
    assert megabytes < 256
