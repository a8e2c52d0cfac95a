"""The chart: a bar for each workload, gitguardfs against bindfs, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.figures import OURS, SLOWER_LIMIT, THEIRS, Ratio, between
from benchmarks.results import Part

WIDTH = 760
LEFT, RIGHT, ROW = 190, 90, 20
HEAD, FOOT = 56, 30
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_STYLE = """text { font: 12px sans-serif; fill: #57606a }
.title { font-weight: bold; font-size: 14px; fill: #1f2328 }
.background { fill: #ffffff }
.grid { stroke: #d0d7de } .one { stroke: #57606a; stroke-width: 1.5 }
.faster { fill: #2da44e } .slower { fill: #cf6a22 } .spread { stroke: #1f2328; opacity: 0.55 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 } .title { fill: #f0f6fc } .background { fill: #0d1117 }
  .grid { stroke: #3d444d } .one { stroke: #9198a1 } .spread { stroke: #f0f6fc }
}"""


def render(parts: Sequence[Part]) -> str:
    """Return an SVG picture; parts are shown one below the other."""
    drawn: list[str] = []
    height = 0
    for part in parts:
        bars = [(o.name, r) for o in part.outcomes if (r := between(o, OURS, THEIRS))]
        if bars:
            drawn.append(f'<g transform="translate(0 {height})">{_part(part.title, bars)}</g>')
            height += HEAD + ROW * len(bars) + FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">\n<title>gitguardfs against bindfs</title>\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="background" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _part(title: str, bars: Sequence[tuple[str, Ratio]]) -> str:
    every = [value for _, each in bars for value in (each.low, each.high)] + [0.5, 1.5]
    low, high = math.log(min(every) / 1.05), math.log(max(every) * 1.05)

    def x(value: float) -> float:
        return LEFT + (math.log(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    bottom = HEAD + ROW * len(bars)
    lines = [
        f'<text class="title" x="12" y="20">{escape(title)}: time of gitguardfs as a multiple of '
        "bindfs's</text>",
        '<text x="12" y="38">left of 1 gitguardfs is faster; the thin line spans the single '
        "rounds</text>",
    ]
    for tick in TICKS:
        if low <= math.log(tick) <= high:
            kind = "one" if tick == 1 else "grid"
            at = f"{x(tick):.1f}"
            lines.append(
                f'<line class="{kind}" x1="{at}" x2="{at}" y1="{HEAD - 6}" y2="{bottom}"/>'
            )
            lines.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for number, (name, each) in enumerate(bars):
        y = HEAD + ROW * number
        start, end = sorted((x(1.0), x(each.middle)))
        kind = "slower" if each.middle > SLOWER_LIMIT else "faster"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{max(1, end - start):.1f}" '
            f'height="{ROW - 7}"/>',
            f'<line class="spread" x1="{x(each.low):.1f}" x2="{x(each.high):.1f}" '
            f'y1="{y + 9.5}" y2="{y + 9.5}"/>',
            f'<text x="{WIDTH - RIGHT + 14}" y="{y + 13}">{each.middle:.2f}</text>',
        ]
    return "\n".join(lines)
