"""What can't be done is refused in a sentence that names the change and the cure."""

import contextlib
import inspect
import math
import re

import pytest
import torch
from record.models.test_supported import OWN
from support.gpt_variants import VARIANTS
from support.interception import Stack, encoder
from torch import nn

import regard
from regard import Error
from regard.gpt import GPT
from regard.record import RecordError

B, L, HEADS = 2, 7, 3
LAYERS = 2

# `regard.intervene` without the tests' check of its annotations, which comes before its own
unchecked = contextlib.contextmanager(inspect.unwrap(regard.intervene))


@pytest.fixture
def model():
    return Stack(LAYERS)


def run(model, state, x=None):
    with regard.intervene(model) as change:
        state(change)
        model(torch.randn(B, L, 12) if x is None else x)


def pattern(shape=(1, HEADS, L, L), **options):
    batch, heads, queries, keys = shape
    query, key = torch.randn(batch, heads, queries, 4), torch.randn(batch, heads, keys, 4)
    return regard.Pattern(query, key, **options)


def context(change, **places):
    change.patch(context=torch.zeros(1, 1, 4), **places)


def value(change, **places):
    change.patch(value=torch.zeros(1, 1, 4), **places)


CONTRADICTIONS = {
    "patch and knock_out": lambda c: (c.patch(pattern=pattern()), c.knock_out(keys=1)),
    "patch and steer": lambda c: (c.steer(keys=1, by=1.0), c.patch(pattern=pattern(), heads=1)),
    "patch and temper": lambda c: (c.patch(pattern=pattern(), layers=1), c.temper(by=2.0)),
    "patch twice": lambda c: (c.patch(pattern=pattern(), heads=0), c.patch(pattern=pattern())),
    "patch and ablate": lambda c: (c.ablate(heads=1), c.patch(pattern=pattern(), heads=[1, 2])),
    "contexts twice": lambda c: (context(c, heads=0), context(c, queries=2)),
    "contexts in the same rows": lambda c: (context(c, queries=[1, 2]), context(c, queries=[2])),
    "contexts and ablate": lambda c: (c.ablate(heads=1), context(c, heads=[1, 2], queries=0)),
    "contexts and pattern": lambda c: (c.patch(pattern=pattern(), queries=3), context(c)),
    "contexts and values": lambda c: (value(c, keys=3), context(c)),
    "values twice": lambda c: (value(c, keys=[1, 3]), value(c, heads=2, keys=slice(2, 4))),
    "ablate twice": lambda c: (c.ablate(heads=[0, 1]), c.ablate(heads=1, by="mean")),
}


@pytest.mark.parametrize("state", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions(model, state):
    with pytest.raises(Error, match=r"contradict each other: .*; leave one out") as e:
        run(model, state)
    assert len(re.findall(r"(patch|knock_out|steer|temper|ablate)\(", str(e.value))) == 2


def test_other_heads_sequences_and_layers_are_no_contradiction(model):
    def state(change):
        change.patch(pattern=pattern(), layers=0, heads=0)
        change.knock_out(keys=1, layers=0, heads=2)
        change.patch(pattern=pattern(), layers=0, heads=1, batch=0)
        change.ablate(layers=0, heads=1, batch=1)
        change.ablate(layers=1, heads=0)
        change.temper(layers=1, by=2.0)
        context(change, layers=1, heads=1, queries=[0, 2])
        context(change, layers=1, heads=1, queries=3)
        context(change, layers=1, heads=1, batch=0, queries=4)
        context(change, layers=1, heads=1, batch=1, queries=4)
        value(change, layers=1, heads=2, keys=1)
        value(change, layers=1, heads=2, keys=2)

    run(model, state)


MISSING = {
    "layer": (lambda c: c.ablate(layers=2), r"ablate\(layers=2.*layer 2 made no call.*2 of kind"),
    "one of several layers": (lambda c: c.temper(layers=[0, 5], by=2.0), "layer 5 made no call"),
    "layers": (lambda c: c.ablate(layers=slice(2, None)), "a layer that it names made no call"),
    "kind": (lambda c: c.ablate(kind="cross"), r"kind='cross'.*a layer that it names made no call"),
    "head": (lambda c: c.ablate(heads=3), r"ablate\(heads=3.*heads.*3.*0 to 2"),
    "head from the end": (lambda c: c.knock_out(heads=-4, keys=0), r"heads.*-4.*0 to 2"),
    "one of several heads": (lambda c: c.patch(heads=[0, 7], pattern=pattern()), r"heads.*7"),
    "heads": (lambda c: c.ablate(heads=slice(3, None)), r"ablate\(heads=slice\(3.*heads.*0 to 2"),
    "sequence": (lambda c: c.ablate(batch=2), r"ablate\(batch=2.*batch.*2.*0 to 1"),
    "sequences": (lambda c: c.temper(batch=slice(2, 9), by=2.0), r"batch.*0 to 1"),
    "key": (lambda c: c.knock_out(keys=7), r"knock_out\(keys=7\).*no call had keys 7.* 7 keys"),
    "key from the end": (lambda c: c.steer(keys=-8, by=1.0), "no call had keys -8"),
    "one of several keys": (lambda c: c.knock_out(keys=[0, 9]), "no call had keys 9"),
    "keys": (lambda c: c.knock_out(keys=slice(7, None)), "any of these keys"),
    "query": (lambda c: c.knock_out(keys=0, queries=7), r"no call had queries 7.* 7 queries"),
    "row": (lambda c: context(c, queries=7), r"patch\(.*queries=7\).*no call had queries 7"),
    "value": (lambda c: value(c, keys=[0, 8]), "no call had keys 8"),
    "queries": (lambda c: c.steer(keys=0, queries=slice(9, 12), by=1.0), "any of these queries"),
}


@pytest.mark.parametrize(("state", "match"), MISSING.values(), ids=MISSING)
def test_what_is_not_there(model, state, match):
    with pytest.raises(Error, match=match):
        run(model, state)


def test_no_call_and_no_change(model):
    with pytest.raises(Error, match=r"ablate\(by='zero'\) was not made"):  # noqa: SIM117
        with regard.intervene(model) as change:
            change.ablate()
    with regard.intervene(model):
        pass
    with pytest.raises(Error, match=r"knock_out\(keys=0\) was not made"):  # noqa: PT012, SIM117
        with regard.intervene(model) as change:
            model(torch.randn(B, L, 12))
            change.knock_out(keys=0)


def test_a_change_stated_after_the_block(model):
    with regard.intervene(model) as change:
        pass
    with pytest.raises(Error, match=r"ablate\(heads=1.*ended; state changes inside it"):
        change.ablate(heads=1)


def test_an_error_inside_hides_no_change_that_was_not_made(model):
    with pytest.raises(ZeroDivisionError), regard.intervene(model) as change:  # noqa: PT012 - the last line alone raises
        change.ablate(layers=9)
        _ = 1 / 0


@pytest.mark.parametrize("numbers", [True, [0, True], 1.0, [0.5], "1", None, object(), [[1]]])
def test_numbers_are_integers(model, numbers):
    with regard.intervene(model) as change:
        for name in ("layers", "heads", "batch"):
            if numbers is not None:
                with pytest.raises(TypeError, match=f"{name} must be an integer, a slice or int"):
                    inspect.unwrap(type(change).ablate)(change, **{name: numbers})
        knock_out = inspect.unwrap(type(change).knock_out)
        with pytest.raises(TypeError, match="keys must be an integer, a slice or integers"):
            knock_out(change, keys=numbers)
    assert repr(change) == "Intervention()"


@pytest.mark.parametrize("numbers", [[], (), slice(3, 3), slice(5, 2), slice(0, 0), range(0)])
@pytest.mark.parametrize("name", ["layers", "heads", "batch", "keys", "queries"])
def test_numbers_that_name_nothing(model, numbers, name):
    with regard.intervene(model) as change:
        with pytest.raises(ValueError, match=f"{name}=.* names nothing; leave it out to mean all"):
            change.knock_out(**{"keys": 0, name: numbers})
        with pytest.raises(ValueError, match="must go forward"):
            change.knock_out(**{"keys": 0, name: slice(None, None, -1)})
    assert repr(change) == "Intervention()"


@pytest.mark.parametrize("layers", [-1, [0, -2], slice(-2, None), slice(None, -1)])
def test_layers_are_counted_from_the_start(model, layers):
    with regard.intervene(model) as change, pytest.raises(ValueError, match="count from 0"):
        change.ablate(layers=layers)


@pytest.mark.parametrize("by", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(model, by):
    with regard.intervene(model) as change:
        with pytest.raises(ValueError, match=r"by must be finite.*knock_out\(\.\.\.\) hides keys"):
            change.steer(keys=0, by=by)
        with pytest.raises(ValueError, match="by must be finite"):
            change.temper(by=by)


@pytest.mark.parametrize("by", ["1", None, True, torch.ones(2), [1.0]])
def test_factors_are_numbers(model, by):
    with regard.intervene(model) as change:
        for method, options in (("steer", {"keys": 0}), ("temper", {})):
            with pytest.raises(TypeError, match="by"):
                inspect.unwrap(getattr(type(change), method))(change, by=by, **options)


@pytest.mark.parametrize("by", [0, -1, -0.5])
def test_factors_are_positive(model, by):
    with (
        regard.intervene(model) as change,
        pytest.raises(ValueError, match=r"by must be above 0.*ablate\(\.\.\.\) switches heads off"),
    ):
        change.temper(by=by)


def test_other_arguments(model):
    with regard.intervene(model) as change:
        for by, error in (("median", ValueError), (None, TypeError), (torch.ones(3), TypeError)):
            with pytest.raises(error, match=r"by must be .*'zero'.*'mean'"):
                inspect.unwrap(type(change).ablate)(change, by=by)
        with pytest.raises(ValueError, match="kind must be one of 'self', 'cross', 'encoder'"):
            inspect.unwrap(type(change).ablate)(change, kind="all")
        with pytest.raises(TypeError, match=r"pattern must be a regard.Pattern.*recording\[2\]"):
            inspect.unwrap(type(change).patch)(change, pattern=torch.rand(1, HEADS, L, L))
        for arguments in ((), (3,)):
            with pytest.raises(TypeError):
                change.knock_out(*arguments)


PATTERNS = {
    "heads": ((1, 2, L, L), "has 1 sequences of 2 heads, the layer 2 of 3; give as many, or one"),
    "sequences": ((3, HEADS, L, L), "has 3 sequences of 3 heads"),
    "keys": ((1, HEADS, L, L - 1), "does not hold the call's queries, 0 to 6 of the text, and"),
    "queries": ((1, HEADS, L - 1, L), "does not hold the call's queries"),
    "more keys": ((1, HEADS, L, L + 3), "weight on keys other than 0 to 6"),
}


@pytest.mark.parametrize(("shape", "match"), PATTERNS.values(), ids=PATTERNS)
def test_patterns_of_other_sizes(model, shape, match):
    with pytest.raises(Error, match=r"patch\(.*pattern=") as error:
        run(model, lambda change: change.patch(pattern=pattern(shape), layers=0))
    assert match in str(error.value)
    assert str(list(shape)).strip("[]") in str(error.value)


def test_patterns_of_another_softcap(model):
    other = pattern(softcap=3.0)
    with pytest.raises(Error, match=r"the pattern's softcap is 3\.0, the layer's None"):
        run(model, lambda change: change.patch(pattern=other))


def test_one_thing_is_patched(model):
    context, value = torch.randn(HEADS, L, 4), torch.randn(HEADS, L, 4)
    with regard.intervene(model) as change:
        with pytest.raises(ValueError, match=r"one of pattern=, context= and value=.*given none"):
            change.patch(layers=0)
        with pytest.raises(ValueError, match="was given context and value"):
            change.patch(context=context, value=value)
        with pytest.raises(ValueError, match=r"keys=2 is for patch\(value=.*but context was given"):
            change.patch(context=context, keys=2)
        with pytest.raises(ValueError, match=r"keys=0 is for .*but pattern was given"):
            change.patch(pattern=pattern(), keys=0)
        with pytest.raises(ValueError, match=r"queries=2 is for patch\(context=.*but value was"):
            change.patch(value=value, queries=2)
        for name in ("context", "value"):
            with pytest.raises(TypeError, match=f"{name} must be a tensor"):
                change.patch(**{name: [1.0]})
            with pytest.raises(TypeError, match=f"{name} must be floating point"):
                change.patch(**{name: torch.ones(3, 7, 4, dtype=torch.int64)})
            for shape in ((7, 4), (1, 1, 3, 7, 4), (3, 0, 4)):
                with pytest.raises(
                    ValueError, match=rf"{name} must have the axes \([HG], [LS], Dv"
                ):
                    change.patch(**{name: torch.randn(shape)})
    assert repr(change) == "Intervention()"


TENSORS = {
    "heads": ((2, L, 4), "is of 1 sequences of 2 heads, the layer of 2 of 3; give as many, or one"),
    "sequences": ((3, HEADS, L, 4), "is of 3 sequences of 3 heads"),
    "dimension": ((HEADS, L, 5), "the tensor's last axis is 5, but the layer's values have 4"),
    "positions": ((HEADS, L - 1, 4), "holds 6 positions, but the call has"),
}


@pytest.mark.parametrize("name", ["context", "value"])
@pytest.mark.parametrize(("shape", "match"), TENSORS.values(), ids=TENSORS)
def test_contexts_and_values_of_other_sizes(model, name, shape, match):
    tensor = torch.randn(shape)
    with pytest.raises(Error, match=rf"^patch\(layers=0, {name}=tensor of shape") as error:
        run(model, lambda change: change.patch(**{name: tensor}, layers=0))
    assert match in str(error.value)


@pytest.mark.parametrize("value", [3, "gpt2", None, torch.relu, [Stack()]])
def test_what_is_no_module(value):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, but is"):  # noqa: SIM117
        with unchecked(value):
            pass


def test_models_without_numbers():
    with torch.device("meta"):
        model, x = Stack(), torch.randn(B, L, 12)
    with pytest.raises(RecordError, match=r"meta device.*load its weights"):
        run(model, lambda change: change.ablate(), x)


def test_models_with_attention_of_their_own():
    kind, config = OWN["bloom"]
    with pytest.raises(RecordError, match="does not let it be replaced"):  # noqa: SIM117
        with regard.intervene(kind(config)):
            pass


def test_an_error_of_a_fused_layer_names_the_change():
    model, x = encoder().eval(), torch.randn(B, L, 12)
    with (
        torch.no_grad(),
        pytest.raises(Error, match=r"ablate\(layers=1, heads=9.*0 to 3"),
    ):
        run(model, lambda change: change.ablate(layers=1, heads=9), x)


def test_a_model_that_attends_nowhere():
    with pytest.raises(Error, match="layers that did: none"):
        run(nn.Linear(12, 12), lambda change: change.ablate())


def test_our_gpt_counts_its_heads():
    model = GPT(VARIANTS["grouped"]).eval()
    with pytest.raises(Error, match=r"heads.*6.*0 to 5"):
        run(model, lambda change: change.ablate(heads=6), torch.zeros(1, 5, dtype=torch.int64))
