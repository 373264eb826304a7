"""The ways in which a check ends without an answer. Imports nothing of the hub: pytest loads it everywhere."""


class NotMeasuredError(Exception):
    """Nothing was measured: the rig is at fault, or what it was asked. It says nothing of the model.

    pytest reports it as an error of the test, not as a failure: ``<error>`` in JUnit.
    """

    __module__ = "embedl_hub.pytest_plugin"


class CannotTellWarning(UserWarning):
    """A check could not tell whether the model is worse; ``strict`` makes it a failure."""

    __module__ = "embedl_hub.pytest_plugin"
