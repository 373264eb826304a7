"""From ranges to the number formats of a target's file, and to the weights that it can have."""

from dataclasses import dataclass, replace

from torch import fx

from embedl_deploy._groups import Groups
from embedl_deploy.dialect import Dialect, get_dialect
from embedl_deploy.dialect._float32 import below, exact_additions, float32
from embedl_deploy.nn import Mode, NumberFormat, QuantStub
from embedl_deploy.nn.number import Precision
from embedl_deploy.nn.quantizers import scale_of
from embedl_deploy.quantize._insert import boundary_stubs, layers_of
from embedl_deploy.quantize._placement import Boundary
from embedl_deploy.quantize._quantization import quantization_of


@dataclass(frozen=True)
class _Format:
    """A number format with its scale."""

    form: NumberFormat
    scale: float
    zero_point: float


def settle_formats(model: fx.GraphModule) -> None:
    """Give every pair of a calibrated model the format that its target's file has, in place.

    Values of one group get the widest of their ranges.
    """
    record = quantization_of(model)
    placement = record.placement
    dialect = get_dialect(placement.dialect) if placement.dialect else None
    precision = record.config.activation.precision
    symmetric = record.config.activation.symmetric
    signed = record.symmetric if symmetric is None and dialect is None else bool(symmetric)
    if dialect is not None and not dialect.zero_point:
        signed = True
    form = NumberFormat(precision, signed=signed or precision is Precision.FP8)
    found = {boundary.tensor: (boundary, stub) for boundary, _, stub in boundary_stubs(model, placement)}
    for _, stub in found.values():
        if stub.masked:
            stub.quantizes, stub.mode = False, Mode.FLOAT
    calibrated = [
        tensor for tensor, (_, stub) in found.items() if stub.calibrated and stub.fixed is None and not stub.masked
    ]
    groups: Groups[str] = Groups()
    for tensor in calibrated:
        groups.join(found[tensor][0].group, tensor)
    formats: dict[str, _Format] = {}
    members: dict[str, list[str]] = {}
    for names in groups.sets(calibrated):
        chosen = _format([found[name] for name in names], form, dialect)
        formats |= dict.fromkeys(names, chosen)
        members |= dict.fromkeys(names, names)
    if dialect is not None and placement.dialect in placement.variants:
        scales = {tensor: float32(chosen.scale) for tensor, chosen in formats.items()}
        additions = placement.variants[placement.dialect].additions
        known = (each for each in additions if {*each.inputs, each.output} <= set(scales))
        # What two sums bind is told in the notes of the file.
        list(exact_additions(known, scales, members))
        formats = {tensor: replace(chosen, scale=scales[tensor]) for tensor, chosen in formats.items()}
    for tensor, chosen in formats.items():
        found[tensor][1].set_format(chosen.form, chosen.scale, chosen.zero_point)
    for _, layer in layers_of(model):
        layer.rounds_bias = dialect is None or dialect.integer_bias


def _format(members: list[tuple[Boundary, QuantStub]], form: NumberFormat, dialect: Dialect | None) -> _Format:
    """Choose the format of values that have one scale."""
    ranges = [stub.current_bounds() for _, stub in members]
    for (_, stub), (low, high) in zip(members, ranges, strict=True):
        stub.bounds.copy_(stub.bounds.new_tensor([low, high]))  # what training moved is the range from now on
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    integers = form.precision is not Precision.FP8
    prescribed = next((member.prescribed for member, _ in members if member.prescribed is not None), None)
    if prescribed is not None and form.precision is Precision.INT8:
        scale, zero = prescribed
        least, most = (-128 - zero) * scale, (127 - zero) * scale
        # A concat may put a sigmoid beside values that its format does not reach: all of them get a wider one.
        if all(member.prescribed == prescribed for member, _ in members) or (least <= low and high <= most + scale):
            return _Format(form, scale, 0.0 if form.signed else zero + 128.0)
        low, high = min(low, least), max(high, most)
    scale, zero_point = scale_of(low, high, form)
    if dialect is not None and integers and all(member.nonnegative for member, _ in members):
        form, zero_point = NumberFormat(form.precision, signed=False), 0.0
        tops = {member.top for member, _ in members}
        top = tops.pop() if len(tops) == 1 else None
        steps = int(form.high)
        if top is not None and float32(scale) * steps > top:
            scale = below(top, steps)
    return _Format(form, scale, zero_point)
