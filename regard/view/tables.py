"""HTML tables for notebooks of heads' scores, readouts and caches; long ones are cut."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regard.lens import Fidelity
from regard.lens.naming.heads import SCORES, Heads
from regard.record.readings import Reading, Readings
from regard.view.elements import heading, line, table, whole

__all__ = ["fidelity_html", "heads_html", "readings_html"]

_LISTED = 64  # rows
_UNITS = {"entropy": ", nats", "distance": ", tokens"}


def fidelity_html(fidelity: Fidelity) -> str:
    """Render a row per head, the largest divergence first."""

    def parts() -> Iterable[str]:
        unit = {"tv": "share of weight that moved"}.get(fidelity.kind, "nats")
        yield heading("Fidelity", f"{len(fidelity)} heads, those first whose weights moved most")
        rows = [
            (
                f"{head.layer}·{head.head}",
                f"{head.mean:.4f}",
                f"{head.largest:.4f}",
                str(head.query),
                f"{head.kept:.0%}",
            )
            for head in fidelity.heads[:_LISTED]
        ]
        names = ("head", f"{fidelity.kind}, {unit}", "largest", "at query", "keys kept")
        yield table(names, rows)
        if len(fidelity) > _LISTED:
            yield line(f"… {len(fidelity) - _LISTED} more: frame()")

    return whole(parts, fidelity)


def heads_html(heads: Heads) -> str:
    """Render a row per head: role, evidence and scores."""

    def parts() -> Iterable[str]:
        about = "score ± interval of 95 %; shares are means over queries"
        yield heading("Heads", f"{len(heads)}, by layer; {about}")
        rows = [
            (
                f"{head.layer}·{head.head}",
                head.role,
                head.estimate or "–",
                "–" if head.queries is None else str(head.queries),
                *(_figure(getattr(head, score)) for score in SCORES),
            )
            for head in heads[:_LISTED]
        ]
        names = (name.replace("_", " ") + _UNITS.get(name, "") for name in SCORES)
        yield table(("head", "role", "score", "queries", *names), rows)
        if len(heads) > _LISTED:
            yield line(f"… {len(heads) - _LISTED} more: heads.frame()")

    return whole(parts, heads)


def readings_html(readings: Readings) -> str:
    """Render a row per readout: its axes, and the range of its numbers."""

    def parts() -> Iterable[str]:
        yield heading("Readings", f"{len(readings)}; readings[name].frame() has all numbers")
        rows = [
            (name, _axes(entry), *map(_figure, _range(entry.parts)))
            for name, entry in readings.items()
        ]
        yield table(("readout", "axes", "least", "mean", "most"), rows)

    return whole(parts, readings)


def _axes(entry: Reading) -> str:
    sizes = {tuple(part.shape) for part in entry.parts}
    if len(sizes) != 1:
        return " × ".join(entry.axes)  # sizes differ from layer to layer
    shape = (len(entry.parts), *sizes.pop())
    return " × ".join(f"{axis} {size}" for axis, size in zip(entry.axes, shape, strict=True))


def _range(parts: tuple[Tensor, ...]) -> tuple[float | None, float | None, float | None]:
    full = [part.double() for part in parts if part.numel()]
    if not full:
        return None, None, None
    count = sum(part.numel() for part in full)
    return (
        min(float(part.min()) for part in full),
        sum(float(part.sum()) for part in full) / count,
        max(float(part.max()) for part in full),
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
