"""Configurations with every option of the model, by name."""

from regard.gpt import GPTConfig

_SMALL = {"vocab_size": 29, "context": 13, "layers": 3, "heads": 6, "dim": 36}

VARIANTS = {
    "gpt2": GPTConfig(**_SMALL),
    "rotary": GPTConfig(**_SMALL, positions="rotary", rotary_base=70.0),
    "grouped": GPTConfig(**_SMALL, groups=2),
    "window": GPTConfig(**_SMALL, window=4),
    "global": GPTConfig(**_SMALL, window=2, global_every=2),
    "qk_norm": GPTConfig(**_SMALL, qk_norm=True),
    "swiglu": GPTConfig(**_SMALL, mlp="swiglu", norm="rms", norm_eps=0.02, hidden=23),
    "geglu": GPTConfig(**_SMALL, mlp="geglu", norm="rms", hidden=23, embedding_factor=2.5),
    "all": GPTConfig(
        **_SMALL,
        bias=False,
        positions="rotary",
        rotary_frequencies=(0.7, 0.3, 0.05, 0.01),
        head_width=8,
        groups=3,
        tied=False,
        qk_norm=True,
        window=3,
        global_every=3,
        norm="rms",
        mlp="swiglu",
    ),
    "capped": GPTConfig(
        **_SMALL,
        positions="rotary",
        rotary_base=70.0,
        window_rotary_base=13.0,
        window=3,
        global_every=2,
        score_scale=0.7,
        score_softcap=1.5,
        logit_softcap=2.5,
        output_norms=True,
    ),
}
