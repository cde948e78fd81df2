"""Shares of a logit by plain hooks, in the model's own dtype."""

import torch


@torch.no_grad()
def shares_of_a_llama(module, ids, token):
    """Embedding, heads by source token and MLPs, of the logit after the last token."""
    config, layers = module.config, module.model.layers
    kept = {}
    hooks = [
        part.register_forward_hook(
            lambda _, args, output, name=name: kept.update({name: (args, output)})
        )
        for name, part in module.named_modules()
    ]
    output = module(input_ids=ids[None], use_cache=False, output_attentions=True)
    for hook in hooks:
        hook.remove()
    stream = kept["model.norm"][0][0][0, -1]
    root = (stream.square().mean() + config.rms_norm_eps).sqrt()
    direction = module.lm_head.weight[token] * module.model.norm.weight / root
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    sources, mlps = [], []
    for number in range(len(layers)):
        name = f"model.layers.{number}"
        value = kept[f"{name}.self_attn.v_proj"][1][0].unflatten(-1, (-1, width))  # (T, G, Dv)
        value = value.repeat_interleave(heads // value.shape[1], 1)
        maps = layers[number].self_attn.o_proj.weight.unflatten(1, (heads, width))  # (E, H, Dv)
        reads = torch.einsum("e,ehd->hd", direction, maps)
        weights = output.attentions[number][0, :, -1]  # (H, T)
        sources.append(weights * torch.einsum("thd,hd->ht", value, reads))
        mlps.append(direction @ kept[f"{name}.mlp"][1][0, -1])
    return (
        float(direction @ kept["model.embed_tokens"][1][0, -1]),
        torch.stack(sources),
        torch.stack(mlps),
    )
