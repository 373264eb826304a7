"""A file's requirement against the kernels it meets."""

import pytest

from embedl_kernels import EXACT_U8S8, families, get_family, mismatch


@pytest.mark.parametrize("requires", [EXACT_U8S8, f"opset=17, {EXACT_U8S8}"])
def test_a_requirement_is_held_against_every_family(requires: str) -> None:
    """Only those that saturate break it; the sentence has the cause and the command."""
    for family in families():
        said = mismatch(requires, family)
        assert bool(said) == family.saturates
        if said:
            assert family.cause in said
            assert "embedl-deploy relower FILE PORTABLE --dialect onnxruntime-x86" in said


@pytest.mark.parametrize("requires", ["", "exact", "u8s8=any"])
def test_what_requires_nothing_of_the_kind_runs_anywhere(requires: str) -> None:
    assert mismatch(requires, get_family("x86-avx2")) == ""
    assert mismatch(EXACT_U8S8, None) == ""
