"""What may change between a run and its resumption: recipe, text, corpus."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.small_runs import QUIET, RECIPE, TEXT, TINY, go, interrupt, losses, resume

from regard.gpt import (
    CharTokenizer,
    CheckpointError,
    load,
    model_files,
    prepare,
    recipe_of,
)


def test_the_text_may_be_passed_again_and_has_to_be_the_same(whole, cut):
    with pytest.raises(CheckpointError, match="the text is not the one that the training run in"):
        resume(cut, texts=[TEXT, "more"])
    resume(cut, texts=[TEXT], gpt=TINY, config=RECIPE)
    assert losses(cut) == losses(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"gpt": replace(TINY, layers=2)},
            r"GPTConfig\.layers is 2 and the training run .* has 1; resume",
        ),
        (
            {"config": replace(RECIPE, batch=3)},
            r"TrainConfig\.batch is 3 and the training run .* has 2",
        ),
        ({"config": replace(RECIPE, steps=12)}, r"steps is 12 and .* 9: by schedule='cosine'"),
        ({"config": replace(RECIPE, steps=4)}, r"steps is 4 and .* has 9, of which 5 are made"),
    ],
)
def test_another_recipe_is_refused_with_field_and_values(cut, change, message):
    with pytest.raises(CheckpointError, match=message):
        resume(cut, **change)
    assert recipe_of(cut) == (replace(TINY, vocab_size=len(set(TEXT))), RECIPE)


def test_fields_that_change_no_result_may_change(whole, cut):
    resume(cut, config=replace(RECIPE, evaluate_every=1, keep_every=3, log_every=4))
    assert [line["loss"] for line in losses(cut)] == [line["loss"] for line in losses(whole)]
    kept = sorted(path.name for path in (cut / "run" / "checkpoints").iterdir())
    assert kept == ["00000006", "00000009"]
    load(cut / "run" / "checkpoints" / "00000006")


def test_a_run_can_be_made_longer_before_its_learning_rate_falls(tmp_path):
    config = replace(RECIPE, schedule="wsd", decay=0.3, ramp=0.0, record_every=0)
    longer = replace(config, steps=14)
    go(tmp_path / "long", config=longer)
    interrupt(tmp_path / "m", 6, config=config)
    resume(tmp_path / "m", config=longer)
    assert [line["loss"] for line in losses(tmp_path / "m")] == [
        line["loss"] for line in losses(tmp_path / "long")
    ]
    interrupt(tmp_path / "n", 8, config=config)
    with pytest.raises(CheckpointError, match="the learning rate of update 7, which was made"):
        resume(tmp_path / "n", config=longer)
    interrupt(tmp_path / "f", 4, config=replace(config, focus=0.2))
    with pytest.raises(CheckpointError, match=r"by focus=0\.2 the loss of update 3"):
        resume(tmp_path / "f", config=replace(config, focus=0.2, steps=20))
    interrupt(tmp_path / "o", 4, config=replace(config, ramp=0.5))
    with pytest.raises(CheckpointError, match=r"by ramp=0\.5 the windows of update 4"):
        resume(tmp_path / "o", config=replace(config, ramp=0.5, steps=20))


OTHER = {
    "vocab_size": 99, "context": 9, "layers": 2, "heads": 1, "dim": 16, "dropout": 0.2,
    "bias": False, "positions": "rotary", "rotary_base": 10_010.0, "groups": 1, "qk_norm": True,
    "window": 3, "norm": "rms", "norm_eps": 1e-4, "mlp": "swiglu", "hidden": 16,
}  # fmt: skip


@pytest.mark.parametrize("has_checksum", [True, False], ids=["with its checksum", "without"])
@pytest.mark.parametrize("field", OTHER)
def test_a_changed_model_config_is_refused(cut, field, has_checksum):
    folder = cut / "run" / "checkpoints" / "00000005"
    if not has_checksum:  # as earlier versions wrote it
        model_files.write(folder / "new", model_files.read(folder / "model.safetensors"))
        (folder / "new").replace(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()  # which has another name too
    (folder / "config.json").write_text(json.dumps({**config, field: OTHER[field]}))
    before = losses(cut)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resume(cut)
    assert losses(cut) == before
    if field == "context":  # a run takes half a second
        (folder / "config.json").write_text(json.dumps(config))
        resume(cut)


def test_a_prepared_corpus_is_used_in_place_and_has_to_be_the_same(tmp_path):
    prepare(tmp_path / "c", [TEXT], tokenizer="char", validation=0.2, console=QUIET)
    prepare(tmp_path / "other", [TEXT[::-1]], tokenizer="char", console=QUIET)
    letters = CharTokenizer(TEXT + "X")
    prepare(tmp_path / "letters", [TEXT], tokenizer=letters, console=QUIET)
    config = replace(RECIPE, record_every=0)
    options = {"texts": None, "corpus": tmp_path / "c", "config": config}
    go(tmp_path / "whole", **options)
    interrupt(tmp_path / "m", 5, **options)
    assert not (tmp_path / "m" / "run" / "corpus").exists()
    assert recipe_of(tmp_path / "m")[1].validation == 0.2
    with pytest.raises(CheckpointError, match="other is not the corpus that the training run in"):
        resume(tmp_path / "m", corpus=tmp_path / "other")
    with pytest.raises(CheckpointError, match="letters was made with another tokenizer than the"):
        resume(tmp_path / "m", corpus=tmp_path / "letters")
    resume(tmp_path / "m")
    assert losses(tmp_path / "m") == losses(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"validation is 0\.3 and the corpus .* with 0\.2"):
        go(tmp_path / "n", **options | {"config": replace(config, validation=0.3)})
    other = options | {"corpus": tmp_path / "letters", "gpt": replace(TINY, vocab_size=97)}
    with pytest.raises(ValueError, match=r"vocab_size is 97 and the corpus .* leave it out"):
        go(tmp_path / "n", **other)
    with pytest.raises(ValueError, match="texts and corpus exclude each other"):
        go(tmp_path / "n", corpus=tmp_path / "c")
    with pytest.raises(ValueError, match="resume and overwrite exclude each other"):
        resume(tmp_path / "m", overwrite=True)
    assert not (tmp_path / "n").exists()
