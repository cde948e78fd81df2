"""The structs of src/native/abi.h, each declared once, by its fields in order."""

from __future__ import annotations

import struct


class Struct:
    """A struct with fields of eight bytes each, packed in their order; their count is checked.

    Args:
        name: its name in abi.h, without the prefix ``regard_``.
        fields: their names; a double and an inner struct are written ``name:kind``, integers and
            pointers without a kind.
    """

    kinds: dict[str, dict[str, str]] = {"": {"": "q"}, "double": {"": "d"}}  # noqa: RUF012 - of all
    """The format of each field of each kind; those of an inner struct are named ``query.data``."""

    def __init__(self, name: str, fields: str) -> None:
        formats: dict[str, str] = {}
        for place, _, kind in (field.partition(":") for field in fields.split()):
            inner = self.kinds[kind].items()
            formats |= {f"{place}.{part}".rstrip("."): code for part, code in inner}
        self.kinds[name], self._fields = formats, list(formats)
        packer = struct.Struct("".join(formats.values()))
        self.pack, self.size = packer.pack, packer.size

    def offset(self, field: str) -> int:
        """Return the place of a field in bytes."""
        return 8 * self._fields.index(field)


pack_integer_into = struct.Struct("q").pack_into
"""Write an integer or a pointer at an offset of a buffer."""

TENSOR = Struct("tensor", "data batch head row")
Struct("numbers", "data batch head")
Struct("matrix", "data batch head row column")
Struct(
    "rows",
    "start stop positions batch head start_base start_step stop_base stop_step position",
)
Struct("spans", "start stop added count span batch head")
PROBLEM = Struct(
    "problem",
    "dtype threads batch heads groups queries keys dim dim_value scale:double softcap:double "
    "dropout:double seed query:tensor key:tensor value:tensor rows:rows spans:spans "
    "allowed:matrix bias:matrix alibi:numbers sink:numbers",
)
GRADIENTS = Struct(
    "gradients",
    "context:tensor context_gradient:tensor logsumexp query:tensor key:tensor value:tensor "
    "bias:matrix alibi sink all_keys",
)
READOUT = Struct("readout", "kind result positions operand size columns height width")
FACTORS = Struct("factors", "largest odds key dim dot_query:tensor dot_key:tensor")
READOUTS = Struct("readouts", "logsumexp first_key stop_key count list factors")
DIVERGENCE = Struct("divergence", "kind one other result")
BLOCKS = Struct("blocks", "data kind rows")
MATVEC = Struct("matvec", "dtype threads vectors inputs outputs x weight bias scale blocks result")
Struct("linear", "weight bias scale blocks")
Struct("norm", "weight bias rms epsilon:double")
LAYER = Struct(
    "layer",
    "attention_norm:norm query_norm:norm key_norm:norm mlp_norm:norm attention_output_norm:norm "
    "mlp_output_norm:norm qkv:linear projection:linear expand:linear contract:linear key:tensor "
    "value:tensor keys evicted window rotation stream query scores columns spans:spans kept",
)
GPT = Struct(
    "gpt",
    "dtype threads batch layers width heads groups dim hidden vocabulary mlp one_sequence "
    "skipped factor:double scale:double softcap:double logit_softcap:double stream ids positions "
    "padding tokens:linear learned cosines sines layer norm:norm unembedding:linear result",
)
ACTIVATION = Struct("activation", "dtype threads size x gradient result")
RESIDUAL_NORM = Struct(
    "residual_norm",
    "dtype threads rows width rms epsilon:double x added weight bias sum normed mean factor",
)
RESIDUAL_NORM_GRADIENTS = Struct(
    "residual_norm_gradients",
    "dtype threads rows width rms x mean factor weight normed_gradient sum_gradient x_gradient "
    "added_gradient weight_gradient bias_gradient",
)
CROSS_ENTROPY = Struct(
    "cross_entropy", "dtype threads rows vocabulary logits targets weights losses gradient"
)
