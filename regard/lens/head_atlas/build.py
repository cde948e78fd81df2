"""`atlas`: reads a corpus document by document, and keeps what was read after any interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard._arguments import check_whole
from regard.errors import Error
from regard.lens.head_atlas.corpus import Corpus, Plan, documents_of, plan
from regard.lens.head_atlas.examples import hashes
from regard.lens.head_atlas.first_order import head_effects
from regard.lens.head_atlas.probes import probe_heads
from regard.lens.head_atlas.reading import Document, Reader
from regard.lens.head_atlas.result import Atlas, document_numbers, token_ids
from regard.lens.head_atlas.state import State, difference_of
from regard.record.readings import bar

__all__ = ["Job", "Run", "atlas", "finished", "join_atlas", "made_by"]

_SECONDS = 60  # between two savings
_EFFECTS = "effect"
_LENGTH = 2048  # tokens of a window of a model without a known context
_SOURCES = 10_000  # documents whose names are kept, until those without an example are dropped
_TRIED = 128  # tokens on which the time is estimated


def atlas(
    model: Any,
    corpus: Corpus | Iterable[str | Path] | str | Path,
    *,
    tokens: int | None = None,
    length: int | None = None,
    effects: float = 0.05,
    seed: int = 0,
    folder: str | Path | None = None,
    shard: tuple[int, int] = (0, 1),
    resume: bool = False,
    probes: bool = True,
    progress: bool | None = None,
    announce: Callable[[str], None] | None = None,
) -> Atlas:
    """Read what each head of a model does, over a corpus.

    In one forward pass a document: scores against controls beside each head's sinks, with intervals
    clustered by document; the share at rest; how far heads reach; what they move, and toward the
    next token; examples. On a sample of documents, one backward pass more measures effects to first
    order. Exact, in memory O(heads × length) beside the model, and some hundred bytes a document,
    by which duplicates are found.

    The same corpus, seed and options give the same atlas, in any number of shards, interrupted or
    not, on one kind of processor with one number of threads.

    Args:
        model: a `regard.models.LanguageModel`.
        corpus: texts, or paths of files and folders; see `Corpus`.
        tokens: after so many tokens no further document is begun; None reads all.
        length: tokens that are read at once; a longer document is read in windows, one behind the
            other. None is the model's context.
        effects: the share of documents on which effects are measured, drawn by the seed.
        seed: of the samples.
        folder: keeps the state of the reading, in ``shards/``; None keeps none.
        shard: which part of the documents is read, and of how many: (0, 4) is every fourth one.
            `join_atlas` puts the parts in the folder together.
        resume: whether to continue what is in the folder.
        probes: whether to measure, once the whole corpus is read, what needs runs of its own: what
            heads copy and retrieve, and what is lost without those that carry a name.
        progress: whether to show a progress bar; None shows it on a terminal.
        announce: takes a line about what will be read, and how long it takes.

    Raises:
        ValueError: for numbers out of range.
        Error: for a corpus without text, a file that is not text, or a folder that holds another
            atlas, or, without `resume`, this one.
        OSError: where a state can't be written; what was written before is kept.

    Example:
        >>> import regard
        >>> texts = ["Tom had a red kite. Tom wanted the red kite.", "The cat sat. The cat ran."]
        >>> atlas = regard.lens.atlas(regard.models.open(), texts, effects=1.0, probes=False)
        >>> atlas.about["tokens"], [row["role"] for row in atlas.rows][:1]
        (20, ['nearby tokens'])
    """
    place, count = shard
    for value in shard:
        check_whole(value, "shard")
    if not 0 <= place < count:
        raise ValueError(f"shard is {shard}: expected a part from 0 and their number, as (0, 4)")
    job = Job.of(model, corpus, tokens=tokens, length=length, effects=effects, seed=seed)
    path = None if folder is None else _path(Path(folder), shard)
    state = _state(path, job.about, shard, resume=resume)
    run = Run(Reader(model, seed=seed), state, path)
    if announce is not None:
        announce(job.estimate(count))
    sources: dict[int, str] = {}
    with bar(job.counted.tokens, progress=progress, title="reading documents") as advance:
        for document in job.documents():
            sources[document.number] = document.source
            if len(sources) > _SOURCES:
                kept = document_numbers(state)
                sources = {number: name for number, name in sources.items() if number in kept}
            if document.number % count == place and document.number >= state.next_document:
                run.read(document)
            advance(document.tokens)
    state.next_document = job.counted.last
    run.save()
    if announce is not None:
        announce(run.times())
    atlas = finished(model, state, sources)
    if probes and count == 1:
        probe_heads(atlas, model, job.texts, progress=progress)
    return atlas


def join_atlas(
    model: Any,
    corpus: Corpus | Iterable[str | Path] | str | Path,
    folder: str | Path,
    *,
    probes: bool = True,
    progress: bool | None = None,
) -> Atlas:
    """Put the shards of an atlas together, which were read into one folder.

    Args:
        model: the model, for the texts of tokens.
        corpus: the corpus, for the names of its documents.
        folder: where the shards are.
        probes: as for `atlas`.
        progress: as for `atlas`.

    Raises:
        Error: for shards that are missing, not finished, or do not belong together, and for
            another model or corpus.

    Example:
        >>> import regard, tempfile
        >>> model, texts = regard.models.open(), ["The cat sat.", "Tom had a red kite."]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in range(2):
        ...         _ = regard.lens.atlas(model, texts, folder=folder, shard=(part, 2))
        ...     regard.lens.join_atlas(model, texts, folder, probes=False).about["documents"]
        2
    """
    whole = _joined(Path(folder))
    about, texts = whole.about, _corpus(corpus)
    last = about["last_document"]
    counted = plan(islice(texts, last), model, tokens=None, length=about["length"])
    own = {**made_by(model), "corpus_fingerprint": counted.fingerprint}
    for key, value in own.items():
        if value != about[key]:
            raise Error(
                f"{folder} was read of something else: its {key} is {about[key]!r}, and {value!r} "
                "is given; give the model and the corpus that it was read of"
            )
    kept = document_numbers(whole)
    named = ((number, text.source) for number, text in enumerate(islice(texts, last)))
    atlas = finished(model, whole, {number: source for number, source in named if number in kept})
    if probes:
        probe_heads(atlas, model, texts, progress=progress)
    return atlas


def _joined(folder: Path) -> State:
    """Merge the shards of a folder."""
    paths = sorted((folder / "shards").glob("*.safetensors"))
    if not paths:
        raise Error(f"{folder} holds no shards of an atlas")
    states = [State.load(path) for path in paths]
    counts = {int(one.split("/")[1]) for state in states for one in state.shards}
    if len(counts) > 1:
        raise Error(
            f"{folder / 'shards'} holds the shards of several divisions of the corpus, "
            f"{', '.join(path.name for path in paths)}: remove those of all but one"
        )
    (count,) = counts
    found = {one for state in states for one in state.shards}
    wrong = [f"{n}/{count} is missing" for n in range(count) if f"{n}/{count}" not in found]
    wrong += [
        f"{state.shards[0]} is not finished: read it with resume=True"
        for state in states
        if state.next_document < state.about["last_document"]
    ]
    if wrong:
        raise Error(f"{folder} lacks shards: {', '.join(wrong)}")
    whole = states[0]
    for state in states[1:]:
        whole.merge(state)
    return whole


def _corpus(corpus: Corpus | Iterable[str | Path] | str | Path) -> Corpus:
    return corpus if isinstance(corpus, Corpus) else Corpus(corpus)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What an atlas will read of which corpus: the same for every part of it.

    Attributes:
        model: the model.
        texts: the corpus.
        tokens: after so many tokens no further document is begun.
        length: tokens of a window.
        counted: what will be read.
        about: what states must have in common to be added.
    """

    model: Any
    texts: Corpus
    tokens: int | None
    length: int
    counted: Plan
    about: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: Any,
        corpus: Corpus | Iterable[str | Path] | str | Path,
        *,
        tokens: int | None,
        length: int | None,
        effects: float,
        seed: int,
    ) -> Self:
        """Check the arguments of `atlas`, and count what it will read."""
        check_whole(seed, "seed")
        if not 0 <= effects <= 1:
            raise ValueError(f"effects is {effects}; expected a share between 0 and 1")
        if not 0 <= seed < 2**31:
            raise ValueError(f"seed is {seed}; expected a whole number from 0 to {2**31 - 1}")
        for name, number in (("tokens", tokens), ("length", length)):
            if number is not None and number < 2:
                raise ValueError(f"{name} is {number}; expected at least 2")
        texts = _corpus(corpus)
        longest = length or model.context or _LENGTH
        if model.context is not None and longest > model.context:
            raise ValueError(f"length is {longest}, but the model's context is {model.context}")
        counted = plan(texts, model, tokens=tokens, length=longest)
        about = _about(model, texts, counted, length=longest, effects=effects, seed=seed)
        return cls(
            model=model, texts=texts, tokens=tokens, length=longest, counted=counted, about=about
        )

    def documents(self) -> Iterator[Document]:
        """Yield the documents that will be read, in order."""
        return documents_of(self.texts, self.model, tokens=self.tokens, length=self.length)

    def estimate(self, parts: int) -> str:
        """Describe what will be read and about how long it takes, from a trial on a short text.

        Args:
            parts: in how many parts it is read.
        """
        counted = self.counted
        short = min(self.length, _TRIED)
        first = next(documents_of(self.texts, self.model, tokens=None, length=short))
        trial = Document(number=first.number, source="", windows=first.windows[:1])
        reader = Reader(self.model, seed=0)
        reader.read(trial, lowest={}, below=0)
        begun = time.perf_counter()
        reader.read(trial, lowest={}, below=0)
        seconds = (time.perf_counter() - begun) / trial.tokens * counted.tokens / parts
        left_out = [
            f"{number:,} {what}"
            for number, what in (
                (counted.duplicates, "duplicates left out"),
                (counted.too_short, "texts too short left out"),
                (counted.strided, f"longer than {self.length:,} tokens, read in windows"),
            )
            if number
        ]
        notes = "; ".join(["", *left_out])
        return (
            f"{counted.tokens:,} tokens of {counted.documents:,} documents{notes}; estimated time: "
            f"{_duration(seconds)}, more where documents are long"
        )


class Run:
    """Reads documents into a state, which it saves every minute.

    Args:
        reader: reads with the model, by the state's seed.
        state: what was read so far.
        path: the state's file; None for none.
    """

    def __init__(self, reader: Reader, state: State, path: Path | None = None) -> None:
        self._model = reader.model
        self._state = state
        self._path = path
        self._reader = reader
        self._saved = time.monotonic()
        self._reading = self._measuring = 0.0  # seconds
        self._measured = 0  # documents

    def read(self, document: Document) -> None:
        """Read one document, and add it to the state."""
        state = self._state
        begun = time.perf_counter()
        effects = self._effects(document)
        measured = time.perf_counter()
        read = self._reader.read(document, lowest=state.lowest, below=state.below, effects=effects)
        if effects is not None:
            state.effects += 1
            self._measured += 1
            read.clustered[_EFFECTS] = _saved_loss(effects)
        state.unmeasured |= self._reader.unmeasured
        if read.clustered:  # of no window of two tokens there is nothing
            state.add(read, self._reader.heads)
        state.next_document = document.number + 1
        self._measuring += measured - begun
        self._reading += time.perf_counter() - measured
        if time.monotonic() - self._saved > _SECONDS:
            self.save()

    def times(self) -> str:
        """Say how long it took to read, and to measure effects, since this run began."""
        return (
            f"reading took {self._reading:,.1f} s, and effects to first order on "
            f"{self._measured:,} documents {self._measuring:,.1f} s"
        )

    def save(self) -> None:
        """Write the state, if it has a file."""
        if self._path is not None:
            self._state.save(self._path)
        self._saved = time.monotonic()

    def _effects(self, document: Document) -> list[Tensor] | None:
        """Return the effects of a document's windows; None if it is not in their sample."""
        about = self._state.about
        drawn = int(hashes(about["seed"] + 1, document.number, 1)) / 2**62
        if drawn >= about["effects"] or not self._model.predicts:
            return None
        if not self._reader.knows_outputs:
            return None
        heads = _head_counts(self._model)
        none = torch.full((sum(heads), 1), torch.nan, device="cpu")  # of a window of one token
        return [
            head_effects(self._model, ids, heads) if len(ids) > 1 else none
            for ids in document.windows
        ]


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


def _saved_loss(effects: list[Tensor]) -> Tensor:
    """Return, of each head, the number of predictions and the loss that it saves of them."""
    joined = torch.cat(effects, dim=1)
    known = ~joined.isnan()
    return torch.stack([known.sum(1).double(), -joined.nan_to_num().sum(1)], dim=-1)


def _head_counts(model: Any) -> list[int]:
    """Return the number of heads of each layer that has some."""
    ids = torch.tensor([0, 1], device=model.device)
    layers, _ = model.read_layers(ids, lambda layer: len(layer.heads))
    return [count for _, count in layers]


def _path(folder: Path, shard: tuple[int, int]) -> Path:
    return folder / "shards" / f"{shard[0]}-of-{shard[1]}.safetensors"


def _state(
    path: Path | None, about: dict[str, Any], shard: tuple[int, int], *, resume: bool
) -> State:
    """Return the state to begin with: that of the folder, or an empty one."""
    if path is None or not path.exists():
        return State(about, [f"{shard[0]}/{shard[1]}"])
    if not resume:
        raise Error(f"{path} was begun before: give resume=True, or another folder")
    state = State.load(path)
    key = difference_of(about, state.about)
    if key is not None:
        raise Error(
            f"{path} was read of something else, so it can't be resumed: {key} was "
            f"{state.about.get(key)!r}, and is {about[key]!r}"
        )
    return state


def _about(
    model: Any, texts: Corpus, counted: Plan, *, length: int, effects: float, seed: int
) -> dict[str, Any]:
    """Return what states must have in common to be added."""
    return {
        "model": model.name,
        "corpus": list(texts.names),
        "corpus_fingerprint": counted.fingerprint,
        "documents": counted.documents,
        "tokens": counted.tokens,
        "duplicates": counted.duplicates,
        "too_short": counted.too_short,
        "strided": counted.strided,
        "last_document": counted.last,
        "length": length,
        "effects": effects,
        "seed": seed,
        **made_by(model),
    }


def made_by(model: Any) -> dict[str, Any]:
    """Return what the numbers of an atlas depend on, beside the corpus and the processor."""
    return {
        "model_fingerprint": _fingerprint(model.module),
        "made_with": f"regard {version('regard')}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _fingerprint(module: nn.Module) -> str:
    """Return a hash of all parameters and buffers, by name."""
    digest = blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        own = tensor.detach().cpu().contiguous()
        digest.update(own.reshape(-1).view(torch.uint8).numpy().tobytes() if own.numel() else b"")
    return digest.hexdigest()


def finished(model: Any, state: State, sources: dict[int, str]) -> Atlas:
    """Return the atlas of what was read.

    Args:
        model: the model, for the texts of tokens.
        state: of all documents.
        sources: where each document comes from, by number.
    """
    ids = token_ids(state)
    kept = document_numbers(state)
    return Atlas(
        state,
        tokens=dict(zip(ids, model.tokenizer.tokens(ids), strict=True)),
        sources={number: name for number, name in sources.items() if number in kept},
    )
