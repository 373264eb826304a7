"""One Q/DQ file per runtime, from one calibration: dialects, and the way from one to another.

The canonical form, which the exporter writes and `lower` reads:

- Operators are float. A quantized value is ``QuantizeLinear`` then ``DequantizeLinear`` on it; scale and zero point are
  initializers. An edge without the pair reads the float value, so placement is per edge.
- Activations are per tensor: int8, uint8, int16, uint16 or float8e4m3fn.
- Weights are an integer (or float8) initializer with a ``DequantizeLinear``, per tensor or per channel (``axis``), or
  int4 per block (``block_size``); float weights behind Q and DQ are read as well.
- Biases are float initializers.
- ``metadata_props["edgeproof.ranges"]`` is JSON, ``{tensor name: [min, max]}``, for every observed tensor, quantized
  or not, so that lowering can add the Q that another dialect wants.
- ``metadata_props["edgeproof.modules"]`` is JSON, ``{node name: [qualified names of its modules]}``, the main one
  first; beside it stand ``edgeproof.precisions``, ``{module: number format}``, and ``edgeproof.sensitivity``, what
  quantizing each costs, all in the version that ``edgeproof.format`` tells. Lowering writes the first two anew.
- ``metadata_props["edgeproof.labels"]`` is JSON, ``{label of a stub in the torch model: tensor name}``.

Tensor and node names are kept by lowering. What a dialect cannot hold (scales of another sign, float biases, the
placement itself) is kept in ``metadata_props["edgeproof.origin"]``, so that lowering back gives the same bits; what was
given up is told in ``metadata_props["edgeproof.notes"]``, a JSON list of lines.
"""

from typing import TYPE_CHECKING

from embedl_deploy._extras import lazy
from embedl_deploy.dialect._dialects import (
    EXECUTORCH,
    LITERT,
    ONNXRUNTIME_ARM,
    ONNXRUNTIME_X86,
    ONNXRUNTIME_X86_VNNI,
    OPENVINO,
    TENSORRT,
    Confirm,
    Contract,
    Dialect,
    Verdict,
    dialects,
    get_dialect,
    register_dialect,
)

if TYPE_CHECKING:
    from embedl_deploy.dialect._check import check
    from embedl_deploy.dialect._device import dialect_for, family_for, family_here
    from embedl_deploy.dialect._files import input_names, notes_of
    from embedl_deploy.dialect._lower import Relowered, lower, relower
    from embedl_deploy.dialect._portable import RemedyRow, remedies_of
    from embedl_deploy.dialect._tables import Condition, Rule, RuleTable, get_table, known_versions, read_table

__getattr__ = lazy(
    __name__, _check="check", _device="dialect_for family_for family_here", _files="input_names notes_of",
    _lower="Relowered lower relower", _portable="RemedyRow remedies_of",
    _tables="Condition Rule RuleTable get_table known_versions read_table",
)  # fmt: skip

__all__ = [
    "EXECUTORCH",
    "LITERT",
    "ONNXRUNTIME_ARM",
    "ONNXRUNTIME_X86",
    "ONNXRUNTIME_X86_VNNI",
    "OPENVINO",
    "TENSORRT",
    "Condition",
    "Confirm",
    "Contract",
    "Dialect",
    "Relowered",
    "RemedyRow",
    "Rule",
    "RuleTable",
    "Verdict",
    "check",
    "dialect_for",
    "dialects",
    "family_for",
    "family_here",
    "get_dialect",
    "get_table",
    "input_names",
    "known_versions",
    "lower",
    "notes_of",
    "read_table",
    "register_dialect",
    "relower",
    "remedies_of",
]
