"""The tables of one file, where llama.cpp can't read it."""

from benchmarks import one_file
from benchmarks.report import Report
from regard.cli.timing import Measured
from regard.gpt import GPT, GPTConfig


def test_where_llama_cpp_crashes_ours_are_measured_and_it_is_said(tmp_path, monkeypatch, capsys):
    config = GPTConfig(vocab_size=11, context=513, layers=1, heads=1, dim=8)
    file = one_file._File("f16", tmp_path / "a.gguf", GPT(config).eval(), 11)
    asked = []

    def measured(tasks, *_):
        asked.append([*tasks])
        return Measured({name: [1.0] for name in tasks}, limit=0.0)

    monkeypatch.setattr(one_file, "interleaved", measured)
    report = Report()
    one_file.generation(report, file, 1)
    one_file.prompts(report, file, 1)
    assert asked == [["regard"]] * 3  # one prompt and eight at a time, then a long prompt
    said = [line for line in capsys.readouterr().out.splitlines() if "not measured" in line]
    assert [line.split("  ")[-1].strip() for line in said] == [
        "not measured: llama.cpp ended by signal 11"
    ] * 2
    assert report.counts == (0, [])
