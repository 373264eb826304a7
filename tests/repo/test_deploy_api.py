"""What deploy promises: its public names, a light import, separate distributions."""

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import embedl_deploy

FACES = {
    "embedl_deploy": ["Plan", "TransformResult", "__version__", "apply_plan", "make_plan", "transform"],
    "embedl_deploy.backend": [
        "Backend", "BackendWarning", "discover_backends", "get_backend", "reset_backends", "set_backend",
    ],
    "embedl_deploy.pattern": [
        "Call", "Chain", "ELEMENTWISE", "Expand", "Fork", "Kind", "Match", "Maybe", "Op", "Part", "PassThrough",
        "Pattern", "Phase", "Point", "Refusal", "Repeat", "Replacement", "Shape", "Value", "View", "is_pattern",
    ],
    "embedl_deploy.testing": ["assert_same_outputs", "check_backend", "check_pattern"],
    "embedl_deploy.errors": [
        "BackendSelectionError", "DeployError", "InputError", "PatternError", "PlanError", "TraceError",
        "UnknownBackendError", "known",
    ],
}  # fmt: skip


@pytest.mark.parametrize("face", FACES)
def test_public_names(face: str) -> None:
    """A change of the public surface is a decision."""
    assert sorted(importlib.import_module(face).__all__) == sorted(FACES[face])


def test_every_public_name_exists() -> None:
    """Nothing is promised that is not there."""
    for face in (
        *FACES,
        "embedl_deploy.nn",
        "embedl_deploy.patterns",
        "embedl_deploy.tensorrt",
        "embedl_deploy.lattice",
    ):
        module = importlib.import_module(face)
        assert not [name for name in module.__all__ if not hasattr(module, name)]


def test_importing_wakes_nothing() -> None:
    """Importing the faces loads neither a test library nor a backend nor torch's compiler."""
    code = (
        "import sys, torch; before = set(sys.modules); import embedl_deploy, embedl_deploy.backend;"
        "new = set(sys.modules) - before;"
        "print(sorted(n for n in new if n.split('.')[0] in ('torchvision', 'timm', 'transformers', 'onnx', 'numpy')"
        " or n.startswith(('torch._inductor', 'torch._dynamo.', 'embedl_deploy.tensorrt', 'embedl_deploy.lattice'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["edgeproof-deploy", "edgeproof-deploy-tensorrt", "edgeproof-deploy-lattice"])
def test_distributions_have_one_version(name: str) -> None:
    """Core and backends are released together."""
    assert importlib.metadata.version(name) == embedl_deploy.__version__
