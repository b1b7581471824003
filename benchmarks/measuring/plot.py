"""A dot plot of the ratios as SVG, written by hand, so that nothing has to be installed for it."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

from measuring.report import Row, groups, others, ratio
from measuring.shapes import SIX

LEFT, RIGHT, TOP, LINE = 330, 40, 70, 22
WIDTH = 900
COLOURS = ("#1b6ca8", "#c8553d", "#4f772d", "#7b4b94", "#b8860b", "#3d5a80", "#888888")


def plot(found: dict[str, Any], direction: str) -> str:
    """A line for each operator, gates, policy and other side; a dot a shape, a bar the mean."""
    rows = found.get("rows", [])
    lines = list(_lines(rows, direction))
    values = [value for _, dots in lines for value in dots.values()] or [1.0]
    low, high = min(0.9, *values) * 0.95, max(1.1, *values) * 1.05
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(shapes)}
    height = TOP + LINE * (len(lines) + 3)

    def x(value: float) -> float:
        part = math.log(value / low) / math.log(high / low)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    title = f"{direction.capitalize()}: time over rewy's, {found['about']['gpu']} (1 is as fast)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(12, 22, title, size=15),
    ]
    for i, name in enumerate(shapes):
        across = 12 + 124 * i
        parts.append(f'<circle cx="{across}" cy="44" r="4" fill="{colours[name]}"/>')
        parts.append(_text(across + 8, 48, name))
    bottom = TOP + LINE * len(lines)
    for tick in _ticks(low, high):
        colour = "black" if tick == 1 else "#dddddd"
        parts.append(f'<path d="M{x(tick)} {TOP - 8}V{bottom}" stroke="{colour}"/>')
        parts.append(_text(x(tick), bottom + 16, f"{tick:g}", anchor="middle"))
    for i, (label, dots) in enumerate(lines):
        y = TOP + LINE * i + LINE // 2
        parts.append(_text(LEFT - 10, y + 4, label, anchor="end"))
        six = [math.log(value) for name, value in dots.items() if name in SIX]
        if six:
            mean = x(math.exp(sum(six) / len(six)))
            parts.append(f'<path d="M{mean} {y - 9}v18" stroke="black" stroke-width="3"/>')
        for name, value in dots.items():
            parts.append(
                f'<circle cx="{x(value)}" cy="{y}" r="4" fill="{colours[name]}" '
                f'fill-opacity="0.8"><title>{escape(name)}: {value:.2f}</title></circle>'
            )
    parts.append(_text(12, height - 12, "Bars: geometric means over the six shapes."))
    return "\n".join([*parts, "</svg>", ""])


def _lines(rows: list[Row], direction: str):
    for (operator, gates, policy), group in groups(rows):
        for other in others(group):
            ratios = {row["shape"]: ratio(row, other, direction) for row in group}
            dots = {name: value for name, value in ratios.items() if value is not None}
            if dots:
                label = f"{operator}, {policy}" + f", {gates} gates" * (gates != "none")
                yield f"{label}: {other}", dots


def _ticks(low: float, high: float) -> list[float]:
    ticks = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    return [tick for tick in ticks if low <= tick <= high]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
