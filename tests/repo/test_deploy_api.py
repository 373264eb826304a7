"""What deploy promises: a light import, separate distributions of one version."""

import importlib.metadata
import subprocess
import sys

import pytest

import embedl_deploy


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


@pytest.mark.parametrize(
    "name",
    ["edgeproof-deploy", "edgeproof-deploy-tensorrt", "edgeproof-deploy-lattice", "edgeproof-deploy-onnxruntime"],
)
def test_distributions_have_one_version(name: str) -> None:
    """Core and backends are released together."""
    assert importlib.metadata.version(name) == embedl_deploy.__version__
