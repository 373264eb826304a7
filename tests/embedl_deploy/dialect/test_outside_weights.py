"""Weights beside a model's file: from inside its folder alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.models import residual_net
from support.outside import HOSTILE, write_hostile

from embedl_deploy.dialect._files import load
from embedl_deploy.errors import ModelFileError


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_place_is_refused(name: str, tmp_path: Path) -> None:
    """Every command reads a model by this function."""
    facts, words = HOSTILE[name]
    with pytest.raises(ModelFileError, match=words) as caught:
        load(write_hostile(tmp_path / "model", facts))
    assert "\n" not in str(caught.value)


def test_good_weights_are_brought(tmp_path: Path) -> None:
    """The numbers are those that were written."""
    onnx.save(residual_net(), tmp_path / "n.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    found, wanted = load(tmp_path / "n.onnx").graph.initializer, residual_net().graph.initializer
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
