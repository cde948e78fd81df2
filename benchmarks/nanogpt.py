"""A peer: the model that nanoGPT trains, as plain PyTorch, and its update.

Pre-norm blocks without biases, attention through torch's SDPA, exact GELU, tied embeddings; AdamW
in its default form, gradients clipped at 1. Axes: B batch, T tokens, E model dimension, H heads.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.gpt import GPTConfig


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(dim, 3 * dim, bias=False)
        self.c_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.c_proj(context.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """One layer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, bias=False)
        self.attn = Attention(dim, heads)
        self.ln_2 = nn.LayerNorm(dim, bias=False)
        self.c_fc = nn.Linear(dim, 4 * dim, bias=False)
        self.c_proj = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """The whole model: ids in, logits out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.dim)
        self.wpe = nn.Embedding(config.context, config.dim)
        self.h = nn.ModuleList(Block(config.dim, config.heads) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.dim, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                narrow = sqrt(2 * config.layers) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / narrow)

    def forward(self, ids: Tensor) -> Tensor:
        """``(B, T)`` to ``(B, T, V)``."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Update:
    """What makes a step of training, on any model that gives logits; fused AdamW on a GPU."""

    def __init__(self, model: nn.Module, *, learning_rate: float, bfloat16: bool) -> None:
        self.model, self.bfloat16 = model, bfloat16
        parameters = list(model.parameters())
        self.device = parameters[0].device
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=(0.9, 0.95),
            fused=True if self.device.type == "cuda" else None,
        )

    def __call__(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Train on a batch; the loss, in nats a token, on the model's device."""
        if self.device.type == "cuda":
            ids, targets = (
                part.pin_memory().to(self.device, non_blocking=True) for part in (ids, targets)
            )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            logits = self.model(ids)
            logits = getattr(logits, "logits", logits)  # transformers wraps them
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
