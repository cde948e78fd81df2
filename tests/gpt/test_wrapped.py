"""Models in what torch wraps them in, at every door: used as the model inside, or refused."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import regard
from regard.gpt import (
    GPT,
    CharTokenizer,
    CheckpointError,
    GPTConfig,
    Sampling,
    evaluate,
    generate,
    generate_texts,
    link_effects,
    load,
    read_gpt2,
    save,
    stream,
    write_gpt2,
)
from regard.lens import circuits
from regard.page import ModelSubject

TEXT = "the cat sat on the mat"
TOKENIZER = CharTokenizer(TEXT)
CONFIG = GPTConfig(vocab_size=TOKENIZER.vocab_size, context=31, layers=3, heads=2, dim=14)
IDS = torch.tensor(TOKENIZER.encode(TEXT))
LINK = SimpleNamespace(kind="a", decided=(19, 22), deciding=((4, 7),), decoys=())
LINKED = SimpleNamespace(text=TEXT, links=(LINK,))
GREEDY = Sampling(temperature=0.0)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own modules
    pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*FullyShardedDataParallel"),
    pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks"),
    pytest.mark.filterwarnings("ignore:.*is compiled; inside the block"),
]


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make():
    torch.manual_seed(0)
    return GPT(CONFIG).eval()


def with_compiled_block(model):
    model.h[1] = torch.compile(model.h[1])
    return model


COPIES = {
    "compile": torch.compile,
    "compiled block": with_compiled_block,
    "DataParallel": nn.DataParallel,
    "DDP": DDP,
    "DDP of compile": lambda model: DDP(torch.compile(model)),
    "compile of DDP": lambda model: torch.compile(DDP(model)),
}
SHARDS = {
    "FSDP": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "fully_shard": fully_shard,
}


@pytest.fixture(
    params=[*list(COPIES)[:-1], pytest.param("compile of DDP", marks=pytest.mark.thorough)]
)
def copy(request):
    return COPIES[request.param](make())


@pytest.fixture(params=SHARDS)
def sharded(request):
    return SHARDS[request.param](make())


def same(model):
    state = make().state_dict()
    own = model.state_dict()
    return own.keys() == state.keys() and all(own[name].equal(state[name]) for name in state)


def test_a_wrapped_model_is_saved_as_the_model_inside(copy, tmp_path):
    save(tmp_path, copy, TOKENIZER)
    assert same(load(tmp_path)[0])


def test_the_state_of_a_wrapped_model_is_loaded(copy):
    model = GPT(CONFIG)
    model.load_state_dict(copy.state_dict())
    assert same(model)


def test_a_model_with_a_compiled_block_loads_a_plain_state():
    model = with_compiled_block(GPT(CONFIG))
    model.load_state_dict(make().state_dict())
    again = GPT(CONFIG)
    again.load_state_dict(model.state_dict())
    assert same(again)


def test_a_wrapped_gpt2_is_written_as_the_model_inside(copy, tmp_path):
    write_gpt2(copy, tmp_path)
    assert same(read_gpt2(tmp_path))


def test_a_wrapped_model_generates_and_is_evaluated(copy):
    model = make()
    options = {"tokens": 5, "sampling": GREEDY}
    with torch.compiler.set_stance("force_eager"):  # compiling is not what is tested
        assert generate(copy, IDS, **options).equal(generate(model, IDS, **options))
        tokens = zip(stream(copy, IDS, **options), stream(model, IDS, **options), strict=True)
        assert all(one.equal(other) for one, other in tokens)
        assert generate_texts(copy, TOKENIZER, ["the"], **options)
        # A block that is called by itself adds up in another order: float32, of a loss near ln 11.
        assert evaluate(copy, IDS) == pytest.approx(evaluate(model, IDS), rel=1e-5)


def test_a_wrapped_model_is_shown(copy, tmp_path):
    page = tmp_path / "page.html"
    assert regard.report(copy, page, tokenizer=TOKENIZER, text=TEXT, live=True) > 0
    assert ModelSubject(copy, TOKENIZER, title="m", text=TEXT).about()["limits"]["tokens"] == 31
    server = regard.explore(copy, tokenizer=TOKENIZER, text=TEXT, port=0)
    server.stop()


def test_what_is_recorded_of_a_wrapped_model_has_the_names_of_the_one_inside(copy):
    with torch.no_grad(), regard.record(copy) as recording:
        copy(IDS[None])
    names = [layer.name for layer in recording.layers]
    assert names == ["h.0.attn", "h.1.attn", "h.2.attn"]
    with torch.no_grad(), regard.record() as recording:  # told by the calls alone
        copy(IDS[None])
    assert [layer.name for layer in recording.layers] == names
    monitor = regard.Monitor(copy, every=1)
    with monitor.update(0):
        copy(IDS[None]).sum().backward()
    assert monitor.updates == (0,)


def measured(of):
    """Effects of every kind."""
    target = regard.lens.LogProbability(3)
    yield regard.lens.effects(of, IDS, target).values
    yield regard.lens.effects(of, IDS, target, method="gradient").values
    yield regard.lens.effects(of, IDS, target, over="keys").values
    yield regard.lens.effects(
        of,
        IDS,
        regard.lens.Answer(slice(19, 22)),
        over=[(0, 7), (8, 12)],
        hidden_from="question",
    ).values
    with torch.compiler.set_stance("force_eager"):  # compiling is not what is tested
        yield link_effects(of, TOKENIZER, [LINKED]).log_probability.heads.mean


@pytest.fixture(scope="module")
def effects_inside():
    return [*measured(make())]


def test_effects_of_a_wrapped_model_are_those_of_the_one_inside(copy, effects_inside):
    for one, other in zip(measured(copy), effects_inside, strict=True):
        # Of logarithms of probabilities, near −2.4 in float32, and so rounded to some 1e-6.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_the_maps_of_a_wrapped_model_are_those_of_the_one_inside(copy):
    model = make()
    for of in (circuits.qk, circuits.ov):
        assert of(copy, 1, 1).left.equal(of(model, 1, 1).left)
    assert circuits.copying(copy, 1, 1) == circuits.copying(model, 1, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, folder: save(folder, model, TOKENIZER),
        write_gpt2,
        lambda model, folder: regard.report(model, folder / "a.html", tokenizer=TOKENIZER),
        lambda model, _: regard.explore(model, tokenizer=TOKENIZER, port=0),
        lambda model, _: generate(model, IDS, tokens=3),
        lambda model, _: generate_texts(model, TOKENIZER, ["the"], tokens=3),
        lambda model, _: circuits.ov(model, 0, 0),
        lambda model, _: circuits.copying(model, 0, 0),
    ],
    ids=["save", "transformers", "report", "explore", "generate", "texts", "ov", "copying"],
)
def test_shards_are_refused_where_weights_are_needed_whole(sharded, tmp_path, use):
    save(tmp_path, make(), TOKENIZER)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    message = r"model is sharded over processes \(FSDP\).* gather"
    with pytest.raises(ValueError, match=message):
        use(sharded, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_the_state_of_shards_is_refused():
    with pytest.raises(ValueError, match=r"state_dict is sharded over processes \(FSDP\).*gather"):
        GPT(CONFIG).load_state_dict(fully_shard(make()).state_dict())


def test_a_sharded_model_is_recorded_and_measured_by_its_own_calls(sharded):
    with torch.no_grad(), regard.record(sharded) as recording:
        sharded(IDS[None])
    assert [layer.name for layer in recording.layers] == ["h.0.attn", "h.1.attn", "h.2.attn"]
    target, model = regard.lens.LogProbability(3), make()
    for measure in (
        lambda of: regard.lens.effects(of, IDS, target).values,
        lambda of: (
            regard.lens.effects(
                of,
                IDS,
                regard.lens.Answer(slice(19, 22)),
                over=[(0, 7), (8, 12)],
                hidden_from="question",
            ).values
        ),
    ):
        # As above.
        torch.testing.assert_close(measure(sharded), measure(model), rtol=1e-4, atol=1e-5)


def test_another_module_is_refused(tmp_path):
    with pytest.raises(
        TypeError, match=r"model is a Linear; expected a GPT of regard\.gpt, as it is"
    ):
        save(tmp_path / "m", nn.DataParallel(nn.Linear(2, 3)), TOKENIZER)
    assert not (tmp_path / "m").exists()


def spoiled(change):
    model = make()
    change(model)
    return model


def add_a_weight(model):
    model.extra = nn.Linear(2, 3)


def cut_a_weight(model):
    model.ln_f.weight = nn.Parameter(torch.ones(13))


def take_a_weight(model):
    model.h[1].attn.c_proj.bias = None


def fill(number):
    def change(model):
        model.h[2].mlp.c_fc.weight.data[3, 5] = number

    return change


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (add_a_weight, {}, r"has a weight extra\.bias, which a GPT of its configuration does not"),
        (cut_a_weight, {}, r"ln_f\.weight is \(13,\), and its configuration says \(14,\)"),
        (take_a_weight, {}, r"h\.1\.attn\.c_proj\.bias is missing, and its configuration says"),
        (fill(torch.nan), {}, r"h\.2\.mlp\.c_fc\.weight holds NaN, infinity or"),
        (fill(-torch.inf), {}, r"h\.2\.mlp\.c_fc\.weight holds NaN, infinity or"),
        # The largest number of float16 is 65,504.
        (fill(7e4), {"dtype": torch.float16}, r"h\.2\.mlp\.c_fc\.weight holds NaN, infinity or"),
        (lambda m: m.to("meta"), {}, r"has no values, as it is on the device meta: save the model"),
        (fill(1.0), {"dtype": torch.int8}, r"is int8, and weights are one of float16, bfloat16"),
    ],
)
def test_a_model_that_could_not_be_loaded_does_not_replace_one_that_can(
    tmp_path, change, options, message
):
    save(tmp_path, make(), TOKENIZER)
    with pytest.raises(ValueError, match=message):
        save(tmp_path, spoiled(change), TOKENIZER, overwrite=True, **options)
    assert same(load(tmp_path)[0])


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight.to(torch.int8), "is int8, and weights are one of .*quantised"),
        (lambda weight: weight > 0, "is bool, and weights are one of"),
        (lambda weight: weight.to(torch.float8_e4m3fn), "is float8_e4m3fn, and weights are"),
        (
            lambda weight: weight.fill_(torch.nan),
            "holds NaN, infinity or more .*: its training diverged",
        ),
        (
            lambda weight: weight.fill_(torch.inf),
            "holds NaN, infinity or more .*: its training diverged",
        ),
    ],
)
@pytest.mark.parametrize("of", ["regard", "transformers"])
def test_weights_that_are_no_numbers_of_floating_point_are_named(
    tmp_path, change, message, of, weights
):
    from safetensors.torch import load_file, save_file

    from regard.gpt import BPETokenizer

    if of == "regard":
        save(tmp_path, make(), TOKENIZER)
        name = "h.1.mlp.c_proj.weight"
    else:
        tokenizer = BPETokenizer.train([TEXT], vocab_size=257)
        config = GPTConfig(vocab_size=257, context=31, layers=2, heads=2, dim=14)
        write_gpt2(GPT(config), tmp_path, tokenizer)
        name = "transformer.h.1.mlp.c_proj.weight"
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[name] = change(tensors[name])
    save_file(tensors, path)  # without the checksum that would be wrong
    with pytest.raises(CheckpointError, match=rf"{name} {message}"):
        load(tmp_path, weights=weights)
    if of == "transformers":
        with pytest.raises(CheckpointError, match=rf"{name} {message}"):
            read_gpt2(tmp_path)
