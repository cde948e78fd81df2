"""Reads the attention calls of one update: a number per head, over all of its batches.

Axes: B batch, H query heads, L queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._shapes import Bool
from regard.inputs import Problem
from regard.intercept import Call
from regard.lens.monitor._ranks import HeadStatistic, is_shared, joined
from regard.lens.monitor.history import LayerPlace, UpdateReading
from regard.pattern import Pattern
from regard.pattern.readout import Readout
from regard.record import RecordError
from regard.record.readings import named_tensors
from regard.record.sites import Site, Sites

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(eq=False)
class SiteStatistics:
    """The readings of one attention module in an update."""

    heads: int
    groups: int
    """Number of key heads."""
    statistics: dict[str, HeadStatistic] = field(default_factory=dict)


class UpdateReader:
    """Reads the calls of one update.

    Args:
        model: the model whose calls to read; None reads those of all models.
        sites: find the module of each call.
        readouts: the readouts, by name.
    """

    def __init__(
        self, model: nn.Module | None, sites: Sites, readouts: Mapping[str, Readout[Any, Any]]
    ) -> None:
        self.by_site: dict[Site, SiteStatistics] = {}
        """Tallies of each module, in the order of the first calls."""
        self._model = model
        self._sites = sites
        self._readouts = readouts

    def __call__(self, call: Call) -> None:
        """Read a call, unless it belongs to an evaluation or is a recomputation.

        Calls that a checkpoint recomputes in the backward pass are not observed: torch disables
        function modes there.
        """
        if self._is_evaluation(call) or not self._sites.has(call) or call.repeated:
            return
        site = self._sites.of(call)
        problem = call.problem()
        _, heads = problem.heads
        groups = problem.key.shape[1]
        own = self.by_site.setdefault(site, SiteStatistics(heads, groups))
        if own.heads != heads:
            raise RecordError(
                f"a layer was called with {own.heads} heads and, in the same update, with {heads}"
            )
        for name, statistic in _read(problem, self._readouts).items():
            before = own.statistics.get(name)
            own.statistics[name] = statistic if before is None else before.joined(statistic)

    def reading(self, update: int, group: ProcessGroup | None) -> UpdateReading:
        """Return the reading of all layers, on all ranks, in main memory."""
        self._sites.renumber()
        sites = self.by_site.values()
        places = tuple(
            LayerPlace(site.kind, site.layer, self._path(site), own.heads, own.groups)
            for site, own in self.by_site.items()
        )
        device = self._device()
        names = dict.fromkeys(name for own in sites for name in own.statistics)
        of_layers = {name: [own.statistics[name].to(device) for own in sites] for name in names}
        statistics = {
            name: HeadStatistic(
                own[0].is_largest,
                torch.cat([statistic.total for statistic in own]),
                torch.cat([statistic.count for statistic in own]),
            )
            for name, own in of_layers.items()
        }
        if is_shared(group):
            statistics = joined(places, statistics, group, device)
        return UpdateReading(update, places, {n: t.values.cpu() for n, t in statistics.items()})

    def _path(self, site: Site) -> str:
        """Return the path in the model of the module that attends."""
        if not site.modules:
            return ""
        module = site.modules[-1]
        inside = () if self._model is None else self._model.named_modules()
        own = next((path for path, other in inside if other is module), None)
        return self._sites.paths.path(module) if own is None else own

    def _device(self) -> torch.device:
        """Return the device on which numbers of all layers are combined: the first layer's."""
        for own in self.by_site.values():
            return next(iter(own.statistics.values())).total.device
        parameters = () if self._model is None else self._model.parameters()
        return next((p.device for p in parameters), torch.device("cpu"))

    def _is_evaluation(self, call: Call) -> bool:
        """Return True if the model is in evaluation mode and computes no gradients."""
        if torch.is_grad_enabled():
            return False
        evaluated = self._model or (call.modules[0] if call.modules else None)
        return evaluated is None or not evaluated.training


def _read(problem: Problem, readouts: Mapping[str, Readout[Any, Any]]) -> dict[str, HeadStatistic]:
    pattern = Pattern.of(problem, None)
    with torch.no_grad():
        results = pattern.read(*readouts.values())
        sees = _rows_that_see(pattern)
        return {
            column: _reduced(column, readout, tensor, sees)
            for (name, readout), result in zip(readouts.items(), results, strict=True)
            for column, tensor in named_tensors(name, result).items()
        }


def _rows_that_see(pattern: Pattern) -> Bool[Tensor, "B H L"]:
    """Return True for rows that see a key, not only a sink; others are padding."""
    return pattern.logsumexp.reshape(*pattern.problem.heads, -1) != -torch.inf


def _reduced(
    name: str, readout: Readout[Any, Any], result: Tensor, sees: Bool[Tensor, "B H L"]
) -> HeadStatistic:
    """Reduce a result to a number per head, over sequences and the result's own axes."""
    if not result.is_floating_point():
        raise TypeError(
            f"{name} of {readout!r} gives positions, which have no mean over an update; read "
            "another quantity"
        )
    batch, heads, queries = sees.shape
    own = result.shape[result.ndim - len(readout.axes) :]
    if result.numel() != batch * heads * own.numel():
        raise TypeError(
            f"{readout!r} does not give a number for each query head, as a monitor needs it; leave "
            "grouped=True out"
        )
    entries = result.double().reshape(batch, heads, *own)  # (B, H, ...)
    counted = torch.ones_like(entries, dtype=torch.bool)
    if "query" in readout.axes:
        place = readout.axes.index("query")
        shape = (*(1,) * place, queries, *(1,) * (len(own) - place - 1))
        counted &= sees.reshape(batch, heads, *shape)
    over = [axis for axis in range(entries.ndim) if axis != 1]
    is_largest = readout.reduction == "max"
    entries = torch.where(counted, entries, -torch.inf if is_largest else 0.0)
    total = entries.amax(dim=over) if is_largest else entries.sum(dim=over)
    return HeadStatistic(is_largest, total, counted.sum(dim=over).double())
