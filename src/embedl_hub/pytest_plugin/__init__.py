"""Tests of models in one line each: what a pytest suite imports. pytest finds the plugin itself by its entry point.

from embedl_hub.pytest_plugin import assert_no_slower

def test_speed(board):
assert_no_slower("model.onnx", baseline="stage=main")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedl_hub.pytest_plugin._ends import CannotTellWarning, NotMeasuredError

if TYPE_CHECKING:
    from embedl_hub.pytest_plugin._accuracy import assert_accuracy
    from embedl_hub.pytest_plugin._placement import assert_fits, assert_placed
    from embedl_hub.pytest_plugin._speed import assert_no_slower

__all__ = [
    "CannotTellWarning",
    "NotMeasuredError",
    "assert_accuracy",
    "assert_fits",
    "assert_no_slower",
    "assert_placed",
]

_PLACES = {
    "assert_accuracy": "_accuracy",
    "assert_fits": "_placement",
    "assert_no_slower": "_speed",
    "assert_placed": "_placement",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the names of this face
    # pytest loads this face in every project where the hub is installed; the checks are imported on use.
    if name in _PLACES:
        import importlib  # noqa: PLC0415 - only on use

        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
