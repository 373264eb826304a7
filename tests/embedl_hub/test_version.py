"""The one place that holds the version."""

import importlib.metadata

import embedl_hub


def test_installed_version_is_the_source_version() -> None:
    """The distribution takes its version from the package."""
    assert importlib.metadata.version("edgeproof-hub") == embedl_hub.__version__
