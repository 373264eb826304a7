"""Attention as it is exported computes what torch computes."""

import pytest
import torch

from embedl_deploy.nn import ScaledDotProductAttention

CASES = {
    "plain": (ScaledDotProductAttention(), (2, 3, 5, 8), (2, 3, 7, 8), None),
    "scaled": (ScaledDotProductAttention(scale=0.3), (2, 3, 5, 8), (2, 3, 7, 8), None),
    "causal": (ScaledDotProductAttention(causal=True), (2, 3, 5, 8), (2, 3, 5, 8), None),
    "grouped": (ScaledDotProductAttention(grouped=True), (2, 6, 5, 8), (2, 2, 7, 8), None),
    "windows": (ScaledDotProductAttention(), (2, 4, 3, 5, 8), (2, 4, 3, 5, 8), None),
    "float mask": (ScaledDotProductAttention(), (2, 3, 5, 8), (2, 3, 7, 8), "float"),
    "bool mask": (ScaledDotProductAttention(), (2, 3, 5, 8), (2, 3, 7, 8), "bool"),
}


@pytest.mark.parametrize("name", CASES)
def test_written_out_attention_is_torchs(name: str) -> None:
    torch.manual_seed(0)
    module, queries, keys, kind = CASES[name]
    tensors = [torch.randn(queries), torch.randn(keys), torch.randn(keys)]
    if kind is not None:
        mask = torch.randn(queries[-2], keys[-2])
        if kind == "bool":
            mask[0] = -1  # the first query may read nothing
        tensors.append(mask if kind == "float" else mask > 0)
    expected = module.eval()(*tensors)
    program = torch.export.export(module, tuple(tensors))
    assert not any("scaled_dot_product" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*tensors), expected, rtol=0, atol=1e-5)
