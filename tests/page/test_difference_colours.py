"""The colours of a difference: blue where a weight fell, warm where it rose, the ground at 0."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import regard

NODE = shutil.which("node")
SCRIPT = Path(regard.__file__).parent / "page" / "static" / "colour.js"


@pytest.mark.skipif(NODE is None or not SCRIPT.exists(), reason="there is no node, or no page")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_difference_has_two_sides_and_the_ground_between_them(theme):
    program = f"""
import {{ differenceRamp, differenceScale, place }} from {json.dumps(SCRIPT.as_uri())};
const values = [-1, -0.3, -1e-3, 0, 1e-3, 0.3, 1];
const places = ["log", "linear"].map((kind) => values.map((value) =>
  place(differenceScale(kind, 0.7), value)));
console.log(JSON.stringify([Array.from(differenceRamp("{theme}")), places]));
"""
    command = [NODE, "--input-type=module", "-e", program]
    colours, places = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    colours = np.array(colours, dtype=float).reshape(256, 3)
    for row in places:
        assert row[3] == 0.5
        assert row == sorted(row)
        np.testing.assert_allclose(np.add(row, row[::-1]), 1)
    red, blue = colours[:, 0], colours[:, 2]
    assert (blue[:96] > red[:96]).all()
    assert (red[160:] > blue[160:]).all()
    # Away from 0 either side leaves the ground, as far as the other.
    luminance = colours @ (0.2126, 0.7152, 0.0722)
    outwards = np.diff(luminance[128:]) * (-1 if theme == "light" else 1)
    assert (outwards > -0.8).all()
    assert abs(luminance[0] - luminance[255]) < 40
