"""The atlas of a corpus: the same in any number of shards, resumed, and what is refused."""

import copy
import errno
import json
import re

import pytest
import torch

import regard
from regard.errors import Error
from regard.lens import Atlas, Corpus, join_atlas
from regard.lens.head_atlas import build
from regard.lens.head_atlas.corpus import documents_of
from regard.lens.head_atlas.examples import SAMPLED, hashes
from regard.lens.head_atlas.reading import Reader
from regard.lens.head_atlas.state import KEPT, State

TEXTS = [
    "Tom had a red kite and a blue drum. Tom wanted the blue drum. ",
    "The cat sat. The cat ran. The cat sat on the mat and the cat slept. ",
    "",
    "Once upon a time there was a girl who had a dog. The dog ran to the girl.",
    "Tom had a red kite and a blue drum. Tom wanted the blue drum. ",
    "Sam and Lily went to the park. Sam saw a bird. Lily saw a bird too. ",
    "One day Lily found a shell. Lily gave the shell to Sam.",
    "Ben liked to play. Ben had a ball. The ball was red, and Ben liked the ball.",
]


def atlas(model, texts, **options):
    return regard.lens.atlas(model, texts, probes=False, **options)


@pytest.fixture(scope="module")
def model():
    return regard.models.open()


@pytest.fixture(scope="module")
def whole(model):
    return atlas(model, TEXTS, effects=0.5, length=19)


def same(one, other):
    assert one.rows == other.rows
    for place in one.state.heads:
        assert one.details(*place) == other.details(*place)


def test_what_it_says_of_itself(whole):
    about = whole.about
    assert (about["documents"], about["duplicates"], about["too_short"]) == (6, 1, 1)
    assert about["strided"] == 4
    assert about["length"] == 19
    assert 0 < about["effects"]["documents"] < 6
    assert repr(whole).startswith("Atlas('the model that comes with regard': 20 heads, 117 tokens")
    assert len(whole.frame()) == 20
    assert whole.heads[3].head == 3


# Of nine some have no document.
@pytest.mark.parametrize("count", [2, pytest.param(9, marks=pytest.mark.thorough)])
def test_shards_add_up_to_the_last_digit_in_any_order(model, whole, tmp_path, count):
    for part in reversed(range(count)):
        options = {"effects": 0.5, "length": 19, "folder": tmp_path, "shard": (part, count)}
        atlas(model, TEXTS, **options)
    same(join_atlas(model, TEXTS, tmp_path, probes=False), whole)


def test_it_goes_on_after_any_document_and_is_the_same(model, whole, tmp_path, monkeypatch):
    """Killed in the middle of the first document and of another; the state is saved after each."""
    monkeypatch.setattr(build, "_SECONDS", -1)
    options = {"effects": 0.5, "length": 19, "folder": tmp_path, "resume": True}
    read, begun = Reader.read, []

    def dying(self, document, **rest):
        begun.append(document.number)
        if document.number in {0, 5} and begun.count(document.number) == 1:
            raise KeyboardInterrupt
        return read(self, document, **rest)

    monkeypatch.setattr(Reader, "read", dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            atlas(model, TEXTS, **options)
    resumed = atlas(model, TEXTS, **options)
    assert begun == [0, 0, 1, 3, 5, 5, 6, 7]  # none is read again that was finished
    same(resumed, whole)


def test_without_resume_what_was_begun_is_kept(model, tmp_path):
    atlas(model, TEXTS[:1], folder=tmp_path)
    with pytest.raises(Error, match="was begun before: give resume=True, or another folder"):
        atlas(model, TEXTS[:1], folder=tmp_path)


def test_a_changed_model_corpus_or_option_is_refused(model, tmp_path):
    atlas(model, TEXTS, folder=tmp_path)
    again = {"folder": tmp_path, "resume": True}
    with pytest.raises(Error, match="corpus_fingerprint was"):
        atlas(model, [*TEXTS[:-1], "Ben liked to play with the ball."], **again)
    with pytest.raises(Error, match=r"effects was 0\.05, and is 0\.25"):
        atlas(model, TEXTS, effects=0.25, **again)
    with pytest.raises(Error, match="seed was 0, and is 1"):
        atlas(model, TEXTS, seed=1, **again)
    weight = next(model.module.parameters())
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.view(-1)[17] += 1e-3
        with pytest.raises(Error, match="model_fingerprint was"):
            atlas(model, TEXTS, **again)
    finally:
        with torch.no_grad():
            weight.copy_(before)


@pytest.mark.thorough
def test_a_full_disk_leaves_the_last_state(model, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_SECONDS", -1)
    options = {"effects": 0.5, "length": 19, "folder": tmp_path, "resume": True}
    save, saved = State.save, []

    def full(self, path):
        saved.append(path)
        if len(saved) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(self, path)

    monkeypatch.setattr(State, "save", full)
    with pytest.raises(OSError, match="No space left"):
        atlas(model, TEXTS, **options)
    same(atlas(model, TEXTS, **options), whole)


def test_shards_that_do_not_belong_together_are_refused(model, tmp_path):
    atlas(model, TEXTS, folder=tmp_path, shard=(0, 2))
    with pytest.raises(Error, match="lacks shards: 1/2 is missing"):
        join_atlas(model, TEXTS, tmp_path, probes=False)
    atlas(model, TEXTS, folder=tmp_path, shard=(1, 2), seed=3)
    with pytest.raises(Error, match="do not belong together: seed is 0 and 3"):
        join_atlas(model, TEXTS, tmp_path, probes=False)
    atlas(model, TEXTS, folder=tmp_path)
    with pytest.raises(Error, match="the shards of several divisions of the corpus, 0-of-1"):
        join_atlas(model, TEXTS, tmp_path, probes=False)
    (tmp_path / "shards" / "0-of-1.safetensors").unlink()
    path = tmp_path / "shards" / "0-of-2.safetensors"
    state = State.load(path)
    with pytest.raises(Error, match="shard 0/2 would be counted twice"):
        state.merge(State.load(path))
    state.next_document = 1
    state.save(path)
    with pytest.raises(Error, match="0/2 is not finished"):
        join_atlas(model, TEXTS, tmp_path, probes=False)
    with pytest.raises(Error, match="holds no shards"):
        join_atlas(model, TEXTS, tmp_path / "none")


def test_parts_are_joined_with_their_own_model_and_corpus(model, tmp_path):
    atlas(model, TEXTS, folder=tmp_path, tokens=40)
    with pytest.raises(Error, match="its corpus_fingerprint is"):
        join_atlas(model, TEXTS[1:], tmp_path, probes=False)
    other = regard.models.LanguageModel(copy.deepcopy(model.module), model.tokenizer, name="other")
    with torch.no_grad():
        next(other.module.parameters()).mul_(0.5)
    with pytest.raises(Error, match="its model_fingerprint is"):
        join_atlas(other, TEXTS, tmp_path, probes=False)
    assert join_atlas(model, TEXTS, tmp_path, probes=False).about["tokens"] >= 40


def test_a_sample_takes_no_more_rows_of_a_document_than_it_has(model):
    """Not all rows of the first one, which would be a matrix."""
    (document,) = documents_of(
        Corpus(["The cat sat on the mat. " * 40]), model, tokens=None, length=97
    )
    reader = Reader(model, seed=0)
    read = reader.read(document, lowest={}, below=2**62)
    rows = sum(len(hashed) for hashed, _ in read.sampled)
    assert SAMPLED <= rows <= SAMPLED + len(document.windows) < document.tokens
    every = hashes(0, document.number, document.tokens)
    first = range(0, document.tokens, 97)
    wanted = sorted(int(every[n]) for n in range(document.tokens) if n not in first)[:SAMPLED]
    assert {*wanted} <= {int(one) for hashed, _ in read.sampled for one in hashed}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": (2, 2)}, r"shard is \(2, 2\)"),
        ({"effects": 1.5}, "effects is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"tokens": 1}, "tokens is 1; expected at least 2"),
        ({"length": 9999}, "length is 9999, but the model's context is"),
    ],
)
def test_numbers_out_of_range_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        atlas(model, TEXTS, **options)


def test_it_is_saved_and_loaded_without_the_model(whole, tmp_path):
    whole.save(tmp_path)
    same(Atlas.load(tmp_path), whole)
    content = json.loads((tmp_path / "atlas.json").read_bytes())
    assert content["rows"] == whole.rows
    content["tokens"].popitem()
    for damaged in ("{}", json.dumps(content)):
        (tmp_path / "atlas.json").write_text(damaged)
        with pytest.raises(Error, match="is no table of an atlas"):
            Atlas.load(tmp_path)
    (tmp_path / "atlas.safetensors").write_bytes(b"no state")
    with pytest.raises(Error, match="is no state of an atlas, or is damaged"):
        Atlas.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Atlas.load(tmp_path / "none")


def test_examples_are_bounded_sorted_and_of_different_documents(whole):
    details = whole.details(1, 2)
    for name in ("moved", "received", "effect"):
        own = details["examples"][name]
        assert 1 < len(own) <= KEPT
        values = [one["value"] for one in own]
        assert values == sorted(values, reverse=True)
        assert len({one["document"] for one in own}) == len(own)
    deciles = [one["decile"] for one in details["examples"]["deciles"]]
    assert deciles == list(range(10, 0, -1))
    assert {one["source"] for one in details["examples"]["sample"]} <= {
        f"text {n}" for n in range(8)
    }
    for one in details["examples"]["moved"]:
        assert one["tokens"][one["position"] - one["start"]]
        assert all(link["position"] <= one["position"] for link in one["links"])
    with pytest.raises(IndexError, match="layer 9 has no head 0"):
        whole.details(9, 0)


def test_a_number_that_was_not_measured_is_none_and_no_column(model):
    without = atlas(model, TEXTS[:1], effects=0.0)
    assert {row["effect"] for row in without.rows} == {None}
    assert "effect" not in {column["name"] for column in without.columns}
    assert "effect" not in without.details(0, 0)["examples"]
    assert {row["next_token"] for row in without.rows} == {None}  # a causal model sees none


@pytest.mark.thorough
def test_the_estimate_says_what_is_left_out(model):
    said = []
    atlas(model, TEXTS, length=19, announce=said.append)
    assert len(said) == 2
    assert "of 6 documents; 1 duplicates left out; 1 texts too short" in said[0]
    assert "4 longer than 19 tokens" in said[0]
    assert "estimated time: less than a minute" in said[0]
    assert re.fullmatch(
        r"reading took \d+\.\d s, and effects to first order on \d documents \d+\.\d s", said[1]
    )
