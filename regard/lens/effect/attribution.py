"""Attribution patching: ablation to first order, by one forward and one backward pass.

Axes: b sequences, H query heads, L queries, Dv dimension of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from regard._shapes import Float
from regard.inputs import Problem
from regard.intercept import Call, CallChange, change_calls
from regard.intervene.contexts import ablation
from regard.intervene.operations import Ablate
from regard.lens.effect.caveats import same_draws
from regard.record.sites import Site, Sites


@dataclass(frozen=True, eq=False)
class _Context:
    """The context of one call."""

    number: int
    """Index of the call in its run."""
    site: Site
    problem: Problem
    tensor: Float[Tensor, "b H L Dv"]


class _Reached:
    """Tracks which tensors the gradient of a number reaches inside a ``with`` block.

    A function's backward may return None. Autograd continues, and many functions after it treat
    None as zeros, so a gradient of 0 does not show that it was lost.

    Args:
        number: the tensor whose gradient is computed.
    """

    def __init__(self, number: Tensor) -> None:
        self._edges: set[tuple[Node | None, int]] = {_edge(number)}
        self._hooks: list[RemovableHandle] = []

    def __contains__(self, tensor: Tensor) -> bool:
        return _edge(tensor) in self._edges

    def __enter__(self) -> Self:
        seen: set[Node] = set()
        to_see = [node for node, _ in self._edges]
        while to_see:
            node = to_see.pop()
            if node is not None and node not in seen:
                seen.add(node)
                self._hooks.append(node.register_hook(partial(self._follow, node)))
                to_see += [other for other, _ in node.next_functions]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _follow(
        self, node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[object]
    ) -> None:
        """Record where a node passes a gradient on; called after all nodes that pass it one."""
        if any((node, number) in self._edges for number in range(len(outputs))):
            self._edges.update(
                edge
                for edge, gradient in zip(node.next_functions, inputs, strict=True)
                if gradient is not None
            )


def _edge(tensor: Tensor) -> tuple[Node, int]:
    node, number = get_gradient_edge(tensor)[:2]
    return node, number


class _EachContext:
    """Applies a function to the contexts of a model's calls."""

    def __init__(self, model: nn.Module, edit: Callable[[_Context], Tensor]) -> None:
        self._sites = Sites(model)
        self._edit = edit
        self._number = -1
        self._latest: Site | None = None

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a Changer
        """Return True: no layer may use torch's fused operators, which expose no context."""
        return True

    def change(self, call: Call) -> CallChange | None:
        """Apply the function to the context of a call."""
        if not self._sites.has(call):
            return None
        site = self._latest if call.repeated and self._latest else self._sites.of(call)
        self._latest = site
        self._number += 1
        number, problem = self._number, call.problem()
        return CallChange(edit=lambda tensor: self._edit(_Context(number, site, problem, tensor)))


class Contexts(_EachContext):
    """Keeps the contexts of a model's calls in the graph, for their gradients.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, self._keep)
        self._model = model
        self._contexts: list[_Context] = []
        self._missing: list[_Context] = []

    def effects(self, number: Tensor, by: Ablate) -> dict[int, Float[Tensor, " H"]]:
        """Compute the effect of ablating each head on a number, to first order.

        The change of its context · the gradient (Nanda 2023, "Attribution Patching"; Syed et al.
        2023, arXiv:2310.10348, equation 1). The number is taken not to depend on a context that no
        gradient reached; `cut_layers` checks this.

        Args:
            number: the number computed from the contexts.
            by: the ablation, of all heads.

        Raises:
            ValueError: if the number has no gradient.
        """
        contexts = [context for context in self._contexts if context.site.kind == by.kind]
        if not number.requires_grad:
            raise ValueError(
                "method='gradient': the target has no gradient; run the model, and compute the "
                "target, outside torch.no_grad() and torch.inference_mode(), in torch alone"
            )
        tensors = [context.tensor for context in contexts]
        with _Reached(number) as reached:
            gradients = torch.autograd.grad(number, tensors, allow_unused=True)
        effects: dict[int, Tensor] = {}
        for context, gradient in zip(contexts, gradients, strict=True):
            layer, heads = context.site.layer, context.tensor.shape[1]
            total = effects.setdefault(layer, torch.zeros(heads, dtype=torch.float64, device="cpu"))
            if gradient is None or context.tensor not in reached:
                self._missing.append(context)
                continue
            tensor = context.tensor.detach()
            change = ablation(by, context.problem, context.site)(tensor) - tensor
            total += (change.double() * gradient.double()).sum(dim=(0, 2, 3)).cpu()
        return effects

    def cut_layers(self, run: Callable[[], Tensor], by: Ablate) -> list[int]:
        """Return the layers that a number depends on although no gradient reached them.

        Their heads are ablated in the calls without a gradient: if the number stays the same, it
        does not depend on these calls; if not, something cuts the graph.

        Args:
            run: runs the model again and returns the number.
            by: the ablation, of all heads.
        """
        calls: dict[int, set[int]] = {}
        for context in self._missing:
            calls.setdefault(context.site.layer, set()).add(context.number)
        if not calls:
            return []
        unchanged = self._ablated(run, by, ())
        if self._ablated(run, by, set().union(*calls.values())) == unchanged:
            return []
        return [layer for layer, own in calls.items() if self._ablated(run, by, own) != unchanged]

    def _ablated(self, run: Callable[[], Tensor], by: Ablate, calls: Collection[int]) -> float:
        """Return the number with all heads ablated in some calls."""

        def edit(context: _Context) -> Tensor:
            if context.number not in calls:
                return context.tensor
            return ablation(by, context.problem, context.site)(context.tensor)

        with same_draws(self._model), change_calls(_EachContext(self._model, edit)):
            return float(run())

    def _keep(self, context: _Context) -> Tensor:
        tensor = context.tensor
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
        self._contexts.append(replace(context, tensor=tensor))
        return tensor
