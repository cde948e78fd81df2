"""Tables in plain text, row by row as they come, and which targets were met."""

from __future__ import annotations

_MARK = len(" = 1±15% ✓")  # after a value that has a target


class Report:
    """What a run prints.

    Each value that has a target is printed with it and with a mark, and the report keeps count.
    """

    def __init__(self) -> None:
        self._widths: list[int] = []
        self._met = 0
        self._missed: list[str] = []
        self._title = ""

    def table(self, title: str, *columns: tuple[str, int]) -> None:
        """Begin a table; all columns but the first are flush right."""
        self._title = title.split(":", maxsplit=1)[0]
        self._widths = [width for _, width in columns]
        print(f"\n{title}")
        self.row(*(name for name, _ in columns))

    def row(self, first: str, *cells: str) -> None:
        """Print a row at once."""
        width, *widths = self._widths
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
        print("  ".join([f"{first:<{width}}", *padded]).rstrip(), flush=True)

    def at_least(self, row: str, value: float, target: float | None, style: str = ".2f") -> str:
        """Write a value that is to be this large, if it has a target."""
        met = target is None or value >= target
        return self._compared(row, value, "≥", target, style, met=met)

    def at_most(self, row: str, value: float, target: float | None, style: str = ".2f") -> str:
        """Write a value that is to be this small, if it has a target."""
        met = target is None or value <= target
        return self._compared(row, value, "≤", target, style, met=met)

    def within(self, row: str, value: float, share: float) -> str:
        """Write a ratio that may be off 1 by a share."""
        return self._marked(row, f"{value:.2f}", f"= 1±{share:.0%}", met=abs(value - 1) <= share)

    @property
    def counts(self) -> tuple[int, list[str]]:
        """How many targets were met, and which were not."""
        return self._met, self._missed

    def take_over(self, met: int, missed: list[str]) -> None:
        """Add the counts of another report."""
        self._met += met
        self._missed += missed

    def failed(self, what: str) -> None:
        """Count a part that could not be measured to its end as missed."""
        self._missed.append(what)

    def summary(self) -> None:
        """Say how many targets were met, and which were not."""
        print(f"\n{self._met} of {self._met + len(self._missed)} targets met")
        for missed in self._missed:
            print(f"  missed: {missed}")

    def _compared(
        self, row: str, value: float, sign: str, target: float | None, style: str, *, met: bool
    ) -> str:
        if target is None:
            return f"{value:{style}}{' ' * _MARK}"
        goal = f"{100 * target:g}%" if style.endswith("%") else f"{target:g}"
        return self._marked(row, f"{value:{style}}", f"{sign} {goal}", met=met)

    def _marked(self, row: str, value: str, goal: str, *, met: bool) -> str:
        if met:
            self._met += 1
        else:
            self._missed.append(f"{self._title}, {row}: {value}, not {goal}")
        return f"{value} {goal:<7} {'✓' if met else '✗'}"


def milliseconds(seconds: float) -> str:
    """Four digits or so, whatever the size."""
    return f"{seconds * 1e3:.{3 if seconds < 0.1 else 1}f}"
