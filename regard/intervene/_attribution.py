"""Attribution patching: what ablation would do, to first order, by one forward and one backward.

Axes: b sequences, H query heads, L queries, Dv dimension of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.intervene._changes import Ablate
from regard.intervene._contexts import ablation
from regard.problem import Problem
from regard.record.intercept import Call, Change
from regard.record.names import Kind
from regard.record.sites import Site, Sites


@dataclass(frozen=True, eq=False)
class _Context:
    """The contexts of one call, in the graph of gradients."""

    site: Site
    problem: Problem
    tensor: Float[Tensor, "b H L Dv"]


class Contexts:
    """Keeps the contexts of a model's calls, so that gradients of them can be taken.

    Args:
        model: whose calls.
    """

    def __init__(self, model: nn.Module) -> None:
        self._sites = Sites(model)
        self._contexts: list[_Context] = []
        self._latest: Site | None = None

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a Changer
        """Keep every layer from torch's fused operators, which have no context."""
        return True

    def change(self, call: Call) -> Change | None:
        """Keep the context of a call."""
        if not self._sites.has(call):
            return None
        site = self._latest if call.repeated and self._latest else self._sites.of(call)
        self._latest = site
        problem = call.problem()

        def keep(context: Tensor) -> Tensor:
            if not context.requires_grad:
                context = context.detach().requires_grad_()
            self._contexts.append(_Context(site, problem, context))
            return context

        return Change(edit=keep)

    def effects(self, number: Tensor, by: Ablate, kind: Kind) -> dict[int, Float[Tensor, " H"]]:
        """What ablating each head would do to a number, to first order.

        The change of its context · the gradient (Nanda 2023, "Attribution Patching"; Syed et al.
        2023, arXiv:2310.10348, equation 1).

        Args:
            number: what was computed from the contexts.
            by: the ablation, of all heads.
            kind: of the layers.

        Raises:
            ValueError: if the number has no gradient.
        """
        contexts = [context for context in self._contexts if context.site.kind == kind]
        if not number.requires_grad:
            raise ValueError(
                "method='gradient': the target has no gradient; run the model, and compute the "
                "target, outside torch.no_grad() and torch.inference_mode(), in torch alone"
            )
        gradients = torch.autograd.grad(
            number, [context.tensor for context in contexts], allow_unused=True
        )
        effects: dict[int, Tensor] = {}
        for context, gradient in zip(contexts, gradients, strict=True):
            layer, heads = context.site.layer, context.tensor.shape[1]
            total = effects.setdefault(layer, torch.zeros(heads, dtype=torch.float64, device="cpu"))
            if gradient is not None:
                tensor = context.tensor.detach()
                change = ablation(by, context.problem, context.site)(tensor) - tensor
                total += (change.double() * gradient.double()).sum(dim=(0, 2, 3)).cpu()
        return effects
