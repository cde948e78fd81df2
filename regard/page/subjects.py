"""What the page shows: a model, which runs over any text, or a recording.

Axes: H heads, T tokens, E model dimension, D head dimension.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from regard._modules import require_whole, unwrapped
from regard.gpt import GPT, CheckpointError, Engine, Sampling, load, stream
from regard.gpt.unwrap import as_gpt
from regard.gpt.utf8 import normalized
from regard.intercept import last_logits, takes_logits_to_keep
from regard.page._changes import (
    Change,
    Over,
    changed,
    check_changes,
    measure_effects,
    measure_passages,
)
from regard.page._errors import PageError
from regard.page._run import Run
from regard.page.example import readable_example, readable_examples
from regard.record import Recording, record

if TYPE_CHECKING:
    from regard.gpt import Tokenizer
    from regard.page.training import TrainingHistory

LIKELIEST = 10
CHARACTERS = 200_000
"""Longest text, in characters."""
GENERATED = 500
"""Largest number of tokens that are generated at a time."""
_KEPT = 16  # runs that stay open
_EARLIER = 2  # models of earlier updates that stay open


class Subject(Protocol):
    """What the page shows."""

    def about(self) -> dict[str, Any]:
        """Title, shape and limits of the subject, and what the page can do with it."""

    def run(self, name: str) -> Run:
        """An open run."""


class ModelSubject:
    """A model of `regard.gpt` and its tokenizer.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        title: its name on the page.
        text: the text that is open at first.
        ids: token ids in place of a text.
        notes: sentences that the page shows with them.
        training: the recorded history of its heads.

    Example:
        >>> from regard.page import ModelSubject
        >>> from regard.gpt import load
        >>> subject = ModelSubject(*load(), title="the model", text="The cat sat.")
        >>> subject.about()["writes"]
        True
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        title: str,
        text: str | None = None,
        ids: Sequence[int] | None = None,
        notes: Sequence[str] = (),
        training: TrainingHistory | None = None,
    ) -> None:
        self.training = training
        self._earlier: OrderedDict[int, ModelSubject] = OrderedDict()
        self._loading = Lock()
        self._model = as_gpt(model).eval()
        self._device = self._model.device
        self._tokenizer = tokenizer
        self._title = title
        self._runs: OrderedDict[str, tuple[Run, list[int]]] = OrderedDict()
        self._lock = Lock()
        self._first = ""
        self._example = readable_example(tokenizer)
        self._examples = [
            {"name": name, "text": example}
            for name, example in readable_examples(tokenizer).items()
        ]
        if ids is None:
            first = self.read(self._example if text is None else text)
        else:
            first = self._open(list(ids), notes)
        self._first = first.id

    def about(self) -> dict[str, Any]:
        """Title, shape and limits of the subject, and what the page can do with it."""
        config = self._model.config
        return {
            "title": self._title,
            "shape": f"{shape_text(config.layers, config.heads)}, context {config.context}",
            "has_read": self._model.has_read,
            "writes": True,
            "generates": True,
            "example": self._example,
            "examples": self._examples,
            "limits": {
                "characters": CHARACTERS,
                "tokens": config.context,
                "generate": GENERATED,
            },
            "runs": [self._first],
            **({} if self.training is None else {"training": len(self.training.steps)}),
        }

    def first(self) -> tuple[GPT, Tokenizer, Run, list[int]]:
        """The model and its tokenizer, and the text that was open at first, with its ids."""
        return self._model, self._tokenizer, *self._runs[self._first]

    def at(self, update: int) -> ModelSubject:
        """The model at an update of its training run; the last two are cached.

        Raises:
            PageError: it was not kept, or is damaged.
        """
        kept = {} if self.training is None else self.training.kept
        if update not in kept:
            raise PageError(f"the model of update {update} was not kept; train with --keep-every")
        with self._loading:
            if update not in self._earlier:
                try:
                    model, tokenizer = load(kept[update], device=self._device)
                except (CheckpointError, OSError) as error:
                    raise PageError(str(error)) from error
                self._earlier[update] = ModelSubject(
                    model,
                    tokenizer,
                    title=f"{self._title}, update {update}",
                    text=self.run(self._first).text,
                    training=self.training,
                )
            self._earlier.move_to_end(update)
            while len(self._earlier) > _EARLIER:
                self._earlier.popitem(last=False)
            return self._earlier[update]

    def run(self, name: str) -> Run:
        """An open run.

        Raises:
            KeyError: no such run is open.
        """
        with self._lock:
            self._runs.move_to_end(name)
            return self._runs[name][0]

    def read(self, text: str) -> Run:
        """Run the model over a text, normalized like the texts of training.

        Raises:
            PageError: the text is empty, too long, or has characters without a token.
        """
        text = normalized(text)
        if not text:
            raise PageError("the text is empty; give at least one character")
        if len(text) > CHARACTERS:
            raise PageError(
                f"the text has {len(text):,} characters; at most {CHARACTERS:,} are taken at a time"
            )
        try:
            ids = self._tokenizer.encode(text)
        except ValueError as error:  # a character that this tokenizer has no token for
            raise PageError(str(error)) from error
        context = self._model.config.context
        notes = []
        if len(ids) > context:
            notes.append(
                f"the text has {len(ids):,} tokens; these are the first {context}, the model's "
                "context"
            )
        return self._open(ids[:context], notes)

    def append(self, run: Run, token: int) -> Run:
        """Run over the same tokens and one more.

        Raises:
            PageError: the token is not one of the vocabulary.
        """
        vocabulary = self._model.config.vocab_size
        if not 0 <= token < vocabulary:
            raise PageError(f"token {token} is not one of 0 … {vocabulary - 1}")
        return self._open_last([*self._ids(run), token])

    def change(self, run: Run, changes: Sequence[Change]) -> Run:
        """Run over the same tokens with some attention changed; the result has both probabilities.

        Raises:
            PageError: a layer, head or position does not exist, or the run is changed already.
        """
        if run.before is not None:
            raise PageError("this run is changed already; change the text as it is")
        check_changes(changes, run)
        distinct = tuple(dict.fromkeys(changes))
        return self._open(self._ids(run), run.notes, changes=distinct, plain=run)

    def effects(self, run: Run, over: Over, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Measure what the likeliest next token rests on; see `measure_effects`."""
        ids = torch.tensor(self._ids(run), device=self._device)
        return measure_effects(self._model, ids, run, over, progress)

    def passages(
        self, run: Run, spans: Sequence[tuple[int, int]], progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        """Measure which passages the next token needs; see `measure_passages`."""
        ids = torch.tensor(self._ids(run), device=self._device)
        return measure_passages(self._model, ids, run, spans, progress)

    def generate(
        self, run: Run, *, tokens: int, temperature: float, seed: int | None
    ) -> Iterator[dict[str, Any]]:
        """Generate tokens one by one, then the run over all of them.

        Raises:
            PageError: for a number out of range.
        """
        if not 1 <= tokens <= GENERATED:
            raise PageError(f"tokens is {tokens}; 1 … {GENERATED} are drawn at a time")
        ids = self._ids(run)
        try:
            sampling = Sampling(temperature=temperature, seed=seed)
            prompt = torch.tensor(ids, device="cpu")
            drawn = stream(self._generator(), prompt, tokens=tokens, sampling=sampling)
        except ValueError as error:
            raise PageError(str(error)) from error
        return self._draw(ids, drawn)

    def _generator(self) -> Engine | GPT:
        try:
            return Engine(self._model)
        except ValueError:  # an objection, such as the hooks of a run in another thread
            return self._model

    def _draw(self, ids: list[int], drawn: Iterator[Tensor]) -> Iterator[dict[str, Any]]:
        longer = list(ids)
        for token in drawn:
            longer.append(int(token))
            (piece,) = self._tokenizer.tokens([int(token)])
            yield {"token": int(token), "piece": piece}
        yield {"run": self._open_last(longer)}

    def _ids(self, run: Run) -> list[int]:
        with self._lock:
            known = self._runs.get(run.id)
        if known is None:
            raise PageError("this text is not open any more; open it again")
        return known[1]

    def _open_last(self, ids: list[int]) -> Run:
        context = self._model.config.context
        notes = []
        if len(ids) > context:
            notes.append(f"the context is full: these are the last {context} tokens")
        return self._open(ids[-context:], notes)

    def _open(
        self,
        ids: list[int],
        notes: Sequence[str],
        *,
        changes: tuple[Change, ...] = (),
        plain: Run | None = None,
    ) -> Run:
        name = sha256(repr((ids, changes) if changes else ids).encode()).hexdigest()[:16]
        with self._lock:
            known = self._runs.get(name)
        run = self._compute(name, ids, notes, changes, plain) if known is None else known[0]
        with self._lock:
            self._runs[name] = run, ids
            self._runs.move_to_end(name)
            for old in [other for other in self._runs if other != self._first][:-_KEPT]:
                del self._runs[old]
        return run

    def _compute(
        self,
        name: str,
        ids: list[int],
        notes: Sequence[str],
        changes: Sequence[Change],
        plain: Run | None,
    ) -> Run:
        outputs: list[Tensor] = []
        here = get_ident()

        def keep(_module: object, _given: object, out: Tensor) -> None:
            if get_ident() == here:  # another thread may run the same model
                outputs.append(out)

        last = last_logits(1) if takes_logits_to_keep(self._model) else {}
        with ExitStack() as stack:
            for block in self._model.h:
                stack.callback(block.attn.c_attn.register_forward_hook(keep).remove)  # type: ignore[union-attr]
            stack.enter_context(torch.no_grad())
            stack.enter_context(changed(self._model, changes))
            with record(self._model) as recording:
                text = torch.tensor(ids, device=self._device)[None]
                logits = self._model(text, **last)[0, -1]
        shares = logits.softmax(-1)
        if shares.isnan().any():
            raise PageError("the model's logits are not numbers; its weights are damaged")
        before = None if plain is None else plain.probabilities
        # Of a changed run also the tokens that were likely before, to compare both.
        most = shares if before is None else shares.maximum(before)
        top = most.topk(min(LIKELIEST, len(shares))).indices
        pieces = self._tokenizer.tokens(top.tolist())
        config = self._model.config
        shared = config.heads // config.group_count
        return Run(
            id=name,
            title=self._title,
            tokens=tuple(self._tokenizer.tokens(ids)),
            layers=recording.of_kind().layers,
            text=self._tokenizer.decode(ids),
            following=tuple(zip(top.tolist(), pieces, shares[top].tolist(), strict=True)),
            probabilities=shares,
            before=None if before is None else tuple(before[top].tolist()),
            causal=None if plain is None else plain.is_causal,
            values=tuple(
                out[0][:, -config.group_count * config.head_dim :]  # after queries and keys
                .unflatten(-1, (config.group_count, -1))
                .transpose(0, 1)  # (G, T, D)
                .repeat_interleave(shared, dim=0)
                for out in outputs
            ),  # (H, T, D) each
            notes=tuple(notes),
        )


def shape_text(layers: int, heads: int) -> str:
    """Say how many there are: 1 layer × 2 heads."""
    return f"{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}"


class RecordingSubject:
    """A recording: the self-attention of its sequences.

    Args:
        recording: what was recorded.
        title: its name on the page.

    Raises:
        PageError: it holds no attention, or not that of whole sequences.

    Example:
        >>> import torch, regard
        >>> from regard.page import RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
        >>> RecordingSubject(recording, title="a recording").about()["shape"]
        '1 layer × 2 heads'
    """

    def __init__(self, recording: Recording, *, title: str) -> None:
        layers = recording.of_kind().layers
        if not layers:
            raise PageError("the recording holds no attention")
        first = layers[0].pattern
        for layer in layers:
            shape = layer.pattern.shape
            if len(shape) not in (3, 4) or shape[-1] != shape[-2] or shape[-1] != first.shape[-1]:
                raise PageError(
                    f"the page shows whole sequences, (heads, length, length), but "
                    f"{layer.name or 'a layer'} is {layer.pattern!r}; record all rows, from the "
                    "prompt on"
                )
        names = recording.tokens
        count = first.shape[0] if first.ndim == 4 else 1
        self._title = title
        self._shape = shape_text(len(layers), len(layers[0].heads))
        self._runs = {
            str(sequence): Run(
                id=str(sequence),
                title=title if count == 1 else f"{title}, sequence {sequence}",
                tokens=_names(names, sequence, first.shape[-1]),
                layers=layers,
                sequence=sequence,
            )
            for sequence in range(count)
        }

    def about(self) -> dict[str, Any]:
        """Title, shape and limits of the subject, and what the page can do with it."""
        return {
            "title": self._title,
            "shape": self._shape,
            "writes": False,
            "generates": False,
            "example": None,
            "limits": {"characters": 0, "tokens": 0, "generate": 0},
            "runs": list(self._runs),
        }

    def run(self, name: str) -> Run:
        """One sequence of it.

        Raises:
            KeyError: for another sequence.
        """
        return self._runs[name]


def _names(
    names: tuple[tuple[str, ...], ...] | None, sequence: int, length: int
) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(length)))
    own = names[sequence if sequence < len(names) else 0]
    if len(own) != length:
        raise PageError(f"the recording has names for {len(own)} positions, but {length} positions")
    return own


def as_subject(
    shown: Recording | GPT | Subject,
    *,
    tokenizer: Tokenizer | None = None,
    text: str | None = None,
    title: str | None = None,
) -> Subject:
    """The subject for a recording, or for a model with its tokenizer.

    Raises:
        PageError: a recording that a page can't show.
        ValueError: for a model that FSDP shards.
        TypeError: for a model without a tokenizer, anything else with a tokenizer or a text, and
            what is neither.
    """
    if isinstance(shown, nn.Module):
        require_whole(shown)
        shown = cast("GPT", unwrapped(shown))
    if isinstance(shown, GPT):
        if tokenizer is None:
            raise TypeError(
                "a model reads texts by its tokenizer; give tokenizer=..., which regard.gpt.load "
                "returns with the model"
            )
        return ModelSubject(shown, tokenizer, title=title or "model", text=text)
    kind = type(shown).__name__
    if tokenizer is not None or text is not None:
        raise TypeError(f"tokenizer and text go with a model of regard.gpt; this is a {kind}")
    if isinstance(shown, Recording):
        return RecordingSubject(shown, title=title or "recording")
    if not hasattr(shown, "about"):
        raise TypeError(
            f"shown is a {kind}; it must be a recording, as regard.record makes of any model's "
            "run, or a model of regard.gpt"
        )
    return shown
