"""How heads form: roles, scores and images of all heads on one text, recorded during training.

``run/patterns`` holds ``probe.json`` (format, version, the text's token ids, each token's text, the
names of the scores) and a file per recorded update, ``00000200.safetensors``: ``scores``
``(N, H, K)`` float32, the K scores of each head of N layers, NaN for missing ones, and
``images`` ``(N, H, S, S)`` float16, each pattern averaged down to at most 64 by 64. The file's
header has the roles of the heads and, except in earlier versions, the evidence for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import replace_file
from regard._shapes import Float
from regard.gpt import model_files
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import load_json
from regard.gpt.model import GPT
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.training.checkpoints import METRICS, PATTERNS, TrainingRunFolder
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.metrics import read_metrics
from regard.gpt.training.packed_corpus import Corpus
from regard.gpt.training.ranks import Ranks
from regard.gpt.unwrap import evaluating
from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import SCORES, Heads, HeadScores
from regard.lens.naming.roles import LEAD, Role
from regard.record.layer import self_attention

_PROBE = "probe.json"
_FORMAT, _VERSION = "regard patterns", 1
_SIDE = 64
_EVIDENCE = ("score", "margin", "queries", "undecided")
# Names in runs of earlier versions.
_SCORE_NAMES = {"same_token": "current_token"}
_ROLE_NAMES = {
    "same token": Role.DUPLICATE.value,
    "itself": Role.CURRENT.value,
}
_OPEN = "too few to say"  # name in earlier versions of both undecided roles


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadHistory:
    """The scores of the heads of a training run, over its updates.

    Attributes:
        steps: the updates, in order; M of them.
        ids: the text's token ids.
        tokens: the text of each token.
        score_names: names of the K scores; see `regard.lens.HeadScores`.
        scores: ``(M, N, H, K)``; NaN for missing ones.
        roles: for each update, layer and head, the head's role.
        images: ``(M, N, H, S, S)``, each pattern averaged down.
        evidence: for each update and head, the evidence for its role, as in
            `regard.lens.HeadScores`; empty for runs of earlier versions.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, head_history, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2, record_every=1)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(folder, texts=["abc " * 200], gpt=gpt, config=config, console=quiet)
        ...     heads = head_history(folder)
        >>> heads.steps, heads.score("first_token").shape
        ((1, 2), torch.Size([2, 1, 1]))
    """

    steps: tuple[int, ...]
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    score_names: tuple[str, ...]
    scores: Float[Tensor, "M N H K"]
    roles: tuple[tuple[tuple[str, ...], ...], ...]
    images: Float[Tensor, "M N H S S"]
    evidence: tuple[tuple[dict[str, Any], ...], ...] = ()

    def score(self, name: str) -> Float[Tensor, "M N H"]:
        """One score of every head over the updates, such as ``"induction"``.

        Raises:
            ValueError: `name` is not the name of a score; the message lists them.
        """
        if name not in self.score_names:
            raise ValueError(f"name is {name!r}; expected one of {', '.join(self.score_names)}")
        return self.scores[..., self.score_names.index(name)]

    def heads(self, step: int) -> Heads:
        """Return the heads at one update, as `regard.lens.heads` gives them.

        Raises:
            ValueError: nothing was recorded at that update.
        """
        if step not in self.steps:
            raise ValueError(
                f"step is {step}; recorded updates are {', '.join(map(str, self.steps))}"
            )
        update = self.steps.index(step)
        rows = []
        evidence = iter(self.evidence[update] if self.evidence else ())
        for layer, names in enumerate(self.roles[update]):
            for head, name in enumerate(names):
                values = self.scores[update, layer, head].tolist()
                scores: dict[str, Any] = {
                    key: None if isnan(value) else value
                    for key, value in zip(self.score_names, values, strict=True)
                }
                about = dict(next(evidence, {}))
                if about.get("undecided") is not None:
                    about["undecided"] = Role(about["undecided"])
                rows.append(HeadScores(layer=layer, head=head, role=Role(name), **about, **scores))
        return Heads(rows)


def head_history(folder: str | Path) -> HeadHistory:
    """Return the recordings of a training run's heads (`TrainConfig.record_every`).

    Args:
        folder: the training run's folder.

    Raises:
        CheckpointError: the folder has no training run with recordings, or damaged ones.

    Warns:
        RuntimeWarning: lines of its ``metrics.jsonl``, where the losses are, are damaged.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, head_history, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2, record_every=2)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(folder, texts=["abc " * 200], gpt=gpt, config=config, console=quiet)
        ...     print(head_history(folder).steps)
        (2,)
    """
    run = TrainingRunFolder.latest(Path(folder))
    place = run.path / PATTERNS
    read_metrics(run.path / METRICS, run.step, warn="their losses are not known")
    if not (place / _PROBE).is_file():
        raise CheckpointError(
            f"{folder} has no recorded patterns; train with record_every, such as record_every=100"
        )
    probe = load_json(place / _PROBE)
    if (probe.get("format"), probe.get("version")) != (_FORMAT, _VERSION):
        raise CheckpointError(f"{place / _PROBE} is of another version: {probe.get('version')!r}")
    files = sorted(path for path in place.glob("*.safetensors") if path.stem.isdigit())
    try:
        recordings = [model_files.read(path) for path in files]
        names = [_roles(path) for path in files]
        evidence = [_evidence(path) for path in files]
        return HeadHistory(
            steps=tuple(int(path.stem) for path in files),
            ids=tuple(probe["ids"]),
            tokens=tuple(probe["tokens"]),
            score_names=tuple(_SCORE_NAMES.get(name, name) for name in probe["scores"]),
            scores=torch.stack([recorded["scores"] for recorded in recordings]),
            roles=tuple(names),
            evidence=tuple(evidence),
            images=torch.stack([recorded["images"] for recorded in recordings]).float(),
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{place} is damaged: {error}") from None


class HistoryWriter:
    """Records what the heads of a model do on one text.

    Args:
        run: the training run's folder.
        ids: the text's token ids, ``(T,)``, at most the model's context.
        tokenizer: the tokenizer.
        step: the update that the training run continues from; recordings of later ones are dropped.
    """

    def __init__(
        self, run: TrainingRunFolder, ids: Tensor, tokenizer: Tokenizer, step: int
    ) -> None:
        self._ids = ids
        self._tokens = tuple(tokenizer.tokens(ids.tolist()))
        self._place = run.path / PATTERNS
        self._place.mkdir(exist_ok=True)
        for path in self._place.glob("*.safetensors"):
            if int(path.stem) > step:
                path.unlink()
        probe = {
            "format": _FORMAT,
            "version": _VERSION,
            "ids": ids.tolist(),
            "tokens": self._tokens,
            "scores": SCORES,
        }
        replace_file(self._place / _PROBE, (json.dumps(probe) + "\n").encode())

    def __call__(self, step: int, model: GPT) -> None:
        """Record an update."""
        with evaluating(model):
            _, patterns = model.with_patterns(self._ids)
            layers = [self_attention(pattern, index) for index, pattern in enumerate(patterns)]
            heads = score_heads(layers, (self._tokens,), progress=False)
            side = min(_SIDE, len(self._ids))
            images = torch.stack([pattern.image(side, side) for pattern in patterns])
        count = len(patterns)
        scores = torch.tensor(
            [[_number(head, name) for name in SCORES] for head in heads], device="cpu"
        )
        each = len(heads) // count
        names = [head.role for head in heads]
        roles = [names[start : start + each] for start in range(0, len(names), each)]
        evidence = [{name: getattr(head, name) for name in _EVIDENCE} for head in heads]
        path = self._place / f"{step:08}.safetensors"
        made = path.with_name(f".{path.name}.tmp")
        try:
            model_files.write(
                made,
                {"scores": scores.view(count, each, -1), "images": images.half()},
                about={"roles": json.dumps(roles), "evidence": json.dumps(evidence)},
            )
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)


def heads_recorder(
    ranks: Ranks,
    folder: TrainingRunFolder,
    corpus: Corpus,
    model: GPT,
    config: TrainConfig,
    step: int,
) -> Callable[[int, GPT], object] | None:
    """Return a function that records the heads on rank 0; None if nothing is recorded."""
    if not config.record_every or not ranks.is_main:
        return None
    context, tokenizer = model.config.context, corpus.tokenizer
    ids = torch.tensor(tokenizer.encode(config.probe)[:context], device="cpu")
    if not config.probe:
        start = torch.from_numpy(corpus.validation[: max(1, context // 2)].astype("int64"))
        ids = torch.cat([start, start])[:context]
    ids = ids.to(next(model.parameters()).device)
    return HistoryWriter(folder, ids, tokenizer, step)


def _number(head: HeadScores, name: str) -> float:
    value: float | None = getattr(head, name)
    return nan if value is None else value


def _roles(path: Path) -> tuple[tuple[str, ...], ...]:
    roles, evidence = json.loads(model_files.about(path)["roles"]), iter(_evidence(path))
    return tuple(tuple(_role(name, next(evidence, {})) for name in layer) for layer in roles)


def _role(name: str, about: Mapping[str, Any]) -> str:
    """Return a role by the name that it has now."""
    if name != _OPEN:
        return _ROLE_NAMES.get(name, name)
    margin = about.get("margin")
    is_precise = margin is not None and margin <= LEAD
    return Role.BETWEEN.value if is_precise else Role.TOO_SHORT.value


def _evidence(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the evidence for each head's name, in order; empty in files of earlier versions."""
    return tuple(json.loads(model_files.about(path).get("evidence", "[]")))
