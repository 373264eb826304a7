"""The state of a quantized model in a safetensors file: tensors as such, the rest as text beside them."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from embedl_deploy._extras import need
from embedl_deploy.errors import QuantizationError
from embedl_deploy.quantize._quantization import quantization_of
from embedl_device.readers import parse_json

_KEY = "embedl_deploy.quantizers"


def save_state(model: nn.Module, path: str | Path) -> Path:
    """Write weights, scales, formats and modes of a quantized model to a safetensors file, and return its path.

    Raises:
        MissingExtraError: safetensors is not installed.
        QuantizationError: The model has no pairs.
    """
    quantization_of(model)
    library = need("safetensors.torch")
    tensors: dict[str, torch.Tensor] = {}
    words: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            # Shared scales are written once for each name: a reader of the file need not know who shares.
            tensors[name] = value.detach().contiguous().clone()
        else:
            words[name] = value
    library.save_file(tensors, str(path), metadata={_KEY: json.dumps(words)})
    return Path(path)


def load_state(model: nn.Module, path: str | Path) -> None:
    """Read a file of `save_state` into a model with the same pairs, calibrated or not, in place.

    Raises:
        MissingExtraError: safetensors is not installed.
        QuantizationError: The model has no pairs, or the file is of another model or no such file.
    """
    quantization_of(model)
    library = need("safetensors")
    if not Path(path).is_file():
        raise QuantizationError(f"There is no file {str(path)!r}; save_state writes one.")
    try:
        with library.safe_open(str(path), "pt") as file:
            found: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            words = parse_json((file.metadata() or {})[_KEY].encode())
    except (OSError, KeyError, ValueError, library.SafetensorError) as exc:
        raise QuantizationError(f"'{path}' is no state of a quantized model; save_state writes one.") from exc
    try:
        model.load_state_dict(found | words)
    except RuntimeError as exc:
        raise QuantizationError(f"the state in '{path}' is of another model: {exc}") from exc
