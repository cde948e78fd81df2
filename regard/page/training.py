"""How the heads of a training run formed: what `regard.gpt.head_history` kept, and the loss.

Axes: M recorded updates, N layers, H heads, K scores, S side of a picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.gpt.training.checkpoints import (
    CHECKPOINTS,
    METRICS,
    PATTERNS,
    POINTER,
    TrainingRunFolder,
)
from regard.gpt.training.history import head_history
from regard.gpt.training.metrics import read_metrics
from regard.page._heads import for_json

if TYPE_CHECKING:
    from regard.gpt import HeadHistory


class TrainingHistory:
    """What a training run recorded of its heads.

    Args:
        recorded: its heads over the updates.
        losses: of the batch of an update, in nats a token, as far as they are known.
        kept: the folders of the models that were kept, by their update.
    """

    def __init__(
        self, recorded: HeadHistory, *, losses: dict[int, float], kept: dict[int, Path]
    ) -> None:
        self._history, self._losses, self.kept = recorded, losses, kept

    @property
    def steps(self) -> tuple[int, ...]:
        """The updates, in order."""
        return self._history.steps

    def describe(self) -> dict[str, Any]:
        """Everything but the pictures: scores are ``[update][layer][head][score]``."""
        history = self._history
        return {
            "steps": list(history.steps),
            "losses": [self._losses.get(step) for step in history.steps],
            "kept": sorted(self.kept),
            "tokens": len(history.tokens),
            "names": list(history.score_names),
            "scores": for_json(history.scores.tolist()),
            "roles": history.roles,
        }

    def images(self, step: int) -> Tensor:
        """The heads' patterns at an update, layer after layer, ``(N·H, S, S)``.

        Raises:
            KeyError: nothing was recorded at that update.
        """
        if step not in self.steps:
            raise KeyError(step)
        return self._history.images[self.steps.index(step)].flatten(0, 1)


def training_of(folder: Path) -> TrainingHistory | None:
    """What the training run of a folder recorded of its heads; None where it has recorded nothing.

    Raises:
        CheckpointError: it is damaged.
    """
    if not (folder / POINTER).is_file():
        return None
    run = TrainingRunFolder.latest(folder)
    if not any((run.path / PATTERNS).glob("*.safetensors")):
        return None
    checkpoints = (run.path / CHECKPOINTS).glob("*")
    kept = {int(path.name): path for path in checkpoints if path.name.isdigit()}
    lines = read_metrics(run.path / METRICS)
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    return TrainingHistory(head_history(folder), losses=losses, kept=kept)
