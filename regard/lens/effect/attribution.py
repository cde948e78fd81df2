"""Attribution patching: interventions to first order, by one forward and one backward pass.

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
from regard.inputs import Problem, check
from regard.intercept import Call, CallChange, change_calls
from regard.intervene.contexts import ablation
from regard.intervene.operations import Ablate
from regard.lens.effect.caveats import same_draws
from regard.lens.effect.edges import Derivative
from regard.record.sites import AttentionKind, Site, Sites


@dataclass(frozen=True, eq=False)
class _Context:
    """The context of one call."""

    number: int
    """Index of the call in its run."""
    site: Site
    problem: Problem
    tensor: Float[Tensor, "b H L Dv"]


Gradients = list[tuple[_Context, Tensor | None]]
"""Contexts, and the gradient of a number by each; None if none reached it."""


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
        number, problem = self._number, _problem(call)
        return CallChange(edit=lambda tensor: self._edit(_Context(number, site, problem, tensor)))


def _problem(call: Call) -> Problem:
    """Return the attention of a call, with its value but without gradients and dropout."""
    problem = call.problem()
    if call.changed is not None:
        value = call.changed.value
    elif call.value is None:
        value = None
    else:
        tensors = (call.query.detach(), call.key.detach(), call.value.detach())
        value = check(*tensors, call.scoring).value
    return problem if value is None else replace(problem, value=value.detach())


def head_effects(gradients: Gradients, by: Ablate) -> dict[int, Float[Tensor, " H"]]:
    """Compute the effect of ablating each head of each layer on a number, to first order.

    The change of its context · the gradient (Nanda 2023, "Attribution Patching"; Syed et al. 2023,
    arXiv:2310.10348, equation 1).

    Args:
        gradients: contexts, and the gradient of the number by each, as from `Contexts.gradients`.
        by: the ablation, of all heads.
    """
    effects: dict[int, Tensor] = {}
    for context, gradient in gradients:
        layer, heads = context.site.layer, context.tensor.shape[1]
        total = effects.setdefault(layer, torch.zeros(heads, dtype=torch.float64, device="cpu"))
        if gradient is not None:
            tensor = context.tensor.detach()
            change = ablation(by, context.problem, context.site)(tensor) - tensor
            total += (change.double() * gradient.double()).sum(dim=(0, 2, 3)).cpu()
    return effects


def derivatives(gradients: Gradients, over: str) -> dict[int, Derivative]:
    """Return the attention of each layer that a gradient reached, with the gradient.

    Raises:
        ValueError: for a layer whose attention is not that of one call over the whole text.
    """
    found: dict[int, Derivative] = {}
    for layer in sorted({context.site.layer for context, _ in gradients}):
        calls = [one for one in gradients if one[0].site.layer == layer]
        (context, gradient), problem = calls[0], calls[0][0].problem
        is_whole = context.site.kind != "self" or problem.queries == problem.keys
        if len(calls) > 1 or problem.heads[0] != 1 or not is_whole or problem.value is None:
            raise ValueError(
                f"method='gradient' over {over} needs one call of attention over the whole text in "
                f"each layer, but layer {layer} has {len(calls)}, the first of "
                f"{problem.heads[0]} sequence(s), {problem.queries} queries and {problem.keys} "
                "keys; run the model once over the text, without a cache, or take "
                "method='ablation' over keys"
            )
        if gradient is not None:
            found[layer] = Derivative.of(problem, gradient)
    return found


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

    def gradients(self, number: Tensor, kind: AttentionKind) -> Gradients:
        """Compute the gradient of a number by each context of a kind of attention.

        None for a context that no gradient reached, on which the number is taken not to depend;
        `cut_layers` checks this.

        Raises:
            ValueError: if the number has no gradient.
        """
        contexts = [context for context in self._contexts if context.site.kind == kind]
        if not number.requires_grad:
            raise ValueError(
                "method='gradient': the target has no gradient; run the model, and compute the "
                "target, outside torch.no_grad() and torch.inference_mode(), in torch alone"
            )
        tensors = [context.tensor for context in contexts]
        with _Reached(number) as reached:
            gradients = torch.autograd.grad(number, tensors, allow_unused=True)
        found: Gradients = []
        for context, gradient in zip(contexts, gradients, strict=True):
            # One that was lost may have zeros in its place.
            is_known = gradient is not None and context.tensor in reached
            found.append((context, gradient if is_known else None))
        self._missing += [context for context, gradient in found if gradient is None]
        return found

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
