#!/usr/bin/env python3
"""Draws a bar chart of results of annulus_attention_bench, or of the percents of the peak that a page states.

benchmarks/chart.py RESULTS.json... > chart.svg      --tokens 4096 --threads 1 are the defaults
benchmarks/chart.py --page benchmarks/README.md > examples/guide/peak.svg
"""

import argparse
import pathlib
import re
import sys
from xml.sax.saxutils import escape

from results import load

PROGRAMS = {"cpu": ("Annulus", "#1b6ca8"), "plain_eigen": ("plain Eigen", "#b0b7bf"), "blocked_eigen": ("blocked Eigen", "#7d8791")}
NAME = re.compile(r"(?P<program>\w+)/(?P<step>\w+)/(?P<mask>full|causal)/float32/tokens:(?P<tokens>\d+)/dim:(?P<dim>\d+)/heads:\d+/threads:(?P<threads>\d+)")
STATED = re.compile(r"^\| (forward|backward), (full|causal)" + r" \| (\d+) %" * 4 + r" \|", re.MULTILINE)
BAR, GAP, HEIGHT, LEFT, TOP, BOTTOM = 22, 26, 260, 56, 56, 58


def text(x, y, words, size=12, anchor="middle", weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'


def draw(title, words, programs, groups, top, step, peak):
    """An SVG picture. programs: pairs of name and colour. groups: lines of text below and bars: colour, height, hint.
    peak: height and text of a line; top, step: the largest value of the axis, and the distance of its lines."""
    width = LEFT + sum(BAR * len(bars) + GAP for _, bars in groups) + 12
    base = TOP + HEIGHT

    def height_of(value):
        return HEIGHT * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {base + BOTTOM}" width="{width}" height="{base + BOTTOM}" '
        'font-family="sans-serif" fill="#24292f" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{base + BOTTOM}" fill="#ffffff"/>',
        text(LEFT, 20, words, 13, "start", "bold"),
    ]
    x = LEFT
    for name, colour in programs:
        parts.append(f'<rect x="{x}" y="31" width="11" height="11" fill="{colour}"/>')
        parts.append(text(x + 16, 41, name, 12, "start"))
        x += 30 + 7 * len(name)
    for value in range(0, top + 1, step):
        y = base - height_of(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="#e4e7ea"/>')
        parts.append(text(LEFT - 8, y + 4, str(value), 11, "end"))
    x = LEFT + GAP / 2
    for below, bars in groups:
        for i, (colour, value, hint) in enumerate(bars):
            left, y = x + i * BAR, base - height_of(value)
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{BAR - 3}" height="{height_of(value):.1f}" fill="{colour}">'
                f"<title>{escape(hint)}</title></rect>"
            )
            parts.append(text(left + (BAR - 3) / 2, y - 4, f"{value:.0f}", 10))
        for line, words in enumerate(below):
            parts.append(text(x + BAR * len(bars) / 2, base + 18 + 14 * line, words, 11))
        x += BAR * len(bars) + GAP
    y = base - height_of(peak[0])
    parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="#c0392b" stroke-dasharray="5 4"/>')
    parts.append(text(width - 12, y - 5, peak[1], 11, "end"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def chart(seen, tokens, threads):
    """The rates of each program, in GFLOP/s."""
    cases = {}
    for name, values in seen.items():
        case = NAME.fullmatch(name)
        if case and (int(case["tokens"]), int(case["threads"])) == (tokens, threads):
            cases[case["program"], case["step"], case["mask"], int(case["dim"])] = values
    groups, peak = [], 0
    # Only dimensions for which another program was measured.
    for dim in sorted({dim for program, _, _, dim in cases if program != "cpu"}):
        for step in ("forward", "backward"):
            for mask in ("full", "causal"):
                bars = []
                for program, (name, colour) in PROGRAMS.items():
                    if values := cases.get((program, step, mask, dim)):
                        peak = max(peak, values["peak_GFLOP/s"])
                        bars.append((colour, values["GFLOP/s"], f"{name}, {step}, {mask}, head_dim {dim}: {values['GFLOP/s']:.1f} GFLOP/s, "
                                                                f"{values['peak_%']:.0f} % of the peak"))
                groups.append(((step, mask, f"head_dim {dim}"), bars))
    if not groups:
        raise SystemExit(f"no results for {tokens} tokens and {threads} threads in these files")
    step = next(s for s in (10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000) if peak / s <= 7)
    case = f"{tokens} tokens, {threads} thread{'s' if threads > 1 else ''}"
    return draw(f"Speed of attention, {case}", f"GFLOP/s, float, {case}", PROGRAMS.values(), groups, (int(peak / step) + 1) * step, step,
                (peak, f"multiply-add peak, {peak:.0f}"))


def stated_chart(page):
    """The percents of the peak in the table of a page, whose columns are the cases."""
    cases = [("4096 tokens, head_dim 64", "#1b6ca8"), ("128", "#6fa8d0"), ("8192 tokens, 64", "#d9822b"), ("128", "#edbd8c")]
    groups = []
    for step, mask, *shares in STATED.findall(page):
        bars = [(colour, int(share), f"{step}, {mask}, {name}: {share} %") for (name, colour), share in zip(cases, shares)]
        groups.append(((step, mask), bars))
    if len(groups) != 4:
        raise SystemExit(f"the page has {len(groups)} rows of percents of the peak; expected 4")
    return draw("Percent of the multiply-add peak of one core", "Percent of the multiply-add peak of one core, float", cases, groups, 110, 20,
                (100, "multiply-add peak"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if bool(arguments.results) == bool(arguments.page):
        parser.error("accepted: files of results, or --page")
    sys.stdout.write(stated_chart(arguments.page.read_text()) if arguments.page else
                     chart(load(arguments.results), arguments.tokens, arguments.threads))


if __name__ == "__main__":
    main()
