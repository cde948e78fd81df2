"""What the plugin of vLLM reads, of a stand-in for vLLM's worker; `make vllm` has vLLM itself."""

import json
from types import SimpleNamespace

import pytest
import torch
from support import oracle
from support.paged_engine import GROUPS, HEADS, LAYERS, SIZE, PagedEngine

import regard
import regard_vllm
from regard.pattern.readouts import Entropy, Received, Spans, TopK
from regard_vllm import _reader
from regard_vllm._answer import index_of
from regard_vllm._attention import ReadableLayer, _require_supported
from regard_vllm._request import AttentionRequest

LENGTH = 43
ALL = ["received", "entropy", "topk", "spans"]
LABELS = [0, 0, 1, -1, 1, 1]


@pytest.fixture
def engine(monkeypatch, request, tmp_path):
    return attached(monkeypatch, **getattr(request, "param", {}))


def attached(monkeypatch, *arguments, **options):
    worker = PagedEngine(*arguments, **options)
    layers = [ReadableLayer(n, f"layers.{n}.attn", layer) for n, layer in enumerate(worker.layers)]
    monkeypatch.setattr(_reader, "readable_layers", lambda worker: layers)
    worker.reader = _reader.Reader(worker)
    return worker


def tensors(length=LENGTH, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(LAYERS, HEADS, length, SIZE, generator=generator) * 2
    return query.to(dtype), torch.randn(LAYERS, GROUPS, length, SIZE, generator=generator).to(dtype)


def exact(query, key, **options):
    """The weights by the definition, of rows that are the last of the keys."""
    queries, keys = query.shape[-2], key.shape[-2]
    positions = torch.arange(keys - queries, keys)
    back = positions[:, None] - torch.arange(keys)
    window = options.pop("window", keys)
    visible = ((back >= 0) & (back < window)).expand(1, HEADS, -1, -1)
    value = key[None]
    return oracle.attend(
        query[None],
        key[None],
        value,
        visible=visible,
        positions=positions[None],
        scale=0.3,
        **options,
    ).weights[0]


def require_exact(readings, weights, layer, *, tolerance=2e-6):
    part = {name: readings[name].parts[layer][0].double() for name in readings}
    close = {"rtol": 0, "atol": tolerance}  # of sums of at most 43 weights in float32
    torch.testing.assert_close(part["received"], weights.sum(1), **close)
    torch.testing.assert_close(part["entropy"], torch.special.entr(weights).sum(-1), **close)
    top = weights.topk(part["top_weights"].shape[-1]).values
    torch.testing.assert_close(part["top_weights"], top, **close)
    spans = [weights[..., [0, 1]].sum(-1), weights[..., [2, 4, 5]].sum(-1)]
    torch.testing.assert_close(part["spans"], torch.stack(spans, -1), **close)


def take(engine, name):
    return regard_vllm.Answer.from_bytes(engine.reader.take(name, 0, 0))


def asked(**options):
    return regard_vllm.ask(ALL, k=3, spans=LABELS, **options)


def test_chunks_and_steps_among_other_requests_give_the_readouts_of_the_whole(engine):
    query, key = tensors()
    others = [engine.serve(f"other{n}", *tensors(seed=n), computed=n) for n in (1, 2)]
    engine.run({"other1": 11, "other2": 3}, others)
    mine = engine.serve("mine-0123abcd", query, key, asked())
    engine.run({"other1": 5, "mine-0123abcd": 17, "other2": 1}, [mine])
    engine.run({"mine-0123abcd": 9, "other1": 1})
    for _ in range(LENGTH - 26):
        assert engine.run({"other2": 1, "mine-0123abcd": 1}) == "rows"
    answer = take(engine, "mine")
    assert answer.rows == range(LENGTH)
    for layer in range(LAYERS):
        require_exact(answer.readings, exact(query[layer], key[layer]), layer)


def test_readouts_do_not_depend_on_other_requests_to_the_last_bit(monkeypatch):
    answers = []
    for alone in (True, False):
        engine = attached(monkeypatch)
        new = [engine.serve("a", *tensors(), asked())]
        rows = {"a": 19}
        if not alone:
            new.insert(0, engine.serve("b", *tensors(seed=5), asked(layers=[0])))
            rows = {"b": 7, "a": 19}
        engine.run(rows, new)
        engine.run({"a": 1})
        answers.append(engine.reader.take("a", 0, 0))
    assert answers[0] == answers[1]


def test_layers_and_heads_are_those_asked_for(engine):
    query, key = tensors()
    engine.run({"a": LENGTH}, [engine.serve("a", query, key, asked(layers=[2, 0], heads=[4, 1]))])
    answer = take(engine, "a")
    weights = {layer: exact(query[layer], key[layer])[[4, 1]] for layer in (0, 2)}
    for place, layer in enumerate((0, 2)):
        require_exact(answer.readings, weights[layer], place)
    frame = answer.readings["entropy"].frame()
    assert sorted({*frame["layer"]}) == [0, 2]
    assert sorted({*frame["head"]}) == [1, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"window": 9},
        {"softcap": 1.5},
        {"alibi": torch.linspace(0.1, 0.7, HEADS)},
        {"sink": torch.linspace(-1, 2, HEADS)},
    ],
    ids="".join,
)
def test_scores_are_made_as_the_layer_makes_them(engine, options):
    names = {"softcap": "logits_soft_cap", "alibi": "alibi_slopes", "sink": "sinks"}
    for layer in engine.layers:
        for name, value in options.items():
            setattr(layer.impl, names.get(name, "sliding_window"), value)
    query, key = tensors()
    new = engine.serve("a", query, key, asked(heads=[5, 0, 3]))
    engine.run({"a": 20}, [new])
    if "window" in options:  # vLLM gives the blocks before the window to others
        for layer in engine.layers:
            layer.kv_cache[engine.tables["a"][0]] = torch.nan
    engine.run({"a": LENGTH - 21})
    engine.run({"a": 1})
    readings = take(engine, "a").readings
    for layer in range(LAYERS):
        weights = exact(query[layer], key[layer], **options)[[5, 0, 3]]
        require_exact(readings, weights, layer)


def test_half_precision_is_read_of_the_numbers_in_the_cache(monkeypatch):
    engine = attached(monkeypatch, dtype=torch.bfloat16)
    query, key = tensors(dtype=torch.bfloat16)
    engine.run({"a": LENGTH}, [engine.serve("a", query, key, asked())])
    readings = take(engine, "a").readings
    # the exponential of half precisions is good to 18 bits
    require_exact(readings, exact(query[1].double(), key[1].double()), 1, tolerance=2e-4)


def test_rows_of_a_cached_prefix_are_not_read_and_their_keys_are(engine):
    query, key = tensors()
    engine.run({"a": 4}, [engine.serve("a", query, key, asked(), computed=14)])
    engine.run({"a": LENGTH - 18})
    answer = take(engine, "a")
    assert answer.rows == range(14, LENGTH)
    require_exact(answer.readings, exact(query[0, :, 14:], key[0]), 0)
    assert answer.readings["entropy"].frame()["query"].min() == 14


def test_rows_that_a_preempted_request_computes_again_are_read_once(engine):
    query, key = tensors()
    engine.run({"a": 30}, [engine.serve("a", query, key, asked())])
    engine.preempt("a")
    engine.run({})
    engine.run({"a": 21})
    engine.run({"a": LENGTH - 21})
    require_exact(take(engine, "a").readings, exact(query[2], key[2]), 2)


def test_a_gap_is_named(engine):
    query, key = tensors()
    engine.run({"a": 9}, [engine.serve("a", query, key, asked())])
    engine.run({}, [])
    engine._write("a", 3)
    engine.computed["a"] += 3
    engine.run({"a": 1})
    with pytest.raises(regard_vllm.AnswerError, match="the rows from 9 to 11 were not computed"):
        take(engine, "a")


def test_nothing_is_wrapped_where_nobody_asks(engine):
    forwards = [layer.impl.forward for layer in engine.layers]
    engine.run({"plain": 5}, [engine.serve("plain", *tensors())])
    assert [layer.impl.forward for layer in engine.layers] == forwards
    engine.run({"a": 5, "plain": 1}, [engine.serve("a", *tensors(), asked(layers=[1]))])
    assert ["forward" in vars(layer.impl) for layer in engine.layers] == [False, True, False]
    engine.run({"plain": 1}, finished=["a"])
    assert [layer.impl.forward for layer in engine.layers] == forwards
    assert all(layer.impl.calls == 3 for layer in engine.layers)


def test_a_recording_is_what_explore_opens(monkeypatch, tmp_path):
    from regard.page import RecordingSubject

    engine = attached(monkeypatch, tmp_path)
    query, key = tensors()
    arguments = regard_vllm.ask(["recording", "entropy"], layers=[1, 2])
    engine.run({"a": 21}, [engine.serve("a", query, key, arguments)])
    engine.run({"a": LENGTH - 22})
    engine.run({"a": 1}, finished=["b"])
    answer = take(engine, "a")
    recording = regard.load(answer.recording)
    for layer, pattern in zip((1, 2), recording, strict=True):
        weights = exact(query[layer], key[layer])
        torch.testing.assert_close(pattern.dense()[0].double(), weights, rtol=0, atol=2e-6)
    assert [layer.name for layer in recording.layers] == ["layers.1.attn", "layers.2.attn"]
    assert RecordingSubject(recording, title="a").about()["shape"] == "2 layers × 6 heads"


@pytest.mark.parametrize(
    ("arguments", "limits", "computed", "reason"),
    [
        ({"regard_read": ["rollout"]}, {}, 0, "read must name some of received, entropy"),
        ({"regard_read": "entropy"}, {}, 0, "must be a list of names"),
        ({"regard_layers": [0]}, {}, 0, "need regard_read"),
        ({"regard_read": ["entropy"], "regard_typo": 1}, {}, 0, "may have regard_read"),
        ({"regard_read": ["topk"], "regard_k": 0}, {}, 0, "k must be between 1 and 256"),
        ({"regard_read": ["topk"], "regard_k": 1.5}, {}, 0, "must be a whole number"),
        ({"regard_read": ["spans"]}, {}, 0, "spans= a label"),
        ({"regard_read": ["spans"], "regard_spans": [0] * 44}, {}, 0, "44 labels for 43 tokens"),
        ({"regard_read": ["entropy"], "regard_layers": [3]}, {}, 0, "the model has 3, from 0"),
        ({"regard_read": ["entropy"], "regard_heads": [6]}, {}, 0, "the layers have 6, from 0"),
        ({"regard_read": ["entropy"], "regard_heads": [1, 1]}, {}, 0, "different numbers from 0"),
        ({"regard_read": ["recording"]}, {}, 0, "no folder for recordings"),
        ({"regard_read": ["recording"]}, {"tmp_path": True}, 5, "needs all rows, but the first 5"),
    ],
)
def test_a_request_that_cannot_be_read_says_why_and_is_served(
    monkeypatch, tmp_path, arguments, limits, computed, reason
):
    engine = attached(monkeypatch, **({"tmp_path": tmp_path} if limits else {}))
    assert engine.run({"a": 3}, [engine.serve("a", *tensors(), arguments, computed)]) == "rows"
    assert engine.run({"a": 1}) == "rows"
    with pytest.raises(regard_vllm.AnswerError, match=reason):
        take(engine, "a")


@pytest.mark.parametrize("limit", ["answer_mib", "recording_mib", "memory_mib", "recordings_mib"])
def test_a_request_above_a_limit_is_read_no_further(monkeypatch, tmp_path, limit):
    monkeypatch.setattr("regard_vllm._request_reading.MIB", 100)
    monkeypatch.setattr("regard_vllm._reader.MIB", 100)
    engine = attached(monkeypatch, tmp_path, **{limit: 1})
    arguments = regard_vllm.ask(["recording", "entropy"])
    engine.run({"a": LENGTH}, [engine.serve("a", *tensors(), arguments)])
    engine.run({}, finished=["a"])
    data = engine.reader.take("a", 0, 0)
    if limit == "memory_mib":
        assert data is None or limit in index_of(data)["error"]
    else:
        with pytest.raises(regard_vllm.AnswerError, match=limit):
            regard_vllm.Answer.from_bytes(data)
    assert not any(tmp_path.iterdir())


def test_the_oldest_answers_make_room(monkeypatch):
    engine = attached(monkeypatch)
    for name in "abc":
        engine.run({name: 9}, [engine.serve(name, *tensors(), asked())])
        engine.run({}, finished=[name])
    size = len(engine.reader._answers["c"])
    monkeypatch.setattr("regard_vllm._reader.MIB", 1)
    engine.reader._limits = SimpleNamespace(memory_mib=2 * size)
    engine.reader._make_room()
    assert [*engine.reader._answers] == ["b", "c"]


def test_an_answer_is_found_by_the_name_that_the_sender_knows_and_handed_out_once(engine):
    names = ["cmpl-x-0-0123abcd", "cmpl-x-1-0123abcd", "1_cmpl-y-0-0123abcd", "7-0123abcd", "7"]
    new = [engine.serve(n, *tensors(), asked(layers=[i % LAYERS])) for i, n in enumerate(names)]
    engine.run(dict.fromkeys(names, 3), new)
    for name, prompt, choice, layer in [
        ("cmpl-x", 1, 0, 1),
        ("cmpl-x", 0, 0, 0),
        ("cmpl-y", 0, 1, 2),
        ("7", 0, 0, 0),
        ("7", 0, 0, 1),
    ]:
        data = engine.reader.take(name, prompt, choice)
        assert index_of(data)["layers"] == [layer]
    assert engine.reader.take("cmpl-x", 0, 0) is None
    assert engine.reader.take("cmpl-z", 0, 0) is None


@pytest.mark.parametrize("quantised", [False, True])
def test_an_unknown_order_of_keys_is_refused(engine, quantised):
    for layer in engine.layers:
        if quantised:
            layer.kv_cache = layer.kv_cache.nan_to_num().to(torch.uint8)
        else:
            layer.impl.do_kv_cache_update = lambda layer, key, value, cache, slots: cache.fill_(1)
    engine.run({"a": 3}, [engine.serve("a", *tensors(), asked())])
    with pytest.raises(regard_vllm.AnswerError, match="does not write keys into the cache"):
        take(engine, "a")


def test_attention_to_later_keys_is_refused(engine):
    for layer in engine.layers:
        original = layer.impl.forward

        def forward(*arguments, original=original, **options):
            arguments[5].causal = False
            return original(*arguments, **options)

        layer.impl.forward = forward
    engine.run({"a": 3}, [engine.serve("a", *tensors(), asked())])
    with pytest.raises(regard_vllm.AnswerError, match="is not causal"):
        take(engine, "a")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size is 3"),
        ({"data_parallel_size": 2}, "data_parallel_size is 2"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_engines_that_cannot_be_read_are_refused_by_name(options, reason):
    sizes = dict.fromkeys(
        [
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
        ],
        1,
    )
    fast = options.get("kv_sharing_fast_prefill", False)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**(sizes | options)),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=fast),
        speculative_config=options.get("speculative_config"),
    )
    v2 = options.get("use_v2_model_runner", False)
    with pytest.raises(regard.Error, match=reason):
        _require_supported(SimpleNamespace(vllm_config=config, use_v2_model_runner=v2))


@pytest.mark.parametrize(
    ("own", "error"),
    [
        ({"answer_mb": 3}, "it may have answer_mib"),
        ({"answer_mib": 0}, "a whole number of MiB above 0"),
        ({"recordings": "/no/such/folder"}, "must be an existing folder"),
    ],
)
def test_limits_are_checked(monkeypatch, own, error):
    with pytest.raises(ValueError, match=error):
        attached(monkeypatch, **own)


def test_arguments_travel_as_flat_json():
    arguments = regard_vllm.ask(["topk", "spans"], layers=range(2), heads=(1,), k=4, spans=[0, 1])
    there = json.loads(json.dumps(arguments))
    assert AttentionRequest.of(there).arguments() == arguments
    flat = (str, int)
    assert all(
        isinstance(value, flat) or all(isinstance(part, flat) for part in value)
        for value in there.values()
    )
    kinds = [type(readout) for readout in AttentionRequest.of(there).readouts()]
    assert kinds == [TopK, Spans]
    assert [*map(type, AttentionRequest.of(regard_vllm.ask(ALL[:2])).readouts())] == [
        Received,
        Entropy,
    ]
    assert AttentionRequest.of({"other": 1}) is None


def test_other_bytes_are_not_an_answer():
    with pytest.raises(regard_vllm.AnswerError, match="not an answer"):
        regard_vllm.Answer.from_bytes(b"\x05\0\0\0\0\0\0\0hello")
