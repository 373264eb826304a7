"""What Vela writes: its estimate for each operator and for the whole, and why operators stay on the CPU."""

from __future__ import annotations

import csv
import io
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedl_hub.errors import ProfileError

_ON_CPU = re.compile(r"^Warning \(supported operators\) operator: \S+, ofm: '(.*)'\nReason: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Operator:
    """One operator of Vela's: several may stand for one of the model's."""

    name: str  # the tensor that it makes
    op_type: str  # what it computes
    source_op: str  # the operator of the model that it comes from
    is_on_npu: bool
    cycles: float  # as estimated; none for the CPU's
    macs: int


@dataclass(frozen=True)
class Estimate:
    """What Vela says of a model on one accelerator."""

    operators: tuple[Operator, ...]
    system_config: str
    memory_mode: str
    clock_hz: float
    cycles: float
    sram_kib: float
    flash_kib: float  # on the chip and off it
    dram_kib: float

    @property
    def on_cpu(self) -> tuple[Operator, ...]:
        """The operators that stay on the CPU."""
        return tuple(operator for operator in self.operators if not operator.is_on_npu)

    @property
    def latency_ms(self) -> float:
        """The time of the NPU's part."""
        return self.cycles / self.clock_hz * 1e3


def read_estimate(layers: str, summary: str) -> Estimate:
    """Return the estimate of two CSV files: one row for each operator, one row for all."""
    try:
        rows, (total,) = _rows(layers), _rows(summary)
        return Estimate(
            tuple(map(_operator, rows)),
            total["system_config"],
            total["memory_mode"],
            _number(total, "core_clock"),
            _number(total, "cycles_total"),
            _number(total, "sram_memory_used"),
            _number(total, "on_chip_flash_memory_used") + _number(total, "off_chip_flash_memory_used"),
            _number(total, "dram_memory_used"),
        )
    except (KeyError, ValueError, csv.Error) as error:
        raise ProfileError(
            f"Vela's report is not as version 5.2 writes it ({type(error).__name__}: {error}); compile again with it."
        ) from error


def read_reasons(printed: str) -> dict[str, str]:
    """Return why operators stay on the CPU, by the tensor that each makes."""
    return {name: reason.strip() for name, reason in _ON_CPU.findall(printed)}


def source_tensors(operators: Sequence[Operator], content: bytes) -> list[str | None]:
    """Return for each operator the tensor of the source model that it makes, or helps to make.

    Vela takes an operator apart into several, one after the other, and names what is between them itself; the last one
    makes the tensor that the source has. A TFLite file holds a name with its length before it and a zero behind.
    """
    found: list[str | None] = []
    last: tuple[str, str] | None = None
    for operator in reversed(operators):
        name = operator.name.encode()
        if struct.pack("<I", len(name)) + name + b"\0" in content:
            last = (operator.source_op, operator.name)
        found.append(last[1] if last is not None and last[0] == operator.source_op else None)
    return found[::-1]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _operator(row: Mapping[str, str]) -> Operator:
    return Operator(
        row["Name"], row["NNG Operator"], row["Original Operator"], row["Target"] == "NPU",
        _number(row, "Op Cycles"), int(_number(row, "MAC Count")),
    )  # fmt: skip


def _number(row: Mapping[str, str], name: str) -> float:
    value = float(row[name])
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {row[name]}")
    return value
