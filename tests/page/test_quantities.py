"""The page names the scores of heads as the package does, in its order."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import regard
from regard.lens.naming.heads import SCORES

NODE = shutil.which("node")
STATIC = Path(regard.__file__).parent / "page" / "static"


pytestmark = pytest.mark.skipif(NODE is None, reason="node reads the page's module")


def printed(program):
    """What a program prints as JSON, where the page's modules are imported by name."""
    imports = "".join(
        f"import * as {name} from {json.dumps((STATIC / f'{name}.js').as_uri())};\n"
        for name in ("quantities", "format")
    )
    command = [NODE, "--input-type=module", "-e", f"{imports}{program}"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_the_page_has_the_scores_of_the_package():
    assert tuple(printed("console.log(JSON.stringify(quantities.SCORES))")) == SCORES


def test_a_key_is_a_sink_of_the_model_where_three_in_a_hundred_heads_rest_on_it():
    heads = [[0, 4]] * 3 + [[4]] + [[2]] * 2 + [[]] * 94
    program = f"console.log(JSON.stringify(quantities.restsOf({json.dumps(heads)})))"
    assert printed(program) == [{"key": 4, "heads": 4}, {"key": 0, "heads": 3}]


def test_scores_have_two_decimals_also_in_a_report_of_few():
    program = """format.keepTo(0);
const written = [["induction", 0.117], ["entropy", 2], ["distance", 12.34], ["first_token", null]]
  .map(([name, value]) => quantities.scoreOf(name, value));
console.log(JSON.stringify([...written, format.signed(0.117)]));"""
    assert printed(program) == ["0.12", "2.00", "12.3", "–", "0"]
