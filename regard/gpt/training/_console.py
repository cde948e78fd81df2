"""What a training run shows on the console."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.gpt.training.metrics import Metrics


def print_line(console: Console, line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def validation_line(metrics: Metrics) -> str:
    """What is printed after a validation: two lines, for a terminal of 80 columns."""
    assert metrics.validation_loss is not None
    peak = "" if metrics.share_of_peak is None else f", {metrics.share_of_peak:.0%} of the peak"
    size = "" if metrics.memory is None else f", {metrics.memory / 1e9:.1f} GB"
    return (
        f"update {metrics.step}: validation loss {metrics.validation_loss:.4f} (perplexity "
        f"{metrics.validation_perplexity:.2f}, {metrics.bits_per_byte:.3f} bits/byte),\n"
        f"  loss {metrics.loss:.4f}, {metrics.tokens_per_second:,.0f} tokens/s{peak}{size}"
    )


class ProgressBar(Progress):
    """A bar of updates, of which some are made, with the loss and the speed of the last."""

    def __init__(self, console: Console, steps: int, step: int) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[measured]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self.add_task("training", total=steps, completed=step, measured="")

    def show(self, metrics: Metrics) -> None:
        """Show an update."""
        measured = f"loss {metrics.loss:.3f} {metrics.tokens_per_second:,.0f} tokens/s"
        self.update(self._task, completed=metrics.step, measured=measured)
