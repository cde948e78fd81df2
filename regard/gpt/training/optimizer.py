"""AdamW, and its state by the names of the model's parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.gpt.model import GPT
from regard.gpt.training.config import TrainConfig


def make_optimizer(model: GPT, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays weights of two dimensions, and neither biases nor norms."""
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for p in parameters if p.ndim >= 2],
                "weight_decay": config.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def optimizer_state(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each parameter, as ``kind.name``."""
    assert all(parameter in optimizer.state for parameter in model.parameters())
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state[parameter].items()
    }


def restore_optimizer(
    model: GPT, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]
) -> None:
    """Set the state that `optimizer_state` returned."""
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            kind: state[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")
        }
