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
from regard.intervene import Intervention
from regard.intervene.changer import ModelChanger
from regard.lens.effect.caveats import same_draws
from regard.lens.effect.contexts import Replacement
from regard.lens.effect.edges import Derivative
from regard.record.sites import AttentionKind, Site, Sites


@dataclass(frozen=True, eq=False)
class _Context:
    """The context of one call."""

    number: int
    """Index of the call in its run."""
    site: Site
    call: Call
    problem: Problem
    """Its attention, with its value but without gradients and dropout."""
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


class _EachCall:
    """Numbers the calls of a model in its run, and changes each as a function says.

    Args:
        model: the model.
        change: returns what is computed in place of a call, given its number and its site.
    """

    def __init__(
        self, model: nn.Module, change: Callable[[int, Site, Call], CallChange | None]
    ) -> None:
        self._sites = Sites(model)
        self._change = change
        self._number = -1
        self._latest: Site | None = None

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a Changer
        """Return True: no layer may use torch's fused operators, which expose no context."""
        return True

    def change(self, call: Call) -> CallChange | None:
        """Apply the function to a call."""
        if not self._sites.has(call):
            return None
        site = self._latest if call.repeated and self._latest else self._sites.of(call)
        self._latest = site
        self._number += 1
        return self._change(self._number, site, call)


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


class ContextGradients(_EachCall):
    """Keeps the contexts of a model's calls in the graph, for their gradients.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, self._keep)
        self._model = model
        self._contexts: list[_Context] = []
        self._missing: list[_Context] = []

    def gradients(self, number: Tensor, kind: AttentionKind, layers: Collection[int]) -> Gradients:
        """Compute the gradient of a number by each context of some layers.

        None for a context that no gradient reached, on which the number is taken not to depend;
        `cut_layers` checks this.

        Args:
            number: the number computed from the contexts.
            kind: the kind of attention.
            layers: the indices of the layers.

        Raises:
            ValueError: if the number has no gradient.
        """
        contexts = [
            context
            for context in self._contexts
            if context.site.kind == kind and context.site.layer in layers
        ]
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
        self._missing = [context for context, gradient in found if gradient is None]
        return found

    def head_effects(
        self, gradients: Gradients, replacements: Sequence[Replacement]
    ) -> dict[int, Float[Tensor, "R H"]]:
        """Compute the effect of each replacement of each head's context, to first order.

        The change of its context · the gradient (Nanda 2023, "Attribution Patching"; Syed et al.
        2023, arXiv:2310.10348, equation 1).

        Args:
            gradients: contexts, and the gradient of the number by each, as from `gradients`.
            replacements: R replacements.
        """
        by_number = {context.number: gradient for context, gradient in gradients}
        effects: dict[int, Tensor] = {
            context.site.layer: torch.zeros(
                len(replacements), context.tensor.shape[1], dtype=torch.float64, device="cpu"
            )
            for context, _ in gradients
        }
        for row, replacement in enumerate(replacements):
            changer = self._changer(replacement, gradients[0][0].site.kind, [*effects])
            for context in self._contexts:
                change = changer.change(context.call)  # of every call: it counts positions
                gradient = by_number.get(context.number)
                if change is None or gradient is None:
                    continue
                assert change.edit is not None, "contexts alone are replaced"
                tensor = context.tensor.detach()
                difference = (change.edit(tensor) - tensor).double() * gradient.double()
                effects[context.site.layer][row] += difference.sum(dim=(0, 2, 3)).cpu()
        return effects

    def cut_layers(
        self, run: Callable[[], Tensor], replacement: Replacement, kind: AttentionKind
    ) -> list[int]:
        """Return the layers that a number depends on although no gradient reached them.

        Their heads' contexts are replaced in the calls without a gradient: if the number stays the
        same, it does not depend on these calls; if not, something cuts the graph.

        Args:
            run: runs the model again and returns the number.
            replacement: what takes the place of the contexts.
            kind: the kind of attention.
        """
        calls: dict[int, set[int]] = {}
        for context in self._missing:
            calls.setdefault(context.site.layer, set()).add(context.number)
        if not calls:
            return []

        def replaced(numbers: Collection[int]) -> float:
            """Return the number with all heads replaced in some calls."""
            changer = self._changer(replacement, kind, [*calls])

            def change(number: int, _: Site, call: Call) -> CallChange | None:
                changed = changer.change(call)
                return changed if number in numbers else None

            with same_draws(self._model), change_calls(_EachCall(self._model, change)):
                return float(run())

        unchanged = replaced(())
        if replaced(set().union(*calls.values())) == unchanged:
            return []
        return [layer for layer, own in calls.items() if replaced(own) != unchanged]

    def _changer(
        self, replacement: Replacement, kind: AttentionKind, layers: Sequence[int]
    ) -> ModelChanger:
        changer = ModelChanger(self._model)
        for layer in layers:
            replacement.state(Intervention(changer), layer, kind)
        return changer

    def _keep(self, number: int, site: Site, call: Call) -> CallChange:
        problem = _problem(call)

        def edit(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                tensor = tensor.detach().requires_grad_()
            self._contexts.append(_Context(number, site, call, problem, tensor))
            return tensor

        return CallChange(edit=edit)


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
