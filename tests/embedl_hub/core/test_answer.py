"""JSON of a board: what is none, and what would take more than it is worth, is one error."""

import subprocess
import sys

import pytest

from embedl_hub.core.answer import Form, check_form, parse_answer

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
        "import resource; from embedl_hub.core.answer import Form, check_form, parse_answer; parse_answer('[]')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"value = parse_answer({worst})\n"
        "print(len(value), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    count, megabytes = map(int, done.stdout.split())
    assert count == 999_001
    assert megabytes < 256


FORM: Form = {"name": str, "times": [float], "more?": {"*": {"count": int}}, "any?": object, "flag?": bool}
GOOD = {"name": "x", "times": [1, 2.5], "more": {"a": {"count": 1, "else": []}}, "flag": True, "unknown": {}}


def test_a_form_names_what_is_wrong() -> None:
    """The place, what is there and what should be."""
    check_form(GOOD, FORM)
    check_form({**GOOD, "more": None}, FORM)
    for change, says in {
        "name": "it has no 'name'", "times": "it.times is None|it has no 'times'",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=says):
            check_form({**GOOD, change: None}, FORM)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 1}, "it.name is 1, not str"),
        ({"times": [1, True]}, r"it.times\[1\] is True, not float"),
        ({"times": [1e999]}, r"it.times\[0\] is inf, not float"),
        ({"times": [10**400]}, r"it.times\[0\] is 1000"),
        ({"times": {}}, "it.times is {}, not a list"),
        ({"more": []}, r"it.more is \[\], not an object"),
        ({"more": {"a": {"count": 1.5}}}, "it.more.a.count is 1.5, not int"),
        ({"flag": 1}, "it.flag is 1, not bool"),
    ],
)
def test_a_lie_is_found(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_form({**GOOD, **change}, FORM)
