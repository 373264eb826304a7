"""Memory over the layers as a picture: steps in the order they run, weights as the ground, the peak marked."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.document import LayerMemory, MemoryProfile

_WIDTH, _HEIGHT = 960, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 28, 44
_TICKS = 5
_MB = 1e6
_MOST_LAYERS = 3000
_LINE = 16


def memory_picture(
    shown: MemoryProfile,
    predicted: MemoryProfile | None = None,
    *,
    memory_bytes: int | None = None,
    link: str | None = None,
) -> str:
    """Draw a profile as SVG; an empty text where there is nothing to draw.

    Args:
        shown: What is drawn as an area.
        predicted: What was predicted of it, drawn as a line.
        memory_bytes: A device's memory, drawn as a line where it is near.
        link: What a layer leads to, with ``{}`` for its number from 1; None for nothing.
    """
    rows = shown.rows[:_MOST_LAYERS]
    if not rows or shown.arena_bytes is None:
        return ""
    ground = shown.weights_bytes or 0
    top = ground + max(shown.arena_bytes, *(row.in_use_bytes + row.scratch_bytes for row in rows))
    if memory_bytes is not None and memory_bytes <= 2 * top:
        top = max(top, memory_bytes)
    scale = _Scale(len(rows), top * 1.05 or 1.0)
    parts = [*_axes(scale), _ground(scale, ground), _area(scale, rows, ground)]
    if predicted is not None and predicted.rows and len(predicted.rows) <= _MOST_LAYERS:
        parts.append(_line(_Scale(len(predicted.rows), scale.top), predicted.rows, predicted.weights_bytes or 0))
    parts.append(_level(scale, ground + shown.arena_bytes, "memory-arena", "#6b7280", "arena and weights"))
    if memory_bytes is not None and memory_bytes <= scale.top:
        parts.append(_level(scale, memory_bytes, "memory-device", "#b91c1c", "memory of the device"))
    parts += _peak(scale, rows, ground, shown.peak_layer)
    parts += _targets(scale, rows, ground, link)
    return (
        f'<svg class="memory" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12"><title>Memory over the layers</title>'
        f"{''.join(parts)}</svg>"
    )


class _Scale:
    def __init__(self, count: int, top: float) -> None:
        self.count, self.top = count, top

    def x(self, at: float) -> float:
        return round(_LEFT + at * (_WIDTH - _LEFT - _RIGHT) / self.count, 2)

    def y(self, size: float) -> float:
        return round(_HEIGHT - _BOTTOM - size * (_HEIGHT - _TOP - _BOTTOM) / self.top, 2)


def _axes(scale: _Scale) -> list[str]:
    step = _round_step(scale.top / _MB / _TICKS)
    found, value = [], 0.0
    while value * _MB <= scale.top:
        y = scale.y(value * _MB)
        found.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>')
        found.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#4b5563">{value:g}</text>')
        value += step
    found.append(f'<text x="8" y="{_TOP - 12}" fill="#4b5563">MB</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    words = f"{scale.count} layers, in the order they run"
    found.append(f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle" fill="#4b5563">{words}</text>')
    return found


def _round_step(least: float) -> float:
    size = 10.0**-6
    while True:
        for factor in (1, 2, 5):
            if size * factor >= least:
                return size * factor
        size *= 10


def _ground(scale: _Scale, ground: int) -> str:
    y, bottom = scale.y(ground), scale.y(0)
    return (
        f'<rect class="memory-weights" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{round(bottom - y, 2)}" fill="#c7d2fe"><title>weights outside the arena: {_mb(ground)} MB</title>'
        f"</rect>{_label(ground, y, bottom)}"
    )


def _label(ground: int, y: float, bottom: float) -> str:
    """Return what the ground is, where it is high enough to be written on."""
    if bottom - y < _LINE:
        return ""
    words = f"weights outside the arena: {_mb(ground)} MB"
    return f'<text x="{_LEFT + 8}" y="{round((y + bottom) / 2 + 4, 2)}" fill="#4b5563">{words}</text>'


def _steps(scale: _Scale, rows: Sequence[LayerMemory], ground: int) -> str:
    return " ".join(
        f"L{scale.x(at)},{scale.y(ground + row.in_use_bytes + row.scratch_bytes)} "
        f"L{scale.x(at + 1)},{scale.y(ground + row.in_use_bytes + row.scratch_bytes)}"
        for at, row in enumerate(rows)
    )


def _area(scale: _Scale, rows: Sequence[LayerMemory], ground: int) -> str:
    bottom = scale.y(ground)
    path = f"M{scale.x(0)},{bottom} {_steps(scale, rows, ground)} L{scale.x(len(rows))},{bottom} Z"
    return f'<path class="memory-area" d="{path}" fill="#93c5fd" stroke="#1d4ed8" stroke-width="1"/>'


def _line(scale: _Scale, rows: Sequence[LayerMemory], ground: int) -> str:
    path = "M" + _steps(scale, rows, ground).removeprefix("L")
    return (
        f'<path class="memory-predicted" d="{path}" fill="none" stroke="#b45309" stroke-width="1.5" '
        'stroke-dasharray="4 3"><title>predicted before it was sent</title></path>'
    )


def _level(scale: _Scale, size: int, name: str, color: str, words: str) -> str:
    y = scale.y(size)
    return (
        f'<line class="{name}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="{color}" '
        f'stroke-dasharray="6 4"/><text x="{_WIDTH - _RIGHT}" y="{y - 5}" text-anchor="end" fill="{color}">'
        f"{words}: {_mb(size)} MB</text>"
    )


def _peak(scale: _Scale, rows: Sequence[LayerMemory], ground: int, layer: str | None) -> list[str]:
    at = next((number for number, row in enumerate(rows) if row.name == layer), None)
    if at is None:
        return []
    size = ground + rows[at].in_use_bytes + rows[at].scratch_bytes
    x, y = round((scale.x(at) + scale.x(at + 1)) / 2, 2), scale.y(size)
    is_left = x < _WIDTH / 2
    name = rows[at].name if len(rows[at].name) <= 48 else "…" + rows[at].name[-47:]
    anchor, shift = ("start", 8) if is_left else ("end", -8)
    words = f"most in use: {_mb(size)} MB at {html.escape(name)}"
    mark = f'<circle class="memory-peak" cx="{x}" cy="{y}" r="4" fill="#b91c1c"/>'
    return [mark, f'<text x="{x + shift}" y="{y + 14}" text-anchor="{anchor}" fill="#b91c1c">{words}</text>']


def _targets(scale: _Scale, rows: Sequence[LayerMemory], ground: int, link: str | None) -> list[str]:
    """Return invisible bars that say a layer's numbers when pointed at, and lead to it when clicked."""
    found = []
    for at, row in enumerate(rows):
        scratch = f", {_mb(row.scratch_bytes)} MB of them scratch" if row.scratch_bytes else ""
        size = row.in_use_bytes + row.scratch_bytes
        words = f"{at + 1}. {row.name} ({row.op_type}): {_mb(size)} MB of the arena in use{scratch}"
        words += f"; with weights {_mb(ground + size)} MB"
        bar = (
            f'<rect class="memory-layer" x="{scale.x(at)}" y="{_TOP}" '
            f'width="{max(round(scale.x(at + 1) - scale.x(at), 2), 0.5)}" height="{_HEIGHT - _TOP - _BOTTOM}" '
            f'fill="transparent"><title>{html.escape(words)}</title></rect>'
        )
        found.append(f'<a href="{html.escape(link.format(at + 1))}">{bar}</a>' if link else bar)
    return found


def _mb(size_bytes: int) -> str:
    megabytes = size_bytes / _MB
    return f"{megabytes:.4g}" if megabytes < 1000 else f"{megabytes:.0f}"
