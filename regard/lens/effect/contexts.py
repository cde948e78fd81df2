"""Contexts of heads in runs over prompts, and what they put in the place of a head's own context.

Axes: N prompts, H heads, L positions, Dv dimension of a value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard._arguments import check_choice, check_floating, check_whole
from regard._modules import module_of, unwrapped
from regard._shapes import Float
from regard.errors import Error
from regard.intercept import Call, observe_contexts, replace_attention
from regard.intervene import Intervention
from regard.lens.effect.runs import call_of
from regard.lens.targets import TextModel, read_in
from regard.record.sites import KINDS, AttentionKind, Site, Sites

Run = str | Tensor | Mapping[str, Any] | Callable[[nn.Module], Any]
"""A language model's text, token ids ``(T,)``, inputs by name, or a function that runs a model."""


@dataclass(frozen=True, eq=False)
class Contexts:
    """The contexts of every head in runs over several prompts; made by `contexts`.

    They are kept on the model's device and in its dtype, N·T·H·Dv numbers a layer for prompts of T
    tokens.

    Attributes:
        prompts: the prompts, or their numbers where they are not text.
        kind: the kind of attention, as in a `Recording`.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> prompts = [lambda layer, x=x: layer(x) for x in torch.randn(4, 1, 5, 6)]
        >>> contexts = regard.lens.contexts(layer, prompts)
        >>> contexts[0].shape, contexts.mean()[0].shape, len(contexts.sample(3))
        (torch.Size([4, 2, 5, 3]), torch.Size([2, 5, 3]), 3)
    """

    prompts: tuple[str, ...]
    kind: AttentionKind
    _runs: tuple[dict[int, Float[Tensor, "1 H L Dv"]], ...] = field(repr=False)

    def __repr__(self) -> str:
        size = sum(tensor.nbytes for run in self._runs for tensor in run.values())
        return f"Contexts({len(self)} prompts, {len(self.layers)} layers, {size / 1e6:.1f} MB)"

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self._runs)

    @property
    def layers(self) -> tuple[int, ...]:
        """The indices of the layers."""
        return tuple(self._runs[0])

    def __getitem__(self, layer: int) -> Float[Tensor, "N H L Dv"]:
        """Return the contexts of a layer.

        Raises:
            IndexError: for a layer that no prompt's run had.
            ValueError: for prompts of several lengths.
        """
        tensors = self._of(layer)
        lengths = sorted({tensor.shape[2] for tensor in tensors})
        if len(lengths) > 1:
            raise ValueError(
                f"the prompts have {lengths[0]} to {lengths[-1]} positions, so that their contexts "
                "are no tensor; give prompts of one length, or take mean()"
            )
        return torch.cat(tensors)

    def mean(self, *, per_position: bool = True) -> dict[int, Float[Tensor, "H L Dv"]]:
        """Return the mean context of each head in each layer.

        Mean ablation puts it in the place of a head's context (Wang et al. 2022, arXiv:2211.00593,
        where prompts are filled with random names). A prompt that is shorter than others is no part
        of the mean at later positions.

        Args:
            per_position: a mean for each position, ``(H, L, Dv)``; else one over all positions,
                ``(H, 1, Dv)``.
        """
        means = {}
        for layer in self.layers:
            tensors = [tensor[0] for tensor in self._of(layer)]
            if not per_position:
                rows = torch.cat(tensors, dim=1).double()
                means[layer] = rows.mean(dim=1, keepdim=True).to(tensors[0])
                continue
            longest = max(tensors, key=lambda tensor: tensor.shape[1])
            total = torch.zeros_like(longest, dtype=torch.float64)
            count = total.new_zeros(total.shape[1], 1)
            for tensor in tensors:
                total[:, : tensor.shape[1]] += tensor
                count[: tensor.shape[1]] += 1
            means[layer] = (total / count).to(longest)
        return means

    def sample(self, count: int, *, seed: int = 0) -> Contexts:
        """Draw prompts at random, without replacement, for resampling.

        Args:
            count: number of prompts.
            seed: the same seed draws the same prompts.

        Raises:
            ValueError: for fewer than one, or more than there are.
        """
        check_whole(count, "count")
        if not 1 <= count <= len(self):
            raise ValueError(f"count must be 1 to {len(self)}, the prompts, but is {count}")
        drawn = random.Random(seed).sample(range(len(self)), count)
        return Contexts(
            tuple(self.prompts[n] for n in drawn), self.kind, tuple(self._runs[n] for n in drawn)
        )

    def replacements(self) -> tuple[Replacement, ...]:
        """Return one replacement per prompt, of every context by the prompt's own."""
        return tuple(
            Replacement(given=run, name=prompt)
            for run, prompt in zip(self._runs, self.prompts, strict=True)
        )

    def _of(self, layer: int) -> list[Float[Tensor, "1 H L Dv"]]:
        if layer not in self._runs[0]:
            raise IndexError(f"there are no contexts of layer {layer}; layers: {self.layers}")
        return [run[layer] for run in self._runs]


def contexts(
    model: nn.Module | TextModel,
    prompts: Iterable[Run],
    *,
    kind: AttentionKind = "self",
) -> Contexts:
    """Run a model over prompts, one after another, and keep the contexts of all heads.

    They take the place of a head's context in `effects`, where ``by=contexts.mean()`` is mean
    ablation per position and ``by=contexts`` resampling, and in `Intervention.patch`. Positions are
    matched by number alone: prompts whose words stand in the same places as the text's are the
    ones to give, such as a template filled with other names.

    Args:
        model: the model, as for `effects`.
        prompts: each as ``run`` of `effects`: token ids ``(T,)`` of one text, a string if the model
            is a `regard.models.LanguageModel`, a mapping of the model's inputs, or a function that
            runs the model once.
        kind: the kind of attention, as in a `Recording`: ``self``, ``cross`` or ``encoder``.

    Raises:
        Error: for a run in which a layer attends several times, as in a generation.
        TypeError: for arguments of the wrong type.
        ValueError: for no prompt, for a batch of several sequences, and for runs of other layers.

    Example:
        >>> import regard, torch
        >>> model, tokenizer = regard.gpt.load()
        >>> texts = "The cat sat", "A hen ran"
        >>> prompts = [torch.tensor(tokenizer.encode(text)) for text in texts]
        >>> regard.lens.contexts(model, prompts)
        Contexts(2 prompts, 4 layers, 0.0 MB)
    """
    check_choice("kind", kind, KINDS)
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Iterable):
        raise TypeError(
            f"prompts must be several prompts, such as a list, but is {type(prompts).__name__}"
        )
    module = module_of(model)
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but is {type(model).__name__}")
    module = unwrapped(module)
    names: list[str] = []
    runs: list[dict[int, Tensor]] = []
    with torch.inference_mode(mode=False), torch.no_grad(), replace_attention(module):
        for number, prompt in enumerate(prompts):
            names.append(prompt if isinstance(prompt, str) else f"prompt {number}")
            run = prompt if isinstance(model, nn.Module) else read_in(model, prompt)
            with observed(module) as seen:
                call_of(run)[0](module, 1)
            runs.append(_of_kind(seen, kind, names[-1]))
            if runs[-1].keys() != runs[0].keys():
                raise ValueError(
                    f"prompts: the run of {names[-1]!r} had the layers {[*runs[-1]]}, that of "
                    f"{names[0]!r} {[*runs[0]]}; take a model whose runs have the same layers"
                )
    if not runs:
        raise ValueError("prompts is empty; give at least one")
    return Contexts(tuple(names), kind, tuple(runs))


def _of_kind(seen: Observed, kind: AttentionKind, name: str) -> dict[int, Tensor]:
    found = {layer: context for (of, layer), context in seen.contexts.items() if of == kind}
    if not found:
        kinds = sorted({of for of, _ in seen.contexts})
        raise ValueError(
            f"prompts: the run of {name!r} had no attention of kind {kind!r}, but of "
            f"{', '.join(map(repr, kinds)) or 'none'}"
        )
    for context in found.values():
        if len(context) != 1:
            raise ValueError(
                f"prompts: {name!r} is a batch of {len(context)} sequences; give them one by one"
            )
    return found


class Observed:
    """The contexts and values of a model's calls in one run, by kind and layer.

    Args:
        model: the model.
        values: whether to keep the values too.
    """

    def __init__(self, model: nn.Module, *, values: bool) -> None:
        self._sites = Sites(model)
        self._keeps_values = values
        self._contexts: dict[Site, Tensor] = {}
        self._values: dict[Site, Tensor] = {}

    def __call__(self, call: Call, context: Float[Tensor, "B H L Dv"]) -> None:
        """Keep what a call computed.

        Raises:
            Error: for a second call of a layer.
        """
        if not self._sites.has(call):
            return
        site = None if call.repeated else self._sites.of(call)
        if site is None or site in self._contexts:
            raise Error(
                "a layer attends several times in one run, as in a generation, or applies the same "
                "weights to several values; give runs in which each layer attends once"
            )
        self._contexts[site] = context.detach().clone()  # the model may write to its own
        if self._keeps_values:
            value = call.attention().value
            assert value is not None, "a call that is computed has values"
            self._values[site] = value.detach().clone()

    def finish(self) -> None:
        """Number the layers, once all of them are known."""
        self._sites.renumber()

    @property
    def contexts(self) -> dict[tuple[AttentionKind, int], Float[Tensor, "B H L Dv"]]:
        """The context of each layer."""
        return {(site.kind, site.layer): context for site, context in self._contexts.items()}

    @property
    def values(self) -> dict[tuple[AttentionKind, int], Float[Tensor, "B G S Dv"]]:
        """The values of each layer."""
        return {(site.kind, site.layer): value for site, value in self._values.items()}


@contextmanager
def observed(model: nn.Module, *, values: bool = False) -> Iterator[Observed]:
    """Keep the contexts of the run inside the block, and its values if they are asked for."""
    seen = Observed(model, values=values)
    with observe_contexts(seen):
        yield seen
    seen.finish()


@dataclass(frozen=True, eq=False, kw_only=True)
class Replacement:
    """What takes the place of a head's context."""

    by: str = "zero"
    """``zero`` or ``mean``, as for `Intervention.ablate`, if nothing is given."""
    given: Mapping[int, Tensor] | None = None
    """The contexts of each layer, ``(H, L, Dv)`` or ``(1, H, L, Dv)``."""
    name: str = ""
    """The prompt of the given contexts."""

    def state(
        self,
        intervention: Intervention,
        layer: int,
        kind: AttentionKind,
        heads: int | None = None,
        batch: int | None = None,
    ) -> None:
        """State the replacement in heads of a layer to an intervention."""
        if self.given is None:
            intervention.ablate(layers=layer, kind=kind, heads=heads, batch=batch, by=self.by)
            return
        intervention.patch(
            context=self.given[layer], layers=layer, kind=kind, heads=heads, batch=batch
        )

    def require(self, layers: Sequence[int]) -> None:
        """Refuse layers whose contexts are not given.

        Raises:
            ValueError: for the first such layer.
        """
        given = {} if self.given is None else self.given
        missing = [layer for layer in layers if layer not in given]
        if missing and self.given is not None:
            raise ValueError(
                f"by has no contexts of layer {missing[0]}, but of {[*given]}; name those in "
                "layers, or give contexts of all"
            )


By = str | Contexts | Mapping[int, Tensor]
"""What replaces contexts: ``"zero"``, ``"mean"``, the mean contexts of each layer, or contexts that
are resampled."""


def replacements_by(by: By) -> tuple[Replacement, ...]:
    """Return the replacements whose effects are averaged.

    Raises:
        TypeError: for another type, and for contexts that are no tensors of floating-point numbers.
        ValueError: for another word, and for no layer.
    """
    if isinstance(by, Contexts):
        return by.replacements()
    if isinstance(by, Mapping):
        if not by:
            raise ValueError("by is empty; give the contexts of each layer")
        for layer, context in by.items():
            check_whole(layer, "a layer of by")
            check_floating(context, f"by[{layer}]")
        return (Replacement(given=by),)
    if not isinstance(by, str):
        raise TypeError(
            "by must be 'zero', 'mean', regard.lens.contexts(model, prompts), or a context for "
            f"each layer, such as their mean(), but is {type(by).__name__}"
        )
    check_choice("by", by, ("zero", "mean"))
    return (Replacement(by=by),)


def name_of(by: By) -> str:
    """Describe what replaces contexts, in a few words."""
    if isinstance(by, Contexts):
        return f"contexts of {len(by)} prompts" if len(by) > 1 else "contexts of a prompt"
    return by if isinstance(by, str) else "given contexts"
