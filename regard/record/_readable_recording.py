"""What is read over all layers of a recording.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard._display import show
from regard._indices import Indices
from regard._shapes import Float
from regard.pattern.readouts import Readout
from regard.record._one_run import require_one_run
from regard.record._rollout import rollout_of
from regard.record.heads import Heads
from regard.record.layer import Layer, Tokens
from regard.record.link_weights import LinkWeights, weigh_links
from regard.record.links import Link, Span
from regard.record.names import Kind
from regard.record.passage_weights import PassageWeights, weigh_passages
from regard.record.passages import Passage
from regard.record.readings import Readings, read_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ReadableRecording(ABC):
    """Readouts of layers and tokens; a `Recording` says where both are."""

    @property
    @abstractmethod
    def tokens(self) -> Tokens | None:
        """The tokens that self-attention goes over."""

    @abstractmethod
    def of_kind(self, kind: Kind | None = None) -> tuple[Layer, ...]:
        """The layers of a kind; None is the model's own."""

    def read(
        self, *readouts: Readout[Any, Any], kind: Kind | None = None, progress: bool | None = None
    ) -> Readings:
        """Take readouts of every layer and head, one pass over each layer.

        A generation is read step by step, as ``record(model, read=[...])`` reads it.

        Args:
            readouts: what to take, from `regard.pattern.readouts`.
            kind: ``self``, ``cross`` or ``encoder``; None as for indexing.
            progress: show a bar on the terminal (needs rich); None shows it where there is one.

        Returns:
            One labelled array a readout, with axes (layer, batch, head, ...).

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> recording.read(regard.Entropy())["entropy"]
            Reading(entropy: layer 1 × batch 1 × head 2 × query 5)
        """
        return read_all(self.of_kind(kind), readouts, progress=progress)

    def heads(self, *, progress: bool | None = None) -> Heads:
        """Score each head and name its role, by control.

        A head is named after a relation, such as ``induction``, where it brings more weight to
        certain keys than each control does: a uniform head, its own other queries, the text in
        shuffled order. `regard.record.roles` defines them, and `HeadScores` the numbers beside a
        name. Exact and the same at every call, in memory O(L); scores on repeats need tokens.

        Args:
            progress: show a bar; by default on a terminal.

        Raises:
            RecordError: if only some rows were recorded, if several runs were, or if tokens do not
                fit the sequences.

        Example:
            >>> import regard, torch
            >>> tokens = [*"abcdefghij", *"abcdefghij"]
            >>> follows = torch.eye(20).roll(9, 0) * 50  # what came after the token's copy
            >>> keys = torch.eye(20)[None, None]
            >>> with regard.record(tokens=tokens) as recording:
            ...     _ = regard.attention(follows[None, None], keys, keys, mask=regard.causal())
            >>> (head,) = recording.heads()
            >>> print(head.role, head.evidence)
            induction 1.00 ± 0.00 over 10 queries
        """
        from regard.record.head_scores import score_heads

        layers = require_one_run(self.of_kind(), "heads")
        return score_heads(layers, self.tokens, progress=progress)

    def against(self, links: Iterable[Link], *, text: str | None = None) -> LinkWeights:
        """Compare where heads look with what is known of a text: which words decide which.

        Of each link one row is read: of the query that predicts the decided word's first token.

        Args:
            links: such as those of a `regard.gpt.stories.Story`: anything with a ``kind``, the
                character spans of the ``decided`` word, the ``deciding`` words and ``decoys``.
            text: the text that the spans are of, if the tokens spell more; or to check them.

        Returns:
            The weight on deciding words, on decoys and on control words, for each kind of link and
            each head of self-attention.

        Raises:
            RecordError: if the tokens are not known, or for several texts or runs, other kinds of
                attention or rows that were not recorded.
            TypeError: for an object that is not a link.
            ValueError: for spans that the tokens do not reach, or a text that they do not spell.

        Example:
            >>> import regard, torch
            >>> from types import SimpleNamespace
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record(tokens=["Ann", " and", " Ben", ":", " Ann"]) as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> copy = SimpleNamespace(kind="copy", decided=(13, 16), deciding=[(0, 3)], decoys=[])
            >>> weights = recording.against([copy])
            >>> torch.equal(weights.deciding.mean[0, 0], recording[0][0, :, 3, 0].double())
            True
        """
        layers = require_one_run(self.of_kind(), "against")
        return weigh_links(layers, self.tokens, links, text)

    def passages(
        self,
        spans: Sequence[Span | Passage],
        answer: slice,
        *,
        layers: Indices | None = None,
        heads: Indices | None = None,
        sinks: Sequence[int] | None = None,
    ) -> PassageWeights:
        """Share out the weights of an answer's queries among the passages of its context.

        Each token of the answer is predicted by the query before it, and those queries are read:
        what each key receives of them, in memory O(S). What a model looked at need not be what it
        needed: `regard.passage_effects` measures both.

        Args:
            spans: the passages, ``(first, stop)`` in tokens, or those of `regard.split_passages`.
            answer: the answer's tokens, such as ``slice(-4, None)``.
            layers: the layers of self-attention to read; all by default.
            heads: the heads of each; likewise.
            sinks: keys that are shown apart, as is the first token. By default they are found:
                keys up to the last passage's end whose mean weight, over all queries from them on
                and over all these heads, is above 0.3 (the threshold of a head's sink in Gu et
                al. 2024, arXiv:2410.10781, section 3).

        Raises:
            RecordError: for several texts or runs, other kinds of attention, or rows that were
                not recorded.
            TypeError: for arguments of another kind.
            ValueError: for spans that overlap or hold no token before the answer.
            IndexError: for layers or heads that were not recorded.

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 9, 6))
            >>> weights = recording.passages([(1, 3), (3, 6)], answer=slice(7, 9))
            >>> weights.shares.shape  # passages, layers, heads
            torch.Size([2, 1, 2])
            >>> rows = recording[0][0, :, 6:8, 1:3].double()  # each predicts the token after it
            >>> torch.allclose(weights.shares[0, 0], rows.sum(-1).mean(-1))
            True
        """
        recorded = require_one_run(self.of_kind(), "passages")
        return weigh_passages(recorded, spans, answer, only=(layers, heads), sinks=sinks)

    def plot_heads(self, kind: Kind | None = None, size: int = 64) -> Figure:
        """Draw all heads: a thumbnail each, layers down, heads across, and what each does.

        Names are those of `heads`; where heads can't be scored they have their numbers alone, and
        the figure says why. Of several sequences the first is drawn.

        Args:
            kind: ``self``, ``cross`` or ``encoder``; None as for indexing.
            size: most pixels of a thumbnail's side.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ValueError: for a kind that was not recorded, or if nothing was.
            ImportError: without matplotlib, which the extra ``plot`` brings.
        """
        figure: Figure = show("plot_heads", self, kind, size)
        return figure

    def rollout(
        self,
        query: int | None = None,
        *,
        source: int | None = None,
        residual: float = 0.5,
    ) -> Float[Tensor, "B S"]:
        """Follow attention through all layers: attention rollout.

        Each layer's weights, averaged over heads, are mixed with the identity, which stands for the
        residual stream: ``A' = residual·I + (1 − residual)·A``. Rollout is the product
        ``A'_n ··· A'_1`` (Abnar and Zuidema 2020, arXiv:2005.00928, equation 1, with residual 0.5).
        One row or column of it takes a vector through the layers; no L × L product is made.

        Args:
            query: a target position, negative from the end: how much of each source position
                reaches it, a row.
            source: in its place, a source position: how much of it reaches each target, a column.
            residual: share of the residual stream, in [0, 1].

        Returns:
            ``(B, S)``; a row sums to 1 where every query sees something.

        Raises:
            ValueError: unless exactly one position is given, and for layers that are not square.
            RecordError: if several runs were recorded.

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> model = torch.nn.Sequential(layer, layer)
            >>> with regard.record(model) as recording:
            ...     _ = model(torch.randn(1, 5, 6))
            >>> recording.rollout(query=-1).sum().round(decimals=4)
            tensor(1.)
        """
        patterns = [layer.pattern for layer in require_one_run(self.of_kind(), "rollout")]
        return rollout_of(patterns, query=query, source=source, residual=residual)
