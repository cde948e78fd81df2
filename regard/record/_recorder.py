"""Assigns a model's attention calls to layers, while a block observes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from regard._modules import module_of, unwrapped
from regard.errors import RecordError
from regard.inputs import Problem
from regard.intercept import Call, observe_contexts, replace_attention
from regard.record._layer_builder import LayerCall, past_keys
from regard.record._pattern_builder import PatternBuilder
from regard.record._selection import Selection
from regard.record._tokens import Labeller
from regard.record.layer import Layer
from regard.record.sites import AttentionKind, ContinuationTracker, Site, Sites


@runtime_checkable
class Builder(Protocol):
    """Collects the calls of one layer."""

    @property
    def continued(self) -> bool:
        """Whether the latest call continued the previous one."""

    @property
    def queries(self) -> int:
        """Number of queries of the current text so far."""

    def extend(self, call: LayerCall) -> bool:
        """Add a call; return False if it belongs to a new builder."""


B = TypeVar("B", bound=Builder)
P = TypeVar("P", bound=PatternBuilder)


@dataclass(frozen=True)
class LayerId:
    """Path, kind and index of a layer."""

    name: str
    kind: AttentionKind
    index: int


class Recorder(Generic[B]):
    """Passes each call to the builder of the layer that made it.

    Args:
        model: calls of other models are ignored; None records all calls.
        selection: the layers, heads and rows to keep.
        begin: creates a builder from its first call.
    """

    def __init__(
        self,
        model: nn.Module | None,
        selection: Selection,
        begin: Callable[[LayerCall, AttentionKind], B],
    ) -> None:
        self.calls = 0
        self._selection = selection
        self._begin = begin
        self._sites = Sites(model)
        self._continuations = ContinuationTracker()
        self._latest: tuple[int, B] | None = None
        """Run and builder of the latest call other than cross-attention."""
        self._builders: dict[Site, B] = {}
        """The current builder of each recorded site."""
        self._counts: dict[Site, int] = {}
        self._others: set[Site] = set()
        self._order: list[tuple[Site, B]] = []

    def __call__(self, call: Call) -> None:
        """Record one call."""
        if not self._sites.has(call):
            return
        self.calls += 1
        if call.repeated:
            return
        site = self._sites.of(call)
        if site not in self._builders and not self._selection.has_layer(site.layer):
            self._others.add(site)  # final, although a later call may change the layer's index
        if site in self._others:
            return
        problem = call.problem()
        builder = self._add(site, call, problem)
        if site.kind != "cross":
            self._latest = call.run, builder
            self._continuations.add_self_attention(
                run=call.run, queries=problem.queries, continued=builder.continued
            )

    def builders(self) -> list[tuple[LayerId, B]]:
        """Return the builders and their layers, in the order of their first calls."""
        self._sites.renumber()
        return [(self._layer_id(site), builder) for site, builder in self._order]

    @property
    def has_several_calls(self) -> bool:
        """Whether any layer made more than one call, as in a generation."""
        return any(latest > 0 for latest in self._counts.values())

    def _add(self, site: Site, call: Call, problem: Problem) -> B:
        """Add a call to the site's builder, or start a new builder with it."""
        number = self._counts[site] = self._counts.get(site, -1) + 1
        left_out, begins = 0, False
        if site.shares_keys:
            left_out, begins = self._position_in_text(problem, call.run)
        added = LayerCall(
            problem=problem,
            path=self._path(site),
            value=call.value_of(problem) if self._selection.keep_of_values else None,
            number=number,
            left_out=left_out,
            begins=begins,
            follows=self._continuations.continues(site, run=call.run, queries=problem.queries),
        )
        if site in self._builders and self._builders[site].extend(added):
            return self._builders[site]
        builder = self._builders[site] = self._begin(added, site.kind)
        self._order.append((site, builder))
        return builder

    def _position_in_text(self, problem: Problem, run: int) -> tuple[int, bool]:
        """Return the number of earlier queries of the text, and whether the call begins a text.

        Both follow from the previous layer of the run, whose count includes skipped queries.
        """
        if self._latest is None or self._latest[0] != run:
            return past_keys(problem), False
        builder = self._latest[1]
        return max(builder.queries - problem.queries, 0), not builder.continued

    def _layer_id(self, site: Site) -> LayerId:
        return LayerId(self._path(site), site.kind, site.layer)

    def _path(self, site: Site) -> str:
        return self._sites.paths.path(site.modules[-1] if site.modules else None)


def layers_of(recorder: Recorder[P]) -> list[Layer]:
    """Return the layers recorded so far, in the order of their first calls."""
    return [
        Layer(
            name=layer.name,
            kind=layer.kind,
            index=layer.index,
            heads=builder.heads,
            rows=builder.rows,
            kept=builder.kept(),
            get_pattern=builder.pattern,
            get_calls=builder.calls,
        )
        for layer, builder in recorder.builders()
    ]


def check_model(model: Any) -> nn.Module | None:
    """Return the module inside a language model, and inside wrappers such as DDP.

    Raises:
        TypeError: for anything but a module or None.
    """
    model = module_of(model)
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module or None, but is {type(model).__name__}; of a "
            "pipeline, give the module inside, such as pipeline.model or pipeline.unet"
        )
    return None if model is None else unwrapped(model)


@contextmanager
def observed(
    recorder: Recorder[Any],
    model: nn.Module | None,
    labeller: Labeller,
    calls: AbstractContextManager[None],
    finish: Callable[[], None],
    *,
    values: bool = False,
) -> Iterator[None]:
    """Pass the calls of the block to a recorder.

    Args:
        recorder: the recorder.
        model: the model whose attention is replaced if it would not call SDPA.
        labeller: labels the positions.
        calls: observes calls while it is entered.
        finish: called at the end of the block.
        values: whether values are read; torch's layers then run without fused operators, which do
            not tell them.

    Raises:
        RecordError: at the end of the block, if no call was seen.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(labeller.observe_ids())
            if model is not None:
                stack.enter_context(replace_attention(model))
            if values:
                stack.enter_context(observe_contexts(_ignore))
            stack.enter_context(calls)
            yield
    except BaseException:
        with suppress(RecordError):  # the block's own error is raised
            finish()
        raise
    finish()
    if recorder.calls == 0:
        raise RecordError(_nothing_seen(model))


def _ignore(call: Call, context: Tensor) -> None:
    """Observe a context and keep nothing of it."""


def _nothing_seen(model: nn.Module | None) -> str:
    if model is None:
        return (
            "no attention call was seen; a model of transformers with 'eager' attention must be "
            "given: record(model); others must call "
            "torch.nn.functional.scaled_dot_product_attention, on this thread and in this task"
        )
    return (
        f"no attention call of {type(model).__name__} was seen; call the model inside the with "
        "block, on this thread and in this task; attention written out in the model itself can't "
        "be seen: let it call torch.nn.functional.scaled_dot_product_attention or regard.attention"
    )
