"""Four tests of a model, one line each. On main they record the baseline; a branch is held against it."""

import pytest

from embedl_hub.pytest_plugin import assert_accuracy, assert_fits, assert_no_slower, assert_placed

MODEL = "model.onnx"

# The device of --hub-device, or the only one of the store, else this machine; a marker `board` selects by what it is.
pytestmark = pytest.mark.usefixtures("board")


def test_it_is_no_slower() -> None:
    """Measured in turns with the baseline, on the same device."""
    assert_no_slower(MODEL, baseline="stage=main", tolerance=0.25, samples=50)


def test_it_answers_as_well() -> None:
    """On the device, not in the framework it was trained in."""
    assert_accuracy(MODEL, "data.npz", "labels.npy", at_least=0.95)


def test_it_fits() -> None:
    """Into what the product has, whatever the machine that tests it has."""
    assert_fits(MODEL, memory="256MB")


def test_it_runs_where_it_should() -> None:
    """No layer falls back in silence; on a GPU or NPU name that instead."""
    assert_placed(MODEL, unit="CPU")
