"""A model of ours written out by its formulas, every option included."""

import math

import torch

from regard.gpt import GPT


def made(config, dtype=torch.float32, spread=0.2):
    torch.manual_seed(1)
    model = GPT(config).eval()
    with torch.no_grad():  # biases and norms off their starting values, or they would go untested
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=spread)
    return model.to(dtype)


def activated(wide, mlp):
    if mlp == "swiglu":
        gate, up = wide.chunk(2, dim=-1)
        return gate / (1 + torch.exp(-gate)) * up
    if mlp == "geglu":
        gate, up = wide.chunk(2, dim=-1)
        return activated(gate, "gelu") * up
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return 0.5 * wide * (1 + torch.tanh(inner))


def speeds(config, is_global):
    """Radians a position, a pair of channels."""
    base = config.rotary_base
    if config.window_rotary_base is not None and not is_global:
        base = config.window_rotary_base
    elif config.rotary_frequencies is not None:
        return torch.tensor(config.rotary_frequencies, dtype=torch.float64)
    return base ** (-torch.arange(0, config.head_dim, 2).double() / config.head_dim)


def capped(x, cap):
    return x if cap is None else torch.tanh(x / cap) * cap


def written_out(model, ids):
    """Logits and weights by the formulas, head by head, in float64, from the parameters by name."""
    at = {name: weight.detach().double() for name, weight in model.state_dict().items()}
    config, tokens, dim = model.config, ids.shape[-1], model.config.head_dim
    groups = config.groups or config.heads

    def norm(x, name):
        if config.norm == "layer" and "attn" not in name:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
        return x * at[f"{name}.weight"] + at.get(f"{name}.bias", 0.0)

    def linear(x, name):
        return x @ at[f"{name}.weight"].T + at.get(f"{name}.bias", 0.0)

    def rotated(x, is_global):
        if config.positions == "learned":
            return x
        pairs = torch.complex(x[..., : dim // 2], x[..., dim // 2 :])
        pairs = pairs * torch.exp(
            1j * torch.arange(tokens).double()[:, None] * speeds(config, is_global)
        )
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    x = at["wte.weight"][ids] * config.embedding_factor
    if config.positions == "learned":
        x = x + at["wpe.weight"][:tokens]
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)
    weights = []
    for layer in range(config.layers):
        block = f"h.{layer}"
        parts = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn").split(dim, dim=-1)
        is_global = config.global_every and (layer + 1) % config.global_every == 0
        reach = tokens if config.window is None or is_global else config.window
        heads = []
        for head in range(config.heads):
            shared = config.heads + head // (config.heads // groups)
            query, key, value = parts[head], parts[shared], parts[shared + groups]
            if config.qk_norm:
                query = norm(query, f"{block}.attn.q_norm")
                key = norm(key, f"{block}.attn.k_norm")
            scores = rotated(query, is_global) @ rotated(key, is_global).mT
            scores = scores * (config.score_scale or 1 / math.sqrt(dim))
            scores = capped(scores, config.score_softcap)
            scores = scores.masked_fill((back < 0) | (back >= reach), -math.inf)
            weights.append(scores.softmax(-1))
            heads.append(weights[-1] @ value)
        added = linear(torch.cat(heads, dim=-1), f"{block}.attn.c_proj")
        x = x + (norm(added, f"{block}.ln_1_out") if config.output_norms else added)
        wide = activated(linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"), config.mlp)
        added = linear(wide, f"{block}.mlp.c_proj")
        x = x + (norm(added, f"{block}.ln_2_out") if config.output_norms else added)
    logits = norm(x, "ln_f") @ at.get("lm_head.weight", at["wte.weight"]).T
    logits = capped(logits, config.logit_softcap)
    shape = (config.layers, config.heads, *weights[0].shape)
    return logits, torch.stack(weights).view(shape).transpose(1, 2)  # (layers, B, H, T, T)
