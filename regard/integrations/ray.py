"""An atlas of heads, read by many machines that run on Ray Data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from platform import node
from typing import Any

import numpy as np
import torch

from regard import models
from regard._arguments import check_whole
from regard._extras import needing
from regard.errors import Error
from regard.lens.head_atlas import Atlas, Corpus
from regard.lens.head_atlas.build import Job, Run, finished, made_by
from regard.lens.head_atlas.probes import probe_heads
from regard.lens.head_atlas.reading import Document, Reader
from regard.lens.head_atlas.state import State
from regard.record.readings import bar

__all__ = ["BatchReader", "atlas_on_ray"]


def atlas_on_ray(
    model: str | None,
    corpus: Corpus | Iterable[str | Path] | str | Path,
    *,
    tokens: int | None = None,
    length: int | None = None,
    effects: float = 0.05,
    seed: int = 0,
    workers: int | None = None,
    batch: int = 32_768,
    probes: bool = True,
    progress: bool | None = None,
) -> Atlas:
    """Read what each head of a model does, over a corpus, with the processes of a Ray cluster.

    As `regard.lens.atlas` on one machine, and equal to it to the last digit, on one kind of
    processor with the same number of threads, whatever the cluster, the workers and the batches:
    each document is read by itself, and what was read is added in integers and sorted tables.

    This process reads the corpus and hands out the tokens, 4 bytes each, which lie in Ray's object
    store. A worker opens the model by its name, so that each machine needs regard, with this extra,
    and the model; that it is the same one is checked by the hash of its weights. It returns the
    state of a batch, which is added here.

    A state arrives whole, or not at all. Where a process or a machine dies, Ray starts another
    process, which reads the batch again from its beginning; what had been read of it counts for
    nothing, and a state that came twice would be refused. Ray does so without end: a document for
    which a machine's memory does not suffice stops nothing, and shows in Ray's log alone. If this
    process dies, everything is lost; `regard.lens.atlas` with a folder can be resumed.

    The cluster is the one that this process is connected to; else that of the environment variable
    ``RAY_ADDRESS``; else one is started on this machine, without a dashboard and without statistics
    of usage, and stopped at the end. Ray moves what it moves in its own way, which includes
    pickles, and lets whoever reaches its ports run code: keep a cluster in a network of its own.

    Args:
        model: its name, as for `regard.models.open`, under which each machine finds it.
        corpus: texts, or paths of files and folders on this machine; see `regard.lens.Corpus`.
        tokens: after so many tokens no further document is begun; None reads all.
        length: tokens that are read at once; None is the model's context.
        effects: the share of documents on which effects are measured, drawn by the seed.
        seed: of the samples.
        workers: processes that read, each with as many threads and processors as this one has
            threads (`torch.get_num_threads`); None is as many as the cluster has room for.
        batch: tokens after which a batch takes no further document. A larger one sends fewer states
            (of SmolLM2-135M, up to 36 MB each), and loses more where a process dies.
        probes: as for `regard.lens.atlas`; they are measured in this process.
        progress: whether to show a progress bar; None shows it on a terminal.

    Raises:
        ValueError: for numbers out of range.
        Error: for a corpus or a model as for `regard.lens.atlas`, a cluster without a machine that
            has a processor for each thread, and a worker whose model, or versions, differ.
        ModuleNotFoundError: without Ray, which the extra ``ray`` installs.

    Example:
        >>> from pathlib import Path
        >>> from regard.integrations.ray import atlas_on_ray
        >>> atlas_on_ray("HuggingFaceTB/SmolLM2-135M", Path("corpus"))  # doctest: +SKIP
    """
    for name, number in (("workers", workers), ("batch", batch)):
        if number is not None:
            check_whole(number, name)
            if number < 1:
                raise ValueError(f"{name} is {number}; expected at least 1")
    with needing("ray"):
        import pyarrow as pa
        import ray.data

    opened = models.open(model)
    job = Job.of(opened, corpus, tokens=tokens, length=length, effects=effects, seed=seed)
    sources: dict[int, str] = {}
    tables = []
    for documents in _batches(job.documents(), batch):
        sources |= {one.number: one.source for one in documents}
        tables.append(pa.table(_columns(documents)))
    whole = State(job.about, [], next_document=job.counted.last)
    shown = bar(job.counted.tokens, progress=progress, title="reading documents")
    with _cluster(ray), shown as advance:
        threads = job.about["threads"]
        room = _room(ray, threads)
        count = min(workers or room, len(tables))
        dataset = ray.data.from_arrow(tables)
        dataset.context.enable_progress_bars = False
        states = dataset.map_batches(
            BatchReader,
            fn_constructor_args=(model, job.about),
            batch_size=None,  # a batch is a table
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(
                min_size=1,  # where a machine is lost, a worker that has nothing to do makes room
                max_size=count,
                initial_size=count,
                max_tasks_in_flight_per_actor=1,  # none waits for a worker while another has none
            ),
            num_cpus=threads,
        )
        for row in states.iter_rows():
            if row["error"]:
                raise Error(row["error"])
            whole.merge(State.unpacked(row["state"].tobytes(), "a worker's state"))
            advance(int(row["tokens"]))
    if whole.sums.documents != job.counted.documents:
        raise Error(
            f"of {job.counted.documents} documents, workers returned {whole.sums.documents}"
        )
    whole.shards = ["0/1"]  # it is the whole corpus
    atlas = finished(opened, whole, sources)
    if probes:
        probe_heads(atlas, opened, job.texts, progress=progress)
    return atlas


class BatchReader:
    """Reads batches of documents, in a process that opens the model once.

    Args:
        model: its name.
        about: what is read, as the process has it that adds the states.

    Example:
        >>> import numpy as np, regard
        >>> from regard.integrations.ray import BatchReader
        >>> atlas = regard.lens.atlas(regard.models.open(), ["The cat sat."])
        >>> reader = BatchReader(None, atlas.state.about)
        >>> batch = {"number": np.array([0]), "ids": np.array([[5, 3, 8, 3]])}
        >>> reader(batch)["tokens"]
        array([4])
    """

    def __init__(self, model: str | None, about: Mapping[str, Any]) -> None:
        self._name = model
        self._about = dict(about)
        self._reader: Reader | None = None

    def __call__(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Read a batch.

        Args:
            batch: ``number`` of each document, and its ``ids``.

        Returns:
            One row: ``state``, the bytes of its `State`, ``tokens``, their number, and ``error``,
            the message of an `Error`, else empty. Ray would hand on no more than a traceback.
        """
        state, tokens, error = b"", 0, ""
        try:
            state, tokens = self._read(batch)
        except Error as raised:
            error = str(raised)
        return {
            "state": np.frombuffer(state, dtype=np.uint8)[None],
            "tokens": np.array([tokens]),
            "error": np.array([error]),
        }

    def _read(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> tuple[bytes, int]:
        # Not in the constructor, which Ray calls in another thread: torch counts threads in each.
        if self._reader is None:
            self._reader = self._opened()
        numbers = batch["number"].tolist()
        state = State(self._about, [f"documents {min(numbers)} to {max(numbers)}"])
        run, tokens, length = Run(self._reader, state), 0, self._about["length"]
        # The tables of examples prefer earlier documents, so that these come in order.
        for number, ids in sorted(zip(numbers, batch["ids"], strict=True), key=itemgetter(0)):
            document = Document.of(number, "", ids.tolist(), length)
            run.read(document)
            tokens += document.tokens
        state.next_document = self._about["last_document"]
        return state.packed(), tokens

    def _opened(self) -> Reader:
        """Open the model, and compare it with the one whose atlas it is."""
        torch.set_num_threads(self._about["threads"])
        opened = models.open(self._name)
        for key, own in made_by(opened).items():
            if own != self._about[key]:
                raise Error(
                    f"the worker on {node()} would read something else: its {key} is {own!r}, "
                    f"and {self._about[key]!r} was expected"
                )
        return Reader(opened, seed=self._about["seed"])


def _batches(documents: Iterable[Document], tokens: int) -> Iterator[list[Document]]:
    """Divide documents into batches that end once they have so many tokens."""
    begun: list[Document] = []
    for document in documents:
        begun.append(document)
        if sum(one.tokens for one in begun) >= tokens:
            yield begun
            begun = []
    if begun:
        yield begun


def _columns(documents: Sequence[Document]) -> dict[str, Any]:
    """Return what a worker needs of documents."""
    return {
        "number": [one.number for one in documents],
        "ids": [np.array([*chain(*one.windows)], dtype=np.int32) for one in documents],
    }


@contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Connect to a cluster, or start one, unless this process is connected to one."""
    if ray.is_initialized():
        yield
        return
    statistics = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(statistics)
    os.environ[statistics] = "0"  # no option of ray.init says so
    try:
        ray.init(include_dashboard=False)
        yield
    finally:
        ray.shutdown()
        if before is None:
            del os.environ[statistics]
        else:
            os.environ[statistics] = before


def _room(ray: Any, threads: int) -> int:
    """Return how many workers a cluster has room for."""
    processors = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    room = sum(int(count // threads) for count in processors)
    if not room:
        raise Error(
            f"no machine of the cluster has {threads} processors, one for each thread of this "
            "process; call torch.set_num_threads() with fewer"
        )
    return room
