"""Plot of a comparison: times of other readers divided by the time of dask-tiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from comparison.measure import Timing
from comparison.scans import JOBS, STREAMING
from comparison.table import LIBERTEM, OURS, Row, cores, rows_of, speedup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Compared readers: label, names (the fastest of them counts) and colour (Okabe and Ito).
OTHERS = {
    "LiberTEM": (LIBERTEM, "#0072b2"),
    "RosettaSciIO": (("RosettaSciIO",), "#e69f00"),
    "numpy.memmap": (("numpy.memmap",), "#009e73"),
    "page cache (limit)": (("page cache",), "#bbbbbb"),
}
COLUMNS = 2
ROW = 0.4  # inches per format
WIDTH = 72 * ROW * 0.84 / len(OTHERS) * 0.85  # points per bar


def plot(timings: Sequence[Timing], path: Path) -> None:
    """Plot the jobs that read whole files, with the largest measured number of cores."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    threads = list(dict.fromkeys(timing.threads for timing in timings))[-1]
    rows = rows_of(timing for timing in timings if timing.threads == threads)
    jobs = [job for job in STREAMING if any(job == row_job for row_job, _ in rows)]
    formats = list(dict.fromkeys(fmt for _, fmt in rows))
    style = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Arial"],  # each text of an .svg file repeats this list
        "font.size": 9,
        "svg.fonttype": "none",
    }
    with mpl.rc_context(style):
        lines = -(-(len(jobs) + 1) // COLUMNS)
        figure, axes = plt.subplots(
            lines,
            COLUMNS,
            figsize=(9, 0.6 + lines * (0.7 + ROW * len(formats))),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        panels = list(axes.flat)
        for panel, job in zip(panels, jobs, strict=False):
            panel.set_title(JOBS[job].capitalize(), loc="left", fontweight="bold")
            draw(panel, [rows.get((job, fmt), {}) for fmt in formats], formats)
        low, high = panels[0].get_xlim()
        panels[0].set_xlim(low / 1.6, high * 1.3)  # margin for the numbers
        legend(panels[len(jobs)], panels[0], threads)
        for panel in panels[len(jobs) + 1 :]:
            panel.axis("off")
        for panel in panels[: len(jobs)]:
            panel.tick_params(labelbottom=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)
    if path.suffix == ".svg":
        path.write_text(compact(path.read_text()))


def compact(svg: str) -> str:
    """Remove indentation and rotations by 0 from an SVG file."""
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    return re.sub(r"^\s+", "", svg, flags=re.MULTILINE)


def draw(panel: Axes, rows: Sequence[Row], formats: Sequence[str]) -> None:
    """Draw the bars of one job; they start at 1, where both readers take the same time."""
    height = 0.84 / len(OTHERS)
    places = np.arange(len(formats))
    for k, (name, (readers, colour)) in enumerate(OTHERS.items()):
        factors = [speedup(row, *readers) for row in rows]
        found = [(place, factor) for place, factor in zip(places, factors, strict=True) if factor]
        if not found:
            continue
        at, values = np.array(found).T
        at = at + (k - (len(OTHERS) - 1) / 2) * height
        # Drawn as thick lines: bars would double the size of the file.
        panel.hlines(at, 1, values, color=colour, linewidth=WIDTH, label=name)
        for y, value in zip(at, values, strict=True):
            panel.annotate(
                f"{value:.2g}" if value < 10 else f"{value:.0f}",
                (value, y),
                xytext=(2 if value >= 1 else -2, 0),
                textcoords="offset points",
                color="#333333",
                ha="left" if value >= 1 else "right",
                va="center",
                fontsize=6.5,
            )
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(
        lambda value, _: f"{value:g}x" if value >= 1 else f"1/{1 / value:g}x"
    )
    panel.set_yticks(places, formats)
    panel.set_ylim(len(formats) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)


def legend(panel: Axes, drawn: Axes, threads: str) -> None:
    """Add the legend."""
    panel.axis("off")
    handles, labels = drawn.get_legend_handles_labels()
    panel.legend(
        handles,
        labels,
        loc="upper left",
        frameon=False,
        title=f"Time of each, as a multiple of that of {OURS}, {cores(threads)}.\n"
        f"Right of 1: slower than {OURS}; left of 1: faster.\n"
        "No bar: not read, or read wrongly.",
        alignment="left",
        bbox_to_anchor=(0, 0.95),
    )
