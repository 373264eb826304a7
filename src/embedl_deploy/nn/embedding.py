"""Tables of an embedding in INT8."""

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.nn.quantizers import WeightQuantizer


class Int8Embedding(nn.Module):
    """An embedding whose table is kept in INT8, with a scale for each row; what it gives is float.

    Rows are looked up as integers and multiplied with their scales, in operators that every runtime has. The table is
    not trained further.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        table = embedding.weight.detach()
        quantizer = WeightQuantizer(NumberFormat(Precision.INT8), axis=0)
        quantizer.calibrate(table)
        self.register_buffer("codes", quantizer.codes(table).to(torch.int8))
        self.register_buffer("scales", quantizer.scale.to(table.dtype)[:, None])
        self.training = embedding.training

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Look rows up."""
        scales = functional.embedding(numbers, self.scales)
        return functional.embedding(numbers, self.codes).to(scales.dtype) * scales

    def extra_repr(self) -> str:
        """Name the size of the table."""
        return f"{self.codes.shape[0]}, {self.codes.shape[1]}"
