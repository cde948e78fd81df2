"""AdamW, or Muon and AdamW, and their state by the names of the model's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Muon

from regard.gpt.errors import CheckpointError
from regard.gpt.model import GPT
from regard.gpt.model_files import read
from regard.gpt.training.config import TrainConfig

_ADAMW = ("step", "exp_avg", "exp_avg_sq")
_MUON = ("momentum_buffer",)


class Optimizers:
    """Optimizers that share the parameters of a model and step together."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self._optimizers = optimizers
        self._of = {p: one for one in optimizers for g in one.param_groups for p in g["params"]}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for one in self._optimizers for group in one.param_groups]

    def step(self) -> None:
        """Update every parameter."""
        for one in self._optimizers:
            one.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._of:
            parameter.grad = None

    def state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, by kind; empty before the first update."""
        return self._of[parameter].state[parameter]

    def restore(self, parameter: Tensor, state: dict[str, Tensor]) -> None:
        """Set the state of a parameter."""
        self._of[parameter].state[parameter] = state


def make_optimizer(model: GPT, config: TrainConfig) -> Optimizers:
    """Make AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the rest.

    Weight decay applies to matrices and embeddings, not to biases and norms. Muon updates a matrix
    by approximately the orthogonal matrix nearest to its Nesterov momentum (Jordan et al., "Muon",
    2024), scaled to the size of AdamW's updates, so that one learning rate suits both (Liu et al.
    2025, arXiv:2502.16982, section 2.2).

    A group's `share` is the ratio of its learning rate to the schedule's.
    """
    embeddings, matrices, vectors = _by_kind(model)
    decay = config.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": decay, "share": config.embedding_rate},
        {"params": vectors, "weight_decay": 0.0, "share": 1.0},
    ]
    rest = {"params": matrices, "weight_decay": decay, "share": 1.0}
    optimizers: list[torch.optim.Optimizer] = []
    if config.optimizer == "muon":
        optimizers.append(Muon([rest], lr=config.learning_rate, adjust_lr_fn="match_rms_adamw"))
    elif config.embedding_rate == 1.0:
        groups[0]["params"] = embeddings + matrices  # a group less takes less time
    else:
        groups.append(rest)
    betas = config.beta1, config.beta2
    optimizers.append(AdamW(groups, lr=config.learning_rate, betas=betas, fused=True))
    return Optimizers(*optimizers)


def _state_kinds(name: str, parameter: Tensor, config: TrainConfig) -> tuple[str, ...]:
    """Names of the optimizer's tensors for a parameter; all but `step` have its shape."""
    if config.optimizer == "muon" and _is_matrix_of_a_block(name, parameter):
        return _MUON
    return _ADAMW


def optimizer_state(model: GPT, optimizer: Optimizers) -> dict[str, Tensor]:
    """Return the optimizer's state of each parameter, as ``kind.name``."""
    states = {name: optimizer.state(p) for name, p in model.named_parameters()}
    assert all(states.values())
    return {
        f"{kind}.{name}": value for name, state in states.items() for kind, value in state.items()
    }


def restore_optimizer(model: GPT, optimizer: Optimizers, config: TrainConfig, path: Path) -> None:
    """Set the state that `optimizer_state` returned, from the file of a checkpoint.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        state = read(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is damaged: it has no {path.name}") from None
    for name, parameter in model.named_parameters():
        own = {}
        for kind in _state_kinds(name, parameter, config):
            if f"{kind}.{name}" not in state:
                raise CheckpointError(
                    f"the checkpoint's optimizer lacks '{kind}.{name}'; it is damaged"
                )
            own[kind] = state[f"{kind}.{name}"].to(parameter.device)
        optimizer.restore(parameter, own)


def _by_kind(model: GPT) -> tuple[list[Parameter], list[Parameter], list[Parameter]]:
    """Return the embeddings, the matrices of the blocks, and the vectors: biases and norms."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if _is_matrix_of_a_block(name, p)]
    vectors = [p for p in named.values() if p.ndim < 2]
    embeddings = [p for name, p in named.items() if p.ndim == 2 and not name.startswith("h.")]
    return embeddings, matrices, vectors


def _is_matrix_of_a_block(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and name.startswith("h.")
