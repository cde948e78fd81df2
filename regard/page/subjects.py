"""What the page shows: a model, which runs over any text, or a recording.

Axes: H heads, T tokens, E model dimension, D head dimension.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from regard._modules import require_whole, unwrapped
from regard.errors import Error
from regard.gpt import GPT, CheckpointError, Sampling, load
from regard.gpt.unwrap import as_gpt
from regard.lens import Views, leading_head
from regard.models import LanguageModel
from regard.page._changes import (
    Change,
    Over,
    Report,
    changed,
    check_changes,
    measure_effects,
    measure_passages,
)
from regard.page._errors import PageError
from regard.page._run import Run, read_layer
from regard.page._swap import measure_patches
from regard.page.example import examples_for
from regard.record import RecordError, Recording
from regard.view.tokens import visible

if TYPE_CHECKING:
    from regard.models import Prompt
    from regard.page.training import TrainingHistory
    from regard.pattern import Pattern

LIKELIEST = 10
CHARACTERS = 200_000
"""Longest text, in characters."""
GENERATED = 500
"""Largest number of tokens that are generated at a time."""
LONGEST = 100_000
"""Longest text in tokens of a model that names no context."""
_KEPT = 16  # runs that stay open
_EARLIER = 2  # models of earlier updates that stay open


class Subject(Protocol):
    """What the page shows."""

    def about(self) -> dict[str, Any]:
        """Title, shape and limits of the subject, and what the page can do with it."""

    def run(self, name: str) -> Run:
        """An open run."""


class ModelSubject:
    """A language model, of `regard.gpt` or of transformers, and its tokenizer.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        title: its name on the page.
        text: the text that is open at first.
        ids: token ids in place of a text.
        notes: sentences that the page shows with them.
        training: the recorded history of its heads.
        chat: whether a text is a message, which the model's template surrounds.
        system: with `chat`, what the system says.
        special: whether the tokens that the tokenizer adds to every text are added.

    Example:
        >>> from regard.page import ModelSubject
        >>> from regard.gpt import load
        >>> subject = ModelSubject(*load(), title="the model", text="The cat sat.")
        >>> subject.about()["writes"]
        True
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        title: str,
        text: str | None = None,
        ids: Sequence[int] | None = None,
        notes: Sequence[str] = (),
        training: TrainingHistory | None = None,
        chat: bool = False,
        system: str | None = None,
        special: bool = True,
    ) -> None:
        self.training = training
        self._earlier: OrderedDict[int, ModelSubject] = OrderedDict()
        self._loading = Lock()
        module = unwrapped(model)
        module = as_gpt(module) if isinstance(module, GPT) else module
        self._model = LanguageModel(module.eval(), tokenizer, name=title)
        self._module, self._tokenizer = self._model.module, self._model.tokenizer
        self.is_message, self.adds_special = chat, special
        self._read = partial(self._model.read, chat=chat, system=system, special=special)
        self._title = title
        self._runs: OrderedDict[str, _Open] = OrderedDict()
        self._lock = Lock()
        self._first = ""
        examples = examples_for(self._model)
        self._example = next(iter(examples.values()))
        self._examples = [{"name": name, "text": one} for name, one in examples.items()]
        if ids is None:
            first = self.read(self._example if text is None else text)
        else:
            first = self._open(_Open(ids=list(ids), notes=notes))
        self._first = first.id

    def about(self) -> dict[str, Any]:
        """Title, shape and limits of the subject, and what the page can do with it."""
        layers = self._runs[self._first].run.layers
        shape = shape_text(len(layers), max((len(layer.heads) for layer in layers), default=0))
        context = self._model.context
        return {
            "title": self._title,
            "shape": shape if context is None else f"{shape}, context {context}",
            "has_read": self._model.has_read,
            "writes": True,
            "generates": self._model.predicts,
            "example": self._example,
            "examples": self._examples,
            "limits": {
                "characters": CHARACTERS,
                "tokens": LONGEST if context is None else context,
                "generate": GENERATED,
            },
            "runs": [self._first],
            **({} if self.training is None else {"training": len(self.training.steps)}),
        }

    @property
    def model(self) -> LanguageModel:
        """The model that it shows."""
        return self._model

    def ids_of(self, run: Run) -> list[int]:
        """The ids of a run that is open."""
        return list(self._known(run).ids)

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
                    model, tokenizer = load(kept[update], device=self._model.device)
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
            return self._runs[name].run

    def read(self, text: str) -> Run:
        """Run the model over a text.

        Raises:
            PageError: the text is empty, too long, or has characters without a token.
        """
        if not text:
            raise PageError("the text is empty; give at least one character")
        if len(text) > CHARACTERS:
            raise PageError(
                f"the text has {len(text):,} characters; at most {CHARACTERS:,} are taken at a time"
            )
        try:
            prompt = self._read(text)
        except ValueError as error:  # a character that this tokenizer has no token for
            raise PageError(str(error)) from error
        if not prompt.ids:
            raise PageError("the text is empty; give at least one character")
        context = self._model.context
        notes = []
        if context is not None and len(prompt) > context:
            notes.append(
                f"the text has {len(prompt):,} tokens; these are the first {context}, the model's "
                "context"
            )
        return self._open(_Open.of(prompt, context, notes))

    def append(self, run: Run, token: int) -> Run:
        """Run over the same tokens and one more.

        Raises:
            PageError: the token is not one of the vocabulary.
        """
        vocabulary = self._model.vocab_size
        if not 0 <= token < vocabulary:
            raise PageError(f"token {token} is not one of 0 … {vocabulary - 1}")
        return self._open_last(self._known(run), [token])

    def change(self, run: Run, changes: Sequence[Change]) -> Run:
        """Run over the same tokens with some attention changed; the result has both probabilities.

        Raises:
            PageError: a layer, head or position does not exist, or the run is changed already.
        """
        if run.before is not None:
            raise PageError("this run is changed already; change the text as it is")
        check_changes(changes, run)
        distinct = tuple(dict.fromkeys(changes))
        return self._open(replace(self._known(run), changes=distinct), plain=run)

    def effects(self, run: Run, over: Over, progress: Report) -> dict[str, Any]:
        """Measure what the likeliest next token rests on; see `measure_effects`."""
        return measure_effects(self._module, self._ids(run), run, over, progress)

    def passages(
        self, run: Run, spans: Sequence[tuple[int, int]], progress: Report
    ) -> dict[str, Any]:
        """Measure which passages the next token needs; see `measure_passages`."""
        return measure_passages(self._module, self._ids(run), run, spans, progress)

    def patch(self, run: Run, other: str, progress: Report) -> dict[str, Any]:
        """Measure which heads carry what another run has for an answer; see `measure_patches`.

        Raises:
            PageError: the other run is not open, or both can't be patched.
        """
        try:
            both = run, self.run(other)
        except KeyError:
            raise PageError("the other text is not open any more; open it again") from None
        ids = self._ids(both[0]), self._ids(both[1])
        return measure_patches(self._module, ids, both, progress)

    def writer(self, run: Run) -> dict[str, Any]:
        """Return the head that adds most to the likeliest next token, with its measured loss.

        Raises:
            PageError: the run is changed, the model has no next token, or no head's share is known.
        """
        if run.before is not None or run.probabilities is None:
            raise PageError("which head writes the next token is found of a text as it is")
        if "writer" not in run.effects:
            ids = self._ids(run)
            try:
                by = leading_head(self._model, ids.tolist(), run.probabilities.log())
            except Error as error:
                raise PageError(str(error)) from error
            assert by.part.place is not None, "it is a head"
            run.effects["writer"] = {
                "layer": by.part.place[0],
                "head": by.part.place[1],
                "source": by.part.source,
                "against": visible(by.against),
                "share": by.part.value,
                "margin": by.margin,
                "loss": by.loss,
                "decides": by.decides,
            }
        return run.effects["writer"]

    def generate(
        self, run: Run, *, tokens: int, temperature: float, seed: int | None
    ) -> Iterator[dict[str, Any]]:
        """Generate tokens one by one, then the run over all of them.

        Raises:
            PageError: for a number out of range.
        """
        if not 1 <= tokens <= GENERATED:
            raise PageError(f"tokens is {tokens}; 1 … {GENERATED} are drawn at a time")
        known = self._known(run)
        try:
            sampling = Sampling(temperature=temperature, seed=seed)
            drawn = self._model.stream(known.ids, tokens=tokens, sampling=sampling)
        except ValueError as error:
            raise PageError(str(error)) from error
        return self._draw(known, drawn, tokens)

    def _draw(self, known: _Open, drawn: Iterator[int], asked: int) -> Iterator[dict[str, Any]]:
        new: list[int] = []
        for token in drawn:
            new.append(token)
            (piece,) = self._tokenizer.tokens([token])
            yield {"token": token, "piece": piece}
        ended = len(new) < asked or (not self._model.is_own and new[-1] in self._model.ends)
        yield {"run": self._open_last(known, new), "ended": ended}

    def _known(self, run: Run) -> _Open:
        with self._lock:
            known = self._runs.get(run.id)
        if known is None:
            raise PageError("this text is not open any more; open it again")
        return known

    def _ids(self, run: Run) -> Tensor:
        return torch.tensor(self._known(run).ids, device=self._model.device)

    def _open_last(self, known: _Open, new: Sequence[int]) -> Run:
        """Open a text and more tokens, of which the model sees its context."""
        context = self._model.context
        ids, added = [*known.ids, *new], [*known.marks, *[False] * len(new)]
        if context is None or len(ids) <= context:
            return self._open(replace(known, ids=ids, added=added, notes=()))
        notes = [f"the context is full: these are the last {context} tokens"]
        return self._open(replace(known, ids=ids[-context:], added=added[-context:], notes=notes))

    def _open(self, asked: _Open, plain: Run | None = None) -> Run:
        ids, changes = asked.ids, asked.changes
        name = sha256(repr((ids, changes) if changes else ids).encode()).hexdigest()[:16]
        with self._lock:
            known = self._runs.get(name)
        if known is None:
            known = replace(asked, opened=self._compute(name, asked, plain))
        with self._lock:
            self._runs[name] = known
            self._runs.move_to_end(name)
            for old in [other for other in self._runs if other != self._first][:-_KEPT]:
                del self._runs[old]
        return known.run

    def _compute(self, name: str, asked: _Open, plain: Run | None) -> Run:
        tokens = tuple(self._tokenizer.tokens(asked.ids))
        objection = self._model.objection(len(tokens))
        try:
            if objection is None:
                attention, logits = self._recorded(asked)
            else:
                attention, logits = self._read_only(asked, tokens, objection)
        except RecordError as error:
            raise PageError(str(error)) from error
        if plain is not None:
            attention["causal"] = plain.is_causal
        return Run(
            id=name,
            title=self._title,
            tokens=tokens,
            added=tuple(asked.marks) if any(asked.marks) else None,
            text=self._text(asked),
            **{"notes": tuple(asked.notes)} | attention,
            **({} if logits is None else self._following(logits, plain)),
        )

    def _recorded(self, asked: _Open) -> tuple[dict[str, Any], Tensor | None]:
        """Run over a text; return the fields of a `Run` that its attention gives, and logits."""
        ids = torch.tensor(asked.ids, device=self._model.device)
        with changed(self._module, asked.changes):
            done = self._model.record(ids)
        values = [done.values_of(layer) for layer in range(len(done.layers))]
        known = None if None in values else tuple(one for one in values if one is not None)
        views = Views(
            done.layers,
            model=self._model,
            values=done.values,
            ids=ids,
            answer=None if done.logits is None else int(done.logits.argmax()),
        )
        return {"layers": done.layers, "values": known, "views": views}, done.logits

    def _read_only(
        self, asked: _Open, tokens: tuple[str, ...], objection: str
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Run over a text and keep no queries and keys; see `_recorded`."""
        ids = torch.tensor(asked.ids, device=self._model.device)

        def again(layer: int) -> Pattern:
            with changed(self._module, asked.changes):
                return self._model.record(ids, layers=layer).layers[0].pattern

        with changed(self._module, asked.changes):
            seen, logits = self._model.read_layers(ids, partial(read_layer, tokens=tokens))
        note = (
            f"{objection}, so they are not kept: the heads were named and pictured while the model "
            "ran, which runs again for each layer that is shown"
        )
        return {
            "layers": tuple(
                replace(layer, get_pattern=partial(again, layer.index)) for layer, _ in seen
            ),
            "read": tuple(one for _, one in seen),
            "causal": all(one.is_causal for _, one in seen),
            "objection": objection,
            "notes": (*asked.notes, note),
        }, logits

    def _following(self, logits: Tensor, plain: Run | None) -> dict[str, Any]:
        """Return the fields of a run that its next token gives."""
        shares = logits.float().softmax(-1)
        if shares.isnan().any():
            raise PageError("the model's logits are not numbers; its weights are damaged")
        before = None if plain is None else plain.probabilities
        # Of a changed run also the tokens that were likely before, to compare both.
        most = shares if before is None else shares.maximum(before)
        top = most.topk(min(LIKELIEST, len(shares))).indices
        pieces = self._tokenizer.tokens(top.tolist())
        return {
            "following": tuple(zip(top.tolist(), pieces, shares[top].tolist(), strict=True)),
            "probabilities": shares,
            "before": None if before is None else tuple(before[top].tolist()),
        }

    def _text(self, asked: _Open) -> str:
        """Return what the user wrote, and what was drawn after it."""
        if asked.said is not None:
            return asked.said
        pairs = zip(asked.ids, asked.marks, strict=True)
        return self._tokenizer.decode([token for token, added in pairs if not added])


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A text that is open: its tokens, and what they came from."""

    ids: list[int]
    added: Sequence[bool] = ()
    """True for each token that the user did not write; empty for none."""
    said: str | None = None
    """The user's message, where a template surrounds it."""
    notes: Sequence[str] = ()
    changes: tuple[Change, ...] = ()
    opened: Run | None = None

    @classmethod
    def of(cls, prompt: Prompt, context: int | None, notes: Sequence[str]) -> _Open:
        """Return the first tokens of a prompt, as many as the context has."""
        said = [prompt.characters(span) for role, span in prompt.roles if role == "user"]
        return cls(
            ids=list(prompt.ids[:context]),
            added=list(prompt.added[:context]),
            said=said[0] if said else None,
            notes=notes,
        )

    @property
    def marks(self) -> Sequence[bool]:
        """Whether each token was added."""
        return self.added or [False] * len(self.ids)

    @property
    def run(self) -> Run:
        """The run over it."""
        assert self.opened is not None, "it is kept once it was computed"
        return self.opened


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
    shown: Recording | LanguageModel | nn.Module | Subject,
    *,
    tokenizer: Any = None,
    text: str | None = None,
    title: str | None = None,
) -> Subject:
    """The subject for a recording, for a language model, or for a module with its tokenizer.

    Raises:
        PageError: a recording that a page can't show.
        ValueError: for a model that FSDP shards.
        TypeError: for a module without a tokenizer, anything else with a tokenizer or a text, and
            what is neither.
    """
    if isinstance(shown, LanguageModel):
        if tokenizer is not None:
            raise TypeError("a LanguageModel has its own tokenizer; leave tokenizer out")
        name = title or shown.name
        return ModelSubject(shown.module, shown.tokenizer, title=name, text=text)
    if isinstance(shown, nn.Module):
        require_whole(shown)
        if tokenizer is None:
            raise TypeError(
                "a model reads texts by its tokenizer; give tokenizer=..., which regard.gpt.load "
                "returns with the model, or what regard.models.open returns"
            )
        return ModelSubject(shown, tokenizer, title=title or "model", text=text)
    kind = type(shown).__name__
    if tokenizer is not None or text is not None:
        raise TypeError(f"tokenizer and text go with a model; this is a {kind}")
    if isinstance(shown, Recording):
        return RecordingSubject(shown, title=title or "recording")
    if not hasattr(shown, "about"):
        raise TypeError(
            f"shown is a {kind}; it must be a recording, as regard.record makes of any model's "
            "run, or a language model, as regard.models.open returns"
        )
    return shown
