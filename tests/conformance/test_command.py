"""The command: its report as text, JSON and HTML, its exit status, and misuse in one line."""

import json
from pathlib import Path

import pytest

from regard.conformance.__main__ import main

WRONG = Path(__file__).with_name("wrong.py")
SDPA = "torch.nn.functional:scaled_dot_product_attention"


def test_what_passes_exits_with_0(capsys):
    assert main([SDPA, "--area", "plain", "--area", "softcap"]) == 0
    text = capsys.readouterr().out
    assert "plain    passed              error " in text
    assert "softcap  not offered         no parameter softcap" in text
    assert text.endswith("Nothing that it offers differs from the definition.\n")


def test_what_differs_exits_with_1_and_shows_the_first_case_of_each_area(capsys, tmp_path):
    files = [tmp_path / f"report.{form}" for form in ("json", "html", "txt")]
    out = [word for file in files for word in ("--out", str(file))]
    status = main([f"{WRONG}:one_off", "--area", "causal", "--area", "scale", *out])
    text = capsys.readouterr().out
    assert status == 1
    assert text.count("from wrong import one_off as attend") == 1
    assert "# causal: as many queries as keys (and 2 more of this area)" in text
    assert "is_causal=True" in text
    assert files[2].read_text("utf-8") == text

    report = json.loads(files[0].read_text("utf-8"))
    assert report["conforms"] is False
    assert [(area["name"], area["status"]) for area in report["areas"]] == [
        ("scale", "passed"),
        ("causal", "differs"),
    ]
    differing = [one for one in report["areas"][1]["cases"] if one["status"] == "differs"]
    assert len(differing) == 3
    assert all(one["error"] > one["allowed"] and "got = " in one["snippet"] for one in differing)

    page = files[1].read_text("utf-8")
    assert page.count("<pre>") == 3
    assert "(got - want).abs().max()" in page
    assert "masked_fill(~see, -torch.inf)" in page
    assert '<td class="differs">differs, 3 of 4</td>' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch"], "TARGET must be module:function or file.py:function, not torch"),
        (["no_such_module:f"], "no_such_module can't be imported: ModuleNotFoundError"),
        (["nothing.py:f"], "there is no file nothing.py"),
        (["torch.nn.functional:nothing"], "torch.nn.functional has no nothing"),
        (["torch:float32"], "torch:float32 can't be called: it is of type dtype"),
        (["torch:sin"], "of no known family of attention functions; name the one that it is"),
        (["torch:sin", "--signature", "torch"], "torch:sin could not be called like torch's: Ty"),
        ([SDPA, "--device", "nowhere"], "--device nowhere can't be used"),
        ([SDPA, "--out", "report.pdf"], "--out must end in .html, .json, .txt, not report.pdf"),
        ([SDPA, "--out", "no/such/r.html"], "--out names a folder that is not there: no/such"),
    ],
)
def test_misuse_is_one_line_and_exits_with_2(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: {message}") or message in said
    assert said.count("\n") == 1


def test_options_that_are_not_there_exit_with_2(capsys):
    with pytest.raises(SystemExit) as ended:
        main([SDPA, "--area", "speed"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
