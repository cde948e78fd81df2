"""The pictures of page 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import ACCENT, INK, write
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping


def scaling(names: Mapping[str, Any]) -> Figure:
    """Page 4: variance, largest weight and gradient against D, scaled and not."""
    sizes, medians = names["sizes"], names["medians"]
    raw, kept = (
        [(scores[d].var(), *medians(scores[d])) for d in sizes]
        for scores in (names["scores"], names["scaled"])
    )
    figure = Figure(figsize=(8.6, 3.4))
    variance, largest, gradient = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.17, top=0.87, wspace=0.28)
    for axes, title, column in (
        (variance, "variance of q·k", 0),
        (largest, "largest weight", 1),
        (gradient, "gradient of softmax", 3),
    ):
        axes.set_title(title, loc="left", fontsize=11, pad=12)
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 32, 256, 2048], ["4", "32", "256", "2048"])
        axes.set_xlabel("D", labelpad=2)
        axes.plot(sizes, [row[column] for row in raw], "o--", color=INK, markersize=4)
        axes.plot(sizes, [row[column] for row in kept], "o-", color=ACCENT, markersize=4)
    variance.set_yscale("log", base=2)
    variance.set_yticks([1, 16, 256, 4096], ["1", "16", "256", "4096"])
    largest.set_ylim(0, 1.05)
    gradient.set_yscale("log")
    gradient.set_ylim(1e-8, 5)
    gradient.set_yticks([1, 1e-2, 1e-4, 1e-6, 1e-8])
    for axes, raw_at, kept_at in (
        (variance, (180, 1000), (4096, 2)),
        (largest, (4096, 0.9), (4096, 0.17)),
        (gradient, (900, 2e-5), (4096, 0.8)),
    ):
        axes.minorticks_off()
        write(axes, *raw_at, "not scaled", "right", color=INK)
        write(axes, *kept_at, "scaled", "right", color=ACCENT)
    return figure


PICTURES = {"scaling": scaling}
