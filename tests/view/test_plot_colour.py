"""The figures' colours are the page's."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.view.plot.colour import Scale, WeightNorm, ramp, scale_for, shades

NODE = shutil.which("node")
SCRIPT = Path(regard.__file__).parent / "page" / "static" / "colour.js"
VALUES = [0.0, 1e-9, 1e-4, 0.0013, 0.02, 0.2, 0.5, 0.99, 1.0]


@pytest.mark.skipif(NODE is None or not SCRIPT.exists(), reason="there is no node, or no page")
def test_ramp_scales_and_places_are_those_of_the_page():
    program = f"""
import {{ ramp, scaleFor, place }} from {json.dumps(SCRIPT.as_uri())};
const values = {json.dumps(VALUES)};
const scales = [];
for (const kind of ["log", "linear"])
  for (const exact of [true, false])
    for (const most of [0, 3e-5, 0.0234, 0.5, 0.51, 1]) {{
      const scale = scaleFor(kind, most, exact);
      const levels = values.map((value) => Math.round(255 * place(scale, value)));
      scales.push([kind, exact, most, scale.low, scale.high, levels]);
    }}
console.log(JSON.stringify({{ ramp: Array.from(ramp("light")), scales }}));
"""
    command = [NODE, "--input-type=module", "-e", program]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert answer["ramp"] == [part for colour in ramp() for part in colour]
    colours = np.array(ramp())
    for kind, exact, most, low, high, levels in answer["scales"]:
        scale = scale_for(kind, most, exact=exact)
        assert (scale.low, scale.high) == pytest.approx((low, high))
        drawn = shades()(WeightNorm(scale)(VALUES), bytes=True)[:, :3]
        np.testing.assert_array_equal(drawn, colours[levels])


def test_the_scale_runs_from_white_to_black_ever_darker():
    luminance = np.array(ramp()) @ (0.2126, 0.7152, 0.0722)
    assert luminance[0] > 250
    assert luminance[-1] < 30
    assert (np.diff(luminance) < 0.5).all()


def test_nan_has_a_colour_of_its_own():
    norm = WeightNorm(Scale("log", 1.0))
    colour = shades()(norm([np.nan]), bytes=True)[0, :3]
    assert tuple(colour) not in set(ramp())


@pytest.mark.parametrize("kind", ["log", "linear"])
def test_ticks_lie_where_their_values_do(kind):
    scale = scale_for(kind, 0.013, exact=False)
    ticks = scale.ticks()
    assert (ticks[0], ticks[-1]) == pytest.approx((scale.low, scale.high))
    np.testing.assert_allclose(scale.value_at(scale.place(np.array(ticks))), ticks)


def test_another_scale_is_refused():
    with pytest.raises(ValueError, match="scale must be 'log' or 'linear', but is 'sqrt'"):
        scale_for("sqrt", 1.0, exact=True)
