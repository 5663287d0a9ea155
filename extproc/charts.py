"""Charts for reports, as SVG elements to be put into a page."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


def svg(draw: Callable[[Any], None], *, legend: bool = True) -> str:
    """What `draw` draws on matplotlib's axes, with a legend above or without, as one SVG element.

    It has no size of its own, so it takes its container's width, and loads nothing. Equal drawings give equal
    text. Raises ModuleNotFoundError without matplotlib.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "charts",
            "font.family": "sans-serif",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    if legend:
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize="small")
    axes.grid(alpha=0.2)
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = output.getvalue()
    text = text[text.index("<svg") :]
    head, rest = text.split(">", 1)
    kept = [part for part in head.split(" ") if not part.startswith(("width=", "height="))]
    return " ".join(kept) + ">" + rest
