"""Readouts taken at each call: those of reading a full recording afterwards, to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from support.caches import (
    CAUSAL,
    PROMPT,
    STEPWISE,
    Attend,
    B,
    D,
    H,
    T,
    chunks,
    exact,
    grown,
    sequence,
)
from torch import nn

import regard
from regard.backends import native
from regard.record import RecordError, accumulator, read_while_running

READOUTS = [
    regard.readouts.Received(),
    regard.readouts.Entropy(),
    regard.readouts.TopK(4),
    regard.readouts.Max(),
    regard.readouts.Distance(),
    regard.readouts.Offsets(3),
    regard.readouts.Mass(slice(0, 2)),
    regard.readouts.Received("mean", queries=slice(1, None, 2)),
    regard.readouts.Received("max", grouped=True),
    regard.readouts.MaxScore(),
    regard.readouts.MaxScore("head"),
    regard.readouts.Lag(1),
    regard.readouts.Spans([1], n=2),
]


class Layers(nn.Module):
    """Layers that are handed query, key and options."""

    def __init__(self, count=2):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(count))

    def forward(self, query, key, **options):
        for shift, layer in enumerate(self.layers):
            layer(query + shift, key, **options)


def both(run_model, **options):
    """The same run recorded and read afterwards, and read while it runs."""
    model = Layers()
    with regard.record(model, **options) as recording:
        run_model(model)
    with read_while_running(model, *READOUTS, **options) as run:
        run_model(model)
    return recording, run


def assert_same(run, recording, kind=None):
    expected, actual = recording.of_kind(kind).read(*READOUTS), run.of_kind(kind)
    assert list(actual) == list(expected)
    for name, reading in expected.items():
        assert actual[name].axes == reading.axes
        assert len(actual[name].parts) == len(reading.parts)
        for one, other in zip(actual[name].parts, reading.parts, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other), name
        for one, other in zip(actual[name].labels, reading.labels, strict=True):
            assert {k: list(v) for k, v in one.items()} == {k: list(v) for k, v in other.items()}


def assert_close_to_pattern(run, recording):
    """The sums of a whole pattern, in another order: float32 sums of T weights up to 1."""
    for name in ("received", "entropy", "max", "distance"):
        for part, pattern in zip(run[name].parts, recording, strict=True):
            torch.testing.assert_close(part, getattr(pattern, name)(), rtol=0, atol=T * 1e-6)
    for part, pattern in zip(run["offsets"].parts, recording, strict=True):
        torch.testing.assert_close(part, pattern.offsets(3), rtol=0, atol=T * 1e-6)


def test_dropout_of_a_call_is_not_part_of_what_is_read():
    query, key = sequence(31)
    _, plain = both(lambda model: model(query, key, is_causal=True))
    recording, run = both(lambda model: model(query, key, is_causal=True, dropout_p=0.5))
    assert_same(run, recording)
    for name, reading in plain.items():
        for one, other in zip(run[name].parts, reading.parts, strict=True):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_single_call_gives_what_its_pattern_gives(dtype):
    query, key = (x.to(dtype) for x in sequence(131))
    recording, run = both(lambda model: model(query, key, is_causal=True))
    assert_same(run, recording)
    for layer, pattern in enumerate(recording):
        for readout, name in (
            (regard.readouts.Received(), "received"),
            (regard.readouts.Offsets(3), "offsets"),
        ):
            assert torch.equal(run[name].values[layer], pattern.read(readout)[0])


GAPS = CAUSAL.clone()
GAPS[PROMPT + 1, 2] = GAPS[3, 3] = GAPS[-1, -2] = False
PADDED = torch.ones(B, 1, 1, T, dtype=torch.bool)
PADDED[0, ..., :2] = False


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("parts", "mask"),
    [
        (STEPWISE, CAUSAL),
        (chunks(1, *[1] * (T - 1)), CAUSAL),
        (chunks(3, 1, 3, 1, 1), CAUSAL),
        (STEPWISE, GAPS),
        (STEPWISE, PADDED & CAUSAL),
        (STEPWISE, torch.zeros(H, T, T).masked_fill(~GAPS, -torch.inf)),
    ],
    ids=["steps", "from one token", "chunks", "gaps", "padded", "bias"],
)
def test_a_generation(parts, mask):
    query, key = sequence()
    recording, run = both(lambda model: grown(model, query, key, parts, mask))
    assert_same(run, recording)
    assert_close_to_pattern(run, recording)
    top, expected = run["top_positions"].values, recording[0].topk(4).positions
    assert torch.equal(top[0], expected)


def static(model, query, key):
    cache = torch.full((B, H, T + 7, D), 9.0)
    for start, stop in STEPWISE:
        cache[..., start:stop, :] = key[..., start:stop, :]
        visible = torch.arange(T + 7) <= torch.arange(start, stop)[:, None]
        model(query[..., start:stop, :], cache, attn_mask=visible)


def rolling(model, query, key, size=3):
    visible = CAUSAL[:PROMPT, :PROMPT].triu(1 - size)
    model(query[..., :PROMPT, :], key[..., :PROMPT, :], attn_mask=visible)
    for t in range(PROMPT, T):
        model(query[..., t : t + 1, :], key[..., t + 1 - size : t + 1, :])


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [static, rolling])
@pytest.mark.parametrize("options", [{}, {"heads": [2, 0], "layers": 1, "rows": [-1, 2]}], ids=str)
def test_caches_of_fixed_size(cache, options):
    query, key = sequence()
    recording, run = both(lambda model: cache(model, query, key), **options)
    assert_same(run, recording)
    assert_close_to_pattern(run, recording)
    expected = recording[0].topk(4).positions.sort().values
    assert torch.equal(run["top_positions"].values[0].sort().values, expected)


def growing(model, query, key):
    grown(model, query, key, STEPWISE)


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [growing, static, rolling])
@pytest.mark.parametrize("rows", [[0], slice(1, PROMPT + 1), [PROMPT]], ids=str)
def test_keys_that_come_after_the_last_row_read(cache, rows):
    query, key = sequence()
    recording, run = both(lambda model: cache(model, query, key), rows=rows)
    assert [layer.keys for layer in run.layers] == [T, T]
    assert run["received"].values.shape[-1] == T
    assert_same(run, recording)


def test_what_is_read_between_two_calls_has_the_keys_so_far():
    """Also in inference mode, after which the sums still go on."""
    layer, (query, key) = Attend(), sequence()
    with read_while_running(layer, regard.readouts.Received(), rows=slice(0, 7)) as run:
        for start, stop in STEPWISE:
            visible = CAUSAL[start:stop, :stop]
            layer(query[..., start:stop, :], key[..., :stop, :], attn_mask=visible)
            with torch.inference_mode():
                received = run["received"].values[0]
            assert received.shape[-1] == stop
            # Of at most seven rows, the weights of each of which sum to 1.
            rows = torch.full((B, H), float(min(stop, 7)))
            torch.testing.assert_close(received.sum(-1), rows, rtol=0, atol=1e-5)


def test_a_long_generation_puts_its_rows_together_in_order():
    layer, (query, key) = Attend(), sequence(80)
    mask = torch.ones(80, 80, dtype=torch.bool).tril()
    with (
        regard.record(layer) as recording,
        read_while_running(layer, regard.readouts.TopK(9)) as run,
    ):
        grown(layer, query, key, chunks(3, *[1] * 77), mask)
    for name, expected in zip(("weights", "positions"), recording[0].topk(9), strict=True):
        assert torch.equal(run[f"top_{name}"].values[0], expected)


def test_the_steps_of_a_recorded_generation_are_read_together(monkeypatch):
    """To the bits of each by itself, whatever number of them a pass takes."""
    layer, (query, key) = Attend(), sequence(41)
    mask = torch.ones(41, 41, dtype=torch.bool).tril()
    readouts = [r for r in READOUTS if r not in (regard.readouts.Offsets(3), READOUTS[7])]
    with regard.record(layer) as recording, read_while_running(layer, *readouts) as run:
        grown(layer, query, key, chunks(3, *[1] * 38), mask)
    passes, read = [], native.read
    monkeypatch.setattr(native, "read", lambda *given: passes.append(0) or read(*given))
    for at_once in (2**20, 7 * B * H * 41):
        monkeypatch.setattr(accumulator, "_WEIGHTS", at_once)
        for name, expected in recording.read(*readouts).items():
            assert torch.equal(run[name].values, expected.values), name
    # The prompt, and 38 steps: in one pass, then in six.
    assert len(passes) == 2 * 1 + 1 + 6


def steps_with_own_keys(layer, query, key, prompt=3):
    """Attend as with a cache that makes a new tensor of keys for each call; return the last."""
    own = key[..., :prompt, :].clone()
    layer(query[..., :prompt, :], own, is_causal=True)
    for place in range(prompt, key.shape[-2]):
        own = key[..., : place + 1, :].clone()
        layer(query[..., place : place + 1, :], own)
    return own


def test_steps_whose_keys_stay_are_read_together_while_the_model_runs(monkeypatch):
    layer, (query, key) = Attend(), sequence(41)
    readouts = [regard.readouts.Received(), regard.readouts.Entropy(), regard.readouts.TopK(5)]
    passes, read, between = [], native.read, []
    monkeypatch.setattr(native, "read", lambda *given: passes.append(0) or read(*given))
    with regard.record(layer) as recording, read_while_running(layer, *readouts) as run:
        steps_with_own_keys(layer, query, key)
    assert len(passes) == 1 + 2  # the prompt, 32 steps, and the other 6
    for name, expected in recording.read(*readouts).items():
        assert torch.equal(run[name].values, expected.values), name
    with read_while_running(layer, *readouts) as run:
        steps_with_own_keys(layer, query[..., :7, :], key[..., :7, :])
        between.append(run["received"].values[0])
        steps_with_own_keys(layer, query, key)
    expected = recording[0].dense()[..., :7, :7].double().sum(-2)
    torch.testing.assert_close(between[0].double(), expected, rtol=0, atol=1e-6)
    for part, length in zip(run["entropy"].parts, (7, 41), strict=True):
        assert torch.equal(part, recording[0].entropy()[..., :length])


def test_keys_written_to_while_their_steps_wait_are_refused():
    layer, (query, key) = Attend(), sequence(11)
    with pytest.raises(RecordError, match="were written to after"):  # noqa: SIM117 - the block raises
        with read_while_running(layer, regard.readouts.Entropy()) as run:
            steps_with_own_keys(layer, query, key).add_(1)
    with pytest.raises(RecordError, match="were written to after"):
        _ = run.layers  # nor are they left out


def test_a_step_whose_older_keys_changed_is_read_by_itself():
    layer, (query, key) = Attend(), sequence(41)
    with read_while_running(layer, regard.readouts.Entropy()) as run:
        layer(query[..., :3, :], key[..., :3, :].clone(), is_causal=True)
        for place in range(3, 41):
            own = key[..., : place + 1, :].clone()
            if place >= 30:  # as a cache that keeps old keys in fewer bits
                own[..., 7, :] = own[..., 7, :].round()
            layer(query[..., place : place + 1, :], own.clone())
    weights = []
    for place in range(3, 41):
        own = key[..., : place + 1, :].double()
        if place >= 30:
            own[..., 7, :] = own[..., 7, :].round()
        scores = query[..., place : place + 1, :].double() @ own.mT / key.shape[-1] ** 0.5
        weights.append(torch.special.entr(scores.softmax(-1)).sum(-1))
    expected = torch.cat(weights, -1)
    found = torch.cat(run["entropy"].parts, -1)[..., 3:]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_an_error_of_the_block_is_not_hidden_by_keys_that_were_written_to():
    layer, (query, key) = Attend(), sequence(11)

    def interrupted():
        with read_while_running(layer, regard.readouts.Entropy()):
            steps_with_own_keys(layer, query, key).add_(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        interrupted()


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross_attn = Attend()

    def forward(self, *args):
        return self.cross_attn(*args)


def test_cross_attention_to_a_source_that_stays():
    model, (query, source) = Cross(), sequence()
    runs = []
    for block in (regard.record(model), read_while_running(model, *READOUTS)):
        with block as run:
            for t in range(4):
                model(query[..., t : t + 1, :], source.clone())
        runs.append(run)
    assert runs[1].kinds == ("cross",)
    assert_same(runs[1], runs[0], "cross")
    with pytest.raises(ValueError, match="'encoder' was not recorded; there is 'cross'"):
        runs[1].of_kind("encoder")


def test_inference_mode_and_readings_between_calls():
    model, (query, key) = Layers(), sequence()
    with read_while_running(model, *READOUTS) as run:
        with torch.inference_mode():
            model(query[..., :PROMPT, :], key[..., :PROMPT, :], is_causal=True)
        early = run["received"].values
        before = early.clone()
        with torch.no_grad():
            model(query[..., PROMPT : PROMPT + 1, :], key[..., : PROMPT + 1, :])
    assert torch.equal(early, before)
    assert early.shape[-1] == PROMPT
    # Weights of a row sum to 1, so that what all keys receive is the number of rows.
    total = run["received"].values.sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, PROMPT + 1))


def test_what_is_done_to_readings_leaves_later_ones_alone():
    model, (query, key) = Layers(), sequence()
    with read_while_running(model, *READOUTS) as run:
        model(query[..., :PROMPT, :], key[..., :PROMPT, :], is_causal=True)
        before = {name: [part.clone() for part in run[name].parts] for name in run}
        for reading in run.values():
            for part in reading.parts:
                part.zero_()
        again = run
    for name, parts in before.items():
        assert all(map(torch.equal, parts, again[name].parts))


def test_the_model_computes_the_same():
    model, (query, key) = Attend(), sequence()
    with read_while_running(model, *READOUTS):
        actual = model(query, key, is_causal=True)
    assert torch.equal(actual, model(query, key, is_causal=True))


class Scored(nn.Module):
    """Calls of `regard.attention` with the same options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        for _ in range(2):
            query = regard.attention(query, key, value, **self.options)
        return query


FUSED = [
    {"mask": regard.causal()},
    {"mask": regard.window(37), "softcap": 3.0},
    {"mask": regard.causal(), "sink": torch.tensor([1.0, 2.0])},
    {"bias": torch.linspace(-2, 2, 131)},
    {"mask": regard.causal() & regard.padding(torch.arange(131) < 97), "scale": 40.0},
]


@pytest.mark.each_once
@pytest.mark.skipif(native.why_missing() is not None, reason="needs the kernels")
@pytest.mark.parametrize("options", FUSED, ids=", ".join)
@pytest.mark.parametrize("groups", [1, 2])
def test_contexts_are_computed_with_what_is_read(options, groups, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 131, 17, generator=generator)
    rest = torch.randn(2, 3, groups, 131, 17, generator=generator)
    model, tensors = Scored(**options), (query, *rest)
    with regard.record(model) as recording:
        expected = model(*tensors)
    readouts = [
        r for r in READOUTS if not isinstance(r, regard.readouts.Received) or r.queries is None
    ]
    wanted = recording.read(*readouts)
    monkeypatch.setattr(native, "read", lambda *_, **__: pytest.fail("a second pass"))
    with read_while_running(model, *readouts) as run, torch.inference_mode():
        actual = model(*tensors)
    assert torch.equal(actual, expected)
    for name, reading in wanted.items():
        assert all(map(torch.equal, run[name].parts, reading.parts)), name


class Called(nn.Module):
    """A call of torch's function."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


SDPA = [
    {"is_causal": True},
    {"is_causal": True, "scale": 0.7},
    {"attn_mask": torch.ones(131, 131, dtype=torch.bool).tril() & (torch.arange(131) < 97)},
    {"attn_mask": torch.linspace(-2, 2, 131).expand(131, -1)},
]


@pytest.mark.skipif(native.why_missing() is not None, reason="needs the kernels")
@pytest.mark.parametrize("options", SDPA, ids=", ".join)
@pytest.mark.parametrize("groups", [1, 2])
def test_contexts_of_sdpa_are_computed_with_what_is_read(options, groups, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 131, 17, generator=generator)
    tensors = query, *torch.randn(2, 3, groups, 131, 17, generator=generator)
    model = Called(**options, enable_gqa=groups == 1)
    with regard.record(model) as recording:
        expected = model(*tensors)
    assert torch.equal(expected, model(*tensors))
    readouts = regard.readouts.Received(), regard.readouts.Entropy(), regard.readouts.TopK(4)
    wanted = recording.read(*readouts)
    monkeypatch.setattr(native, "read", lambda *_, **__: pytest.fail("a second pass"))
    with read_while_running(model, *readouts) as run:
        actual = model(*tensors)
    # Sums of at most 131 products, by kernels that add in different orders.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)
    for name, reading in wanted.items():
        assert all(map(torch.equal, run[name].parts, reading.parts)), name


@pytest.mark.parametrize("trained", ["query", "value"])
def test_gradients_pass_through_sdpa_that_is_read(trained):
    tensors = [*torch.randn(3, 2, 131, 17, generator=torch.Generator().manual_seed(0)).unbind()]
    tensors[["query", "key", "value"].index(trained)].requires_grad_()
    model = Called(is_causal=True)
    with read_while_running(model, regard.readouts.Entropy()):
        actual = model(*tensors)
    assert actual.requires_grad
    assert torch.equal(actual, model(*tensors))


@pytest.mark.parametrize("options", [{"heads": [1, 0]}, {"rows": [100, 5]}, {"layers": [1]}])
def test_parts_of_a_call_are_read_after_its_context(options):
    query, *rest = torch.randn(3, 2, 131, 17, generator=torch.Generator().manual_seed(0)).unbind()
    model = Scored(mask=regard.causal())
    with regard.record(model, **options) as recording:
        expected = model(query, *rest)
    with read_while_running(model, *READOUTS, **options) as run:
        assert torch.equal(model(query, *rest), expected)
    assert_same(run, recording)


def test_gradients_pass_through_contexts_that_are_read():
    query, *rest = torch.randn(3, 2, 131, 17, generator=torch.Generator().manual_seed(0)).unbind()
    query.requires_grad_()
    with read_while_running(None, regard.readouts.Entropy()):
        regard.attention(query, *rest, mask=regard.causal()).sum().backward()
    assert query.grad is not None


# Keys that are named before they are there

LATER = [
    regard.readouts.Mass(6),
    regard.readouts.Mass([0, 2, T - 1]),
    regard.readouts.Mass(torch.tensor([1, PROMPT])),
    regard.readouts.Spans([0, 1, -1, 1, 2, 2, 0]),
    regard.readouts.Spans(torch.arange(T)),
]


@pytest.mark.parametrize("cache", [growing, static, rolling])
@pytest.mark.parametrize("every", [1, 2])
def test_keys_by_number_that_come_later(cache, every):
    model, (query, key) = Layers(), sequence()
    with read_while_running(model, *LATER, every=every) as run:
        cache(model, query, key)
    with regard.record(model, rows=list(run.layers[0].rows)) as recording:
        cache(model, query, key)
    for name, expected in recording.read(*LATER).items():
        assert torch.equal(run[name].values, expected.values), name


def test_keys_by_number_that_never_come_are_named_by_a_warning():
    """The run is over by then, and its results are there."""
    model, (query, key) = Layers(), sequence()
    none_after = regard.readouts.Spans([0] * T + [-1] * 9)  # says nothing of keys that never come
    never = [
        regard.readouts.Mass([0, 2]),
        regard.readouts.Mass([0, T]),
        regard.readouts.Spans([0] * 31),
        none_after,
    ]
    message = rf"layers\.0' had only {T} keys.*leave out all keys from {T} on$"
    with (
        pytest.warns(RuntimeWarning, match=message) as given,
        read_while_running(model, *never) as run,
    ):
        growing(model, query, key)
    assert [str(one.message).split()[0] for one in given] == ["mass_2", "spans"]
    expected = exact(query + 1, key)[..., 0].float()
    torch.testing.assert_close(run["mass_2"].values[1], expected, rtol=0, atol=1e-6)
    assert run["spans"].values.shape == (2, B, H, T, 1)


# What can't be read


@pytest.mark.parametrize(
    ("readout", "why"),
    [
        (regard.readouts.Image(8, 8), r"Image\(rows=8, columns=8\).*how long the text becomes"),
        (regard.readouts.Blocks(2, 2), r"Blocks\(rows=2, columns=2.*how long"),
        (regard.readouts.Received(queries=slice(-8, None)), r"Received\(.*-8.*how long"),
        (regard.readouts.Mass(-1), r"Mass\(keys=-1\).*how long"),
        (regard.readouts.Mass([True, False]), "Mass.*how long"),
        (regard.readouts.Mass(slice(-3, None)), "Mass.*how long"),
    ],
    ids=str,
)
def test_readouts_that_depend_on_the_length_are_refused_by_name(readout, why):
    with (
        pytest.raises(TypeError, match=why),
        read_while_running(None, regard.readouts.Max(), readout),
    ):
        pass


def test_a_readout_without_merge_is_refused_by_name_and_read_at_once_afterwards():
    class Largest(regard.readouts.Max):
        kind = None
        merge = regard.pattern.readouts.Readout.merge

    with pytest.raises(TypeError, match=r"Largest\.merge"), read_while_running(None, Largest()):
        pass
    model, (query, key) = Layers(), sequence()
    with regard.record(model) as recording:
        grown(model, query, key, STEPWISE)
    readings = recording.read(
        Largest(), regard.readouts.Image(4, 4), regard.readouts.Received(), regard.readouts.Mass(-1)
    )
    # The kernel's rounding against torch's own, of weights up to 1.
    torch.testing.assert_close(readings["largest"].values[0], recording[0].max(), rtol=0, atol=1e-6)
    assert torch.equal(readings["image"].values[0], recording[0].image(4, 4))
    assert torch.equal(readings["mass"].values[1], recording[1].mass(-1))


@pytest.mark.parametrize(
    ("readouts", "options", "error", "why"),
    [
        ((), {}, TypeError, "at least one readout"),
        ((regard.readouts.Max,), {}, TypeError, "is not a readout"),
        (([regard.readouts.Max()],), {}, TypeError, "is not a readout"),
        ((regard.readouts.Max(),), {"every": 0}, ValueError, "every must be at least 1, but is 0"),
        ((regard.readouts.Max(),), {"every": 1.5}, TypeError, "every must be a whole number"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(readouts, options, error, why):
    with pytest.raises(error, match=why), read_while_running(None, *readouts, **options):
        pass


def reordered(key):
    return torch.cat([key[..., :-1, :].flip(0), key[..., -1:, :]], dim=-2)


def cropped(key):
    return torch.cat([key[..., : T - 3, :], key[..., -1:, :]], dim=-2)


@pytest.mark.parametrize("change", [reordered, cropped])
def test_a_cache_that_is_not_the_one_read_is_refused(change):
    layer, (query, key) = Attend(), sequence(T + 1)

    def generate():
        grown(layer, query[..., :T, :], key[..., :T, :], STEPWISE)
        layer(query[..., -1:, :], change(key))

    with pytest.raises(RecordError, match="not the 9"), read_while_running(layer, *READOUTS):
        generate()


def test_tokens_name_the_positions_and_must_fit_them():
    layer, (query, key) = Attend(), sequence(3)
    with read_while_running(layer, regard.readouts.Max(), tokens=[*"abc"]) as run:
        layer(query, key)
    assert run.tokens == (("a", "b", "c"),)
    two = read_while_running(layer, regard.readouts.Max(), tokens=[*"ab"])
    with pytest.raises(ValueError, match=r"of \[2\] positions, but .* of 3"), two:
        layer(query, key)


@pytest.mark.parametrize("cache", [static, rolling])
def test_a_saved_recording_is_read_call_by_call_as_well(cache, tmp_path):
    model, (query, key) = Layers(), sequence()
    with regard.record(model) as recording:
        cache(model, query, key)
    recording.save(tmp_path / "run")
    expected, actual = (one.read(*READOUTS) for one in (recording, regard.load(tmp_path / "run")))
    for name, reading in expected.items():
        assert torch.equal(actual[name].values, reading.values), name
