"""Whatever the network, the transformed one computes the same, and nothing breaks."""

import pytest
import torch
from support.deploy_random import random_network
from support.sampled import sampled

from embedl_deploy import transform
from embedl_deploy.lattice import LATTICE_PATTERNS, check
from embedl_deploy.tensorrt import TENSORRT_PATTERNS
from embedl_deploy.testing import assert_same_outputs

TOLERANCE = 1e-4
SEEDS = 500
BATCH = 25
QUICK = 150


def batches(seeds: int) -> list[object]:
    """Return the first seed of each batch; most are for ./test --all."""
    return sampled(range(0, seeds, BATCH), *range(0, QUICK, BATCH))


@pytest.mark.parametrize("first", batches(SEEDS))
def test_random_networks(first: int) -> None:
    """500 seeds in batches: outputs equal on the example and on other inputs, the given model untouched."""
    for seed in range(first, first + BATCH):
        model, x = random_network(seed)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        result = transform(model, (x,), TENSORRT_PATTERNS)
        assert result.report.proof is not None, seed
        assert not result.report.proof.fault, seed
        assert result.report.proof.relative_error <= TOLERANCE, seed
        assert not {"Conv2d", "Linear", "LayerNorm", "ConvTranspose2d"} & set(result.report.left), seed
        assert_same_outputs(model, result.model, (torch.randn_like(x),), tolerance=TOLERANCE)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), seed


@pytest.mark.parametrize("first", sampled(range(0, 100, BATCH), 0))
def test_random_networks_for_lattice(first: int) -> None:
    """The exact rewrites are exact on 100 seeds, and every convolution ends inside the set."""
    for seed in range(first, first + BATCH):
        model, x = random_network(seed)
        result = transform(model, (x,), LATTICE_PATTERNS)
        assert result.report.proof is not None, seed
        assert not result.report.proof.fault, seed
        assert result.report.proof.relative_error <= TOLERANCE, seed
        assert not [layer for layer in check(result.model, (x,)).outside if layer.kind == "Conv2d"], seed
