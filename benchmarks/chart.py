#!/usr/bin/env python3
"""Draws a bar chart of results of annulus_attention_bench.

benchmarks/chart.py RESULTS.json... > chart.svg      --tokens 4096 --threads 1 are the defaults
"""

import argparse
import re
import sys
from xml.sax.saxutils import escape

from results import load

PROGRAMS = {"cpu": ("Annulus", "#1b6ca8"), "plain_eigen": ("plain Eigen", "#b0b7bf"), "blocked_eigen": ("blocked Eigen", "#7d8791")}
NAME = re.compile(r"(?P<program>\w+)/(?P<step>\w+)/(?P<mask>full|causal)/float32/tokens:(?P<tokens>\d+)/dim:(?P<dim>\d+)/heads:\d+/threads:(?P<threads>\d+)")
BAR, GAP, HEIGHT, LEFT, TOP, BOTTOM = 22, 26, 260, 56, 56, 58


def text(x, y, words, size=12, anchor="middle", weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'


def chart(seen, tokens, threads):
    cases = {}
    for name, values in seen.items():
        case = NAME.fullmatch(name)
        if case and (int(case["tokens"]), int(case["threads"])) == (tokens, threads):
            cases[case["program"], case["step"], case["mask"], int(case["dim"])] = values
    groups = []
    # Only dimensions for which another program was measured.
    for dim in sorted({dim for program, _, _, dim in cases if program != "cpu"}):
        for step in ("forward", "backward"):
            for mask in ("full", "causal"):
                bars = [(program, cases[program, step, mask, dim]) for program in PROGRAMS if (program, step, mask, dim) in cases]
                groups.append((f"{step}, {mask}", f"head_dim {dim}", bars))
    if not groups:
        raise SystemExit(f"no results for {tokens} tokens and {threads} threads in these files")
    peak = max(values["peak_GFLOP/s"] for _, _, bars in groups for _, values in bars)
    step = next(s for s in (10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000) if peak / s <= 7)
    top = (int(peak / step) + 1) * step
    width = LEFT + sum(BAR * len(bars) + GAP for _, _, bars in groups) + 12
    base = TOP + HEIGHT

    def height_of(rate):
        return HEIGHT * rate / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {base + BOTTOM}" width="{width}" height="{base + BOTTOM}" '
        'font-family="sans-serif" fill="#24292f" role="img">',
        f"<title>Speed of attention, {tokens} tokens, {threads} thread{'s' if threads > 1 else ''}</title>",
        f'<rect width="{width}" height="{base + BOTTOM}" fill="#ffffff"/>',
        text(LEFT, 20, f"GFLOP/s, float, {tokens} tokens, {threads} thread{'s' if threads > 1 else ''}", 13, "start", "bold"),
    ]
    x = LEFT
    for name, colour in PROGRAMS.values():
        parts.append(f'<rect x="{x}" y="31" width="11" height="11" fill="{colour}"/>')
        parts.append(text(x + 16, 41, name, 12, "start"))
        x += 30 + 7 * len(name)
    for rate in range(0, top + 1, step):
        y = base - height_of(rate)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="#e4e7ea"/>')
        parts.append(text(LEFT - 8, y + 4, str(rate), 11, "end"))
    x = LEFT + GAP / 2
    for kind, dim, bars in groups:
        for i, (program, values) in enumerate(bars):
            rate = values["GFLOP/s"]
            left, y = x + i * BAR, base - height_of(rate)
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{BAR - 3}" height="{height_of(rate):.1f}" fill="{PROGRAMS[program][1]}">'
                f"<title>{PROGRAMS[program][0]}, {kind}, {dim}: {rate:.1f} GFLOP/s, {values['peak_%']:.0f} % of the peak</title></rect>"
            )
            parts.append(text(left + (BAR - 3) / 2, y - 4, f"{rate:.0f}", 10))
        middle = x + BAR * len(bars) / 2
        parts.append(text(middle, base + 18, kind.split(", ")[0], 11))
        parts.append(text(middle, base + 32, kind.split(", ")[1], 11))
        parts.append(text(middle, base + 46, dim, 11))
        x += BAR * len(bars) + GAP
    y = base - height_of(peak)
    parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="#c0392b" stroke-dasharray="5 4"/>')
    parts.append(text(width - 12, y - 5, f"multiply-add peak, {peak:.0f}", 11, "end"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    sys.stdout.write(chart(load(arguments.results), arguments.tokens, arguments.threads))


if __name__ == "__main__":
    main()
