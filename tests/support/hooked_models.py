"""Small decoders whose contexts are the inputs of their output projections, read by plain hooks.

Axes: B batch, H query heads, L positions, Dv dimension of a value.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from record.models.classes import randomize
from torch import nn

from regard.gpt import GPT, GPTConfig

VOCAB, LAYERS, HEADS = 31, 3, 4


@dataclass(frozen=True)
class Hooked:
    """A model, and the output projection of each layer's attention."""

    model: nn.Module
    projections: list

    def __post_init__(self):
        self.model.requires_grad_(requires_grad=False)

    def logits(self, ids):
        """Logits (1, T, V) of a text's token ids, (T,)."""
        output = self.model(ids[None])
        return getattr(output, "logits", output)

    @contextmanager
    def edited(self, edits):
        """Inside, apply a function to the contexts (B, H, L, Dv) of some layers."""
        with ExitStack() as stack:
            for layer, edit in edits.items():
                stack.enter_context(_hooked(self.projections[layer], edit))
            yield

    def contexts(self, ids):
        """The contexts of each layer, (1, H, L, Dv)."""
        kept = {}

        def keep(layer):
            return lambda context: kept.setdefault(layer, context)

        with torch.no_grad(), self.edited({n: keep(n) for n in range(LAYERS)}):
            self.logits(ids)
        return [kept[layer] for layer in range(LAYERS)]

    def replaced(self, ids, layer, where, other):
        """Logits where the contexts of a layer are others in places (H, L, 1)."""
        with torch.no_grad(), self.edited({layer: lambda own: torch.where(where, other, own)}):
            return self.logits(ids)


@contextmanager
def _hooked(projection, edit):
    def hook(_, args):
        heads = args[0].unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return (edit(heads).transpose(1, 2).flatten(2), *args[1:])

    with projection.register_forward_pre_hook(hook):
        yield


def our_gpt():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=VOCAB, context=23, layers=LAYERS, heads=HEADS, dim=20)).eval()
    for parameter in model.parameters():  # so that heads matter
        nn.init.normal_(parameter, std=0.3)
    return Hooked(model, [block.attn.c_proj for block in model.h])


def gpt2():
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=20, n_layer=LAYERS, n_head=HEADS, n_positions=23,
        bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = randomize(hf.GPT2LMHeadModel(config)).eval()
    return Hooked(model, [block.attn.c_proj for block in model.transformer.h])


def llama():
    """With two query heads for each key head."""
    import transformers as hf

    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=29, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = randomize(hf.LlamaForCausalLM(config)).eval()
    return Hooked(model, [block.self_attn.o_proj for block in model.model.layers])


MODELS = {"our gpt": our_gpt, "gpt2": gpt2, "llama": llama}
