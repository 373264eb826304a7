"""A structural copy shares weights and nothing else."""

import torch
from support.deploy_nets import ConvBNAct, Residual, image
from torch import nn

from embedl_deploy._graph.clone import clone_module


def test_parameters_are_the_same_objects() -> None:
    """No weight is copied."""
    model = Residual()
    copy = clone_module(model)
    assert all(a is b for a, b in zip(model.parameters(), copy.parameters(), strict=True))


def test_modes_and_statistics_are_its_own() -> None:
    """Training the copy's batch norm leaves the original's statistics alone."""
    model = ConvBNAct()
    copy = clone_module(model)
    before = {name: value.clone() for name, value in model.named_buffers()}
    copy(image())
    copy.eval()
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())


def test_reused_and_tied_modules_stay_so() -> None:
    """One module under two names is one module in the copy."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    copy = clone_module(model)
    assert copy.get_submodule("0") is copy.get_submodule("2")
    assert copy.get_submodule("0") is not shared


def test_references_outside_the_registry_follow() -> None:
    """Modules in plain lists and patched methods point into the copy."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.order = [self.a]
            self.named = {"a": self.a}
            self.pair = (self.a, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.order[0](x)
            return out

    model = Model()
    model.again = model.forward  # type: ignore[assignment]
    copy = clone_module(model)
    assert copy.order[0] is copy.a  # type: ignore[index]
    assert copy.named["a"] is copy.a  # type: ignore[index]
    assert copy.pair[0] is copy.a  # type: ignore[index]
    assert copy.again.__self__ is copy  # type: ignore[union-attr]
