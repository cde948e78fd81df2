"""The reader's own file: its lines stand on the pages, every stage is right, mistakes are named."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from regard_course import _mine_attention, _mine_gpt, command
from regard_course._child import stages_of
from regard_course._mine import STAGES, check_stages

import regard
from regard.gpt import GPT, GPTConfig, load

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from own_file import FOLDER, own_file  # it stands beside the pages

PAGES = list(dict.fromkeys(stage.page for stage in STAGES))
text_after = cache(own_file)


def defined(text):
    names = {}
    exec(compile(text, "mine.py", "exec"), names)
    return names


def test_after_each_page_the_file_has_the_stages_of_that_page_and_they_are_right():
    for at, page in enumerate(PAGES):
        names = defined(text_after(page))
        so_far = {stage.name for stage in STAGES if stage.page in PAGES[: at + 1]}
        there = {stage.name for stage in STAGES if stage.is_there(names)}
        assert there == so_far, page
    results = check_stages(names)  # of the last page
    assert [one.state for one in results] == ["right"] * len(STAGES), results


def test_before_attend_is_one_call_it_is_right_too():
    states = {one.name: one for one in check_stages(defined(text_after("9c")))}
    assert {one.state for one in states.values()} == {"right", "missing"}, states


def test_the_whole_file_has_about_150_lines_and_needs_torch_alone():
    text = text_after("9d")
    assert 140 <= len(text.splitlines()) <= 170
    imported = [
        one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Import | ast.ImportFrom)
    ]
    named = {getattr(one, "module", None) or one.names[0].name for one in imported}
    assert named == {"torch", "torch.nn"}


SPLIT = "x.unflatten(-1, (self.H, -1)).transpose(1, 2)"
# After which page, what stands there, what a reader writes instead, and what is said of it.
MISTAKES = [
    ("1", ".triu(1)", ".triu(2)", "the mask is one off"),
    ("1", ".triu(1)", ".triu(0)", "a row leaves itself out"),
    ("1", "-torch.inf", "0.0", "no mask, or one of 0"),
    ("1", "dim=-1", "dim=-2", "softmax over queries, not keys"),
    ("1", "later, -torch.inf", "later.T, -torch.inf", "the other triangle"),
    ("1", "torch.softmax(scores, dim=-1)", "(scores == 0).float()", "sums, not means"),
    ("2", "weights = torch.softmax(scores, dim=-1)", "weights = torch.softmax(scores, dim=-2)",
     "softmax over queries, not keys"),
    ("2", " * scale", "", "the scale is not used"),
    ("2", "scale=1.0", "factor=1.0", "attend takes no scale"),
    ("2", " * scale", " / scale", "scores are divided by the scale"),
    ("2", "weights = torch.softmax(scores, dim=-1)", "weights = scores", "no softmax"),
    ("2", "query @ key.transpose(-2, -1)", "key @ query.transpose(-2, -1)", "changed places"),
    ("2", "query @ key.transpose(-2, -1)", "query @ key", "it raises RuntimeError in line "),
    ("3", "** -0.5", "** -1.0", "divides by D instead of √D"),
    ("3", "query.shape[-1] **", "x.shape[-1] **", "√E for √D"),
    ("3", "attend(query, key,", "attend(key, query,", "changed places"),
    ("3", "bias=False", "bias=True", "these layers have bias=False"),
    ("3", "self.value(x)", "self.value(x).detach()", "no gradient reaches value.weight"),
    ("4", "query.shape[-1] ** -0.5 if", "query.shape[-1] ** -1.0 if", "by D instead of √D"),
    ("4", "query.shape[-1] ** -0.5 if", "query.shape[-1] ** 0.5 if", "multiplies by √D"),
    ("4", "query.shape[-1] ** -0.5 if", "key.shape[-2] ** -0.5 if", "number of keys"),
    ("5", "triu(S - L + 1)", "triu(S - L + 2)", "position 3 sees position 4"),
    ("5", "triu(S - L + 1)", "triu(S - L)", "itself is hidden"),
    ("5", "triu(S - L + 1)", "triu(1)", "the mask counts from the upper left corner"),
    ("5", "scores.masked_fill(later, -torch.inf)\n    w", "scores.masked_fill(later, 0.0)\n    w",
     "0 in place of −∞"),
    ("5", "        scores = scores.masked_fill(later, -torch.inf)\n", "", "no mask"),
    ("6", "F.dropout(torch.softmax(scores, dim=-1), dropout)", "torch.softmax(scores, dim=-1)",
     "dropout never acts"),
    ("6", "F.dropout(torch.softmax(scores, dim=-1), dropout)",
     "torch.softmax(scores, dim=-1) * (torch.rand_like(scores) >= dropout)", "1/(1 − p)"),
    ("6", "F.dropout(torch.softmax(scores, dim=-1), dropout)",
     "torch.softmax(F.dropout(scores, dropout), dim=-1)", "scores are dropped, not weights"),
    ("6", ", dropout)\n    return weights @ value",
     ", 0.0)\n    return F.dropout(weights @ value, dropout)",
     "the context is dropped"),
    ("6", ", dim=-1), dropout)", ", dim=-1), 1 - dropout if dropout else 0.0)", "p is the share"),
    ("7", " if self.training else 0.0", "", "dropout is active in eval"),
    ("7", "causal=True, dropout=dropout", "causal=True", "dropout never acts in training"),
    ("7", SPLIT, "x.reshape(len(x), self.H, x.shape[1], -1)", "heads cut wrongly, view before"),
    ("7", SPLIT, "x.unflatten(-1, (-1, self.H)).permute(0, 3, 1, 2)", "heads interleaved wrongly"),
    ("7", "context.transpose(1, 2).flatten(2)", "context.reshape(x.shape)", "heads merged wrongly"),
    ("7", "causal=True, ", "", "no mask"),
    ("7", "causal=True, ", "causal=True, scale=x.shape[-1] ** -0.5, ", "√E for √D"),
    ("7", "query, key, value = (self.split", "key, query, value = (self.split", "changed places"),
    ("7", "self.c_proj(context.transpose(1, 2).flatten(2))", "context.transpose(1, 2).flatten(2)",
     "c_proj is left out"),
    ("7", "self.c_proj = ", "self.out = ", "has no parameter c_proj.weight"),
    ("9a", "sorted(set(pieces))", "list(dict.fromkeys(pieces))", "order of first appearance"),
    ("9a", "enumerate(self.pieces)", "enumerate(self.pieces, 1)", "counted from 1"),
    ("9b", ', approximate="tanh"', "", "GELU in its exact form"),
    ("9b", "x = x + self.attn(", "x = self.attn(", "no residual around attention"),
    ("9b", "return x + self.mlp(", "return self.mlp(", "no residual around the MLP"),
    ("9b", "self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))", "ln_1 twice"),
    ("9b", "return self.ln_f(x) @", "return x @", "ln_f is left out"),
    ("9b", " + self.wpe(torch.arange(ids.shape[-1], device=ids.device))", "", "are not added"),
    ("9b", "torch.arange(ids.shape[-1], device=ids.device)", "ids.clamp(max=6)", "asked for ids"),
    ("9b", "nn.ModuleList(Block(E, H, dropout) for _ in range(layers))",
     "[Block(E, H, dropout) for _ in range(layers)]", "a list hides them"),
    ("9b", "std=0.1", "std=1.0", "the embedding starts too large"),
    ("9b", "for block in self.h:", "for block in self.h[:1]:", "only the first block runs"),
    ("9c", "ids[places + 1]", "ids[places]", "targets are not shifted"),
    ("9c", "        optimizer.zero_grad()\n", "", "zero_grad() is missing"),
    ("9c", "        optimizer.step()\n", "", "optimizer.step() or loss.backward() is missing"),
    ("9c", "targets.flatten())", "inputs.flatten())", "on what it reads, not on the targets"),
    ("9c", "loss.item()", "loss", "each with its whole graph"),
    ("9d", "past[:] = key, value", "past[:] = key[:, :, :-1], value[:, :, :-1]", "forgets"),
    ("9d", "past[:] = key, value", "past = key, value", "the cache is empty"),
    ("9d", "torch.arange(start, start + ids.shape[-1]", "torch.arange(ids.shape[-1]", "begin at 0"),
    ("9d", "tril(S - L)", "tril()", "the mask counts from the upper left corner"),
    ("9d", "logits / temperature", "logits * temperature", "multiplied by the temperature"),
    ("9d", "logits / temperature", "logits", "the temperature is not used"),
    ("9d", "torch.multinomial(probabilities, 1).squeeze(-1)", "probabilities.argmax(-1)",
     "always the likeliest"),
    ("9d", "        logits = logits.masked_fill(logits < least, -torch.inf)\n", "", "is not used"),
    ("9d", "model(new, cache)", "model(ids)", "needs the new token alone"),
    ("9d", "    return ids\n", "    return ids[:, -count:]\n", "that it read is left out"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "right", "wrong", "said"), MISTAKES, ids=[f"{one[0]} {one[3]}" for one in MISTAKES]
)
def test_a_mistake_is_named(page, right, wrong, said):
    text = text_after(page)
    assert right in text
    names = defined(text.replace(right, wrong))
    if page == "9d":
        del names["train"]  # which takes longest
    results = check_stages(names)
    (found,) = (one for one in results if one.state == "wrong")
    assert said in f"{found.what}. {found.why}"
    after = results[results.index(found) + 1 :]
    assert {one.state for one in after} <= {"missing", "waiting"}


def test_the_definitions_are_those_of_regard():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 5), torch.randn(2, 7, 5), torch.randn(2, 7, 2)
    expected = regard.explain(query, key, value, mask=regard.causal()).context
    came = _mine_attention.attended(query, key, value, causal=True)
    torch.testing.assert_close(came, expected)
    model = GPT(GPTConfig(vocab_size=11, context=7, layers=2, heads=3, dim=12)).eval()
    ids = torch.randint(11, (2, 6))
    logits = _mine_gpt.gpt_logits(ids, model.state_dict(), 3, (0, 1))
    torch.testing.assert_close(logits, model(ids))


def test_a_file_without_stages_and_one_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    assert "it begins on page 1 with causal_averages(x)" in stages_of(str(path))["error"]
    path.write_text("def causal_averages(x):\n    return x.mean(\n")
    assert "mine.py is not Python" in stages_of(str(path))["error"]


def test_the_command_prints_a_line_a_stage(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "mine.py"
    path.write_text(text_after("5").replace("triu(S - L + 1)", "triu(S - L + 2)"))
    assert not command.run(str(path), [])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == " 1  causal_averages(x)                 right"
    assert lines[4] == " 5  attend(…, causal=False)            wrong"
    assert lines[7] == "    Mistake: the mask is one off: position 3 sees position 4."
    (page,) = FOLDER.glob("05-*.md")
    assert "\n".join(lines[4:8]) in page.read_text("utf-8")
    assert lines[-1] == f"4 of {len(STAGES)} right"


@pytest.mark.thorough
def test_two_minutes_train_the_reader_s_gpt_and_leave_a_model_of_regard(tmp_path, monkeypatch):
    import two_minutes

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(text_after("9d"))
    losses = two_minutes.main(updates=40, count=60)
    assert losses[-1] < losses[0] - 1
    model, tokenizer = load("runs/mine")
    assert model.config.layers == two_minutes.LAYERS
    assert tokenizer.vocab_size == model.config.vocab_size
    del sys.modules["mine"]
