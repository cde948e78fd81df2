"""The modules of a model that attend: their paths, what they attend to, and how a text continues.

Self-attention, the cross-attention of a decoder to its source, and the self-attention of an encoder
beside a decoder are three kinds, whose layers are numbered apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard._modules import unwrapped, unwrapped_name
from regard.intercept import Call

AttentionKind = Literal["self", "cross", "encoder"]
KINDS: tuple[AttentionKind, ...] = ("self", "cross", "encoder")

# Parts of module names that mark the attention of a decoder to an encoder's output.
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec")


def kinds_of(kinds: Iterable[AttentionKind]) -> tuple[AttentionKind, ...]:
    """Remove duplicates and sort in the order of `KINDS`."""
    present = set(kinds)
    return tuple(kind for kind in KINDS if kind in present)


def choose_kind(kind: AttentionKind | None, kinds: Sequence[AttentionKind]) -> AttentionKind:
    """Resolve a kind: None is self-attention, or the first kind present where there is none.

    Raises:
        ValueError: for a kind that was not recorded.
    """
    if kind is None:
        return kinds[0] if kinds else "self"
    if kind not in kinds:
        raise ValueError(
            f"kind={kind!r} was not recorded; there is {', '.join(map(repr, kinds)) or 'none'}"
        )
    return kind


class ModulePaths:
    """Maps modules to their paths, such as ``transformer.h.0.attn``, and to their kinds."""

    def __init__(self, model: nn.Module | None) -> None:
        self._paths: dict[int, dict[int, str]] = {}
        self._with_decoder: dict[int, set[str]] = {}
        """For each root, the paths of modules that have a child named as a decoder."""
        self._roots: list[nn.Module] = []
        if model is not None:
            self.add(model)

    def add(self, root: nn.Module) -> None:
        """Add the paths of all modules below a root."""
        if id(root) not in self._paths:
            self._roots.append(root)  # keeps the root alive, so that its id stays unique
            modules = unwrapped(root).named_modules()
            paths = {id(module): unwrapped_name(path) for path, module in modules}
            self._paths[id(root)] = paths
            ends = (path.rpartition(".") for path in paths.values())
            self._with_decoder[id(root)] = {
                above for above, _, name in ends if _is(name, "decoder")
            }

    def path(self, module: nn.Module | None) -> str:
        """Return the longest known path of a module, or its class name if it has none."""
        if module is None:
            return ""
        paths = [paths[id(module)] for paths in self._paths.values() if id(module) in paths]
        return max(paths, key=len, default="") or type(module).__name__

    def kind(self, modules: Sequence[nn.Module]) -> AttentionKind:
        """Classify the innermost module by its attributes, its name and its parents' names."""
        if not modules:
            return "self"
        module, path = modules[-1], self.path(modules[-1])
        parent = modules[-2] if len(modules) > 1 else None
        named = any(word in path.lower() for word in _CROSS)
        if getattr(module, "is_cross_attention", False) is True or named:
            return "cross"
        if isinstance(parent, nn.TransformerDecoderLayer) and module is parent.multihead_attn:
            return "cross"
        return "encoder" if self._beside_decoder(module) else "self"

    def _beside_decoder(self, module: nn.Module) -> bool:
        """Return whether a module is part of an encoder that has a decoder beside it."""
        for id_of_root, paths in self._paths.items():
            parts = paths.get(id(module), "").split(".")
            for index, part in enumerate(parts):
                above = ".".join(parts[:index])
                if _is(part, "encoder") and above in self._with_decoder[id_of_root]:
                    return True
        return False


def _is(name: str, part: str) -> bool:
    """Return whether a name is ``encoder``, say, or ends with it, such as ``text_encoder``."""
    return name == part or name.endswith("_" + part)


@dataclass(eq=False)
class Site:
    """An attention layer: a module, and for a module called repeatedly in a run, which call."""

    modules: tuple[nn.Module, ...]
    kind: AttentionKind
    layer: int
    """Index among the sites of its kind, in the order of their first calls."""

    @property
    def shares_keys(self) -> bool:
        """Whether the layer uses an earlier layer's keys, by the attribute in transformers.

        Such a layer may skip all queries but the last when only the last logits are needed
        (Gemma 4).
        """
        return bool(self.modules) and vars(self.modules[-1]).get("is_kv_shared_layer") is True


class Sites:
    """Looks up the site of each call.

    Args:
        model: calls outside this model have no site; None accepts all calls.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.paths = ModulePaths(model)
        self._within = None if model is None else {id(m) for m in model.modules()}
        self._sites: dict[tuple[int, int], Site] = {}
        self._run = -1
        self._times: dict[int, int] = {}

    def has(self, call: Call) -> bool:
        """Return whether the model made a call."""
        return self._within is None or not self._within.isdisjoint(map(id, call.modules))

    def of(self, call: Call) -> Site:
        """Look up the site and increment its call count; not to be used for repeated calls."""
        if call.run != self._run:
            self._run, self._times = call.run, {}
        caller = id(call.modules[-1]) if call.modules else 0
        time = self._times[caller] = self._times.get(caller, -1) + 1
        site = self._sites.get((caller, time))
        if site is None:
            if call.modules:
                self.paths.add(call.modules[0])
            kind = self.paths.kind(call.modules)
            site = Site(call.modules, kind, self._count(kind))
            self._sites[caller, time] = site
        return site

    def restart(self) -> None:
        """Reset the call counts: each block that observes calls numbers its runs from 0."""
        self._run, self._times = -1, {}

    def next(self, modules: Sequence[nn.Module], run: int) -> tuple[AttentionKind, int]:
        """Return kind and layer of the site of the innermost module's next call."""
        caller = id(modules[-1]) if modules else 0
        time = self._times.get(caller, -1) + 1 if run == self._run else 0
        site = self._sites.get((caller, time))
        if site is not None:
            return site.kind, site.layer
        kind = self.paths.kind(modules)
        return kind, self._count(kind)

    def counts(self) -> dict[AttentionKind, int]:
        """Return the number of layers of each kind."""
        kinds = dict.fromkeys(site.kind for site in self._sites.values())
        return {kind: self._count(kind) for kind in kinds}

    def renumber(self) -> None:
        """Recompute kinds and layer indices, since later calls may have added module paths."""
        counts: dict[AttentionKind, int] = {}
        for site in self._sites.values():
            site.kind = self.paths.kind(site.modules)
            site.layer = counts.get(site.kind, 0)
            counts[site.kind] = site.layer + 1

    def _count(self, kind: AttentionKind) -> int:
        return sum(site.kind == kind for site in self._sites.values())


@dataclass(frozen=True, kw_only=True)
class _SelfAttention:
    """A call of self-attention."""

    run: int
    queries: int
    continued: bool


class ContinuationTracker:
    """Tells whether a call of cross-attention continues the previous run.

    The keys of cross-attention are the same in every run over one source, so they cannot tell the
    next step of a generation from a new run. The keys of self-attention can: they are those of the
    previous run followed by the keys of the new queries.

    Example:
        >>> from regard.record.sites import ContinuationTracker, Site
        >>> tracker, cross = ContinuationTracker(), Site((), "cross", 0)
        >>> tracker.continues(cross, run=0, queries=1)  # a model without self-attention
        False
        >>> tracker.add_self_attention(run=1, queries=1, continued=True)
        >>> tracker.continues(cross, run=1, queries=1)
        True
    """

    def __init__(self) -> None:
        self._latest: _SelfAttention | None = None
        self._cross: dict[Site, tuple[int, int]] = {}
        """Run and number of queries of each site's latest call."""

    def add_self_attention(self, *, run: int, queries: int, continued: bool) -> None:
        """Record a call of self-attention.

        Args:
            run: the index of the model's run.
            queries: the number of queries.
            continued: whether the call's first keys were the cached keys of the previous call.
        """
        self._latest = _SelfAttention(run=run, queries=queries, continued=continued)

    def continues(self, site: Site, *, run: int, queries: int) -> bool:
        """Return whether a call's queries follow those of the site's previous call.

        They do if the self-attention before it in the same run continued from a cache with as many
        queries. In a model whose cross-attention precedes all self-attention of a run (Idefics) the
        previous run decides: a single query is a generation step if that run was one, or if it read
        several tokens.
        """
        before, latest = self._cross.get(site), self._latest
        self._cross[site] = run, queries
        if latest is None:
            return False
        if latest.run == run:
            return latest.continued and latest.queries == queries
        if site.kind != "cross" or before is None or queries != 1 or latest.run != before[0]:
            return False
        return latest.continued or before[1] > 1
