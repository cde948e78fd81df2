"""What computes attention passes, however it is called; the definition of a case is ours."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard.conformance import check
from regard.conformance.cases import AREAS, cases
from regard.conformance.signatures import Signature
from regard.conformance.trial import Setting, Trial, error_of

QUICK = [area for area in AREAS if area != "compile"]
sdpa = torch.nn.functional.scaled_dot_product_attention


def statuses(report):
    return {area.name: area.status for area in report.areas if area.status != "passed"}


def not_offered(*areas):
    return dict.fromkeys(areas, "not offered")


def test_regard_passes_everything():
    assert statuses(check(regard.attention, areas=QUICK)) == {"fully masked rows": "noted"}


def test_scaled_dot_product_attention_of_regard_passes_what_it_offers():
    report = check(regard.scaled_dot_product_attention, areas=QUICK)
    missing = not_offered("windows", "sinks", "softcap")
    assert statuses(report) == {"fully masked rows": "noted", **missing}


def test_torch_passes_and_what_it_chooses_is_noted():
    """Its parameters stand in its docstring alone; softmax without a visible key is 0 there."""
    report = check(sdpa, areas=QUICK)
    noted = dict.fromkeys(("fully masked rows", "NaN and ∞"), "noted")
    assert statuses(report) == {**noted, **not_offered("windows", "sinks", "softcap")}
    assert {one.words for one in report["fully masked rows"].outcomes[:2]} == {"0"}


def test_the_math_backend_of_torch_passes():
    with sdpa_kernel(SDPBackend.MATH):
        assert check(sdpa, areas=QUICK).conforms


def test_a_kernel_that_refuses_is_listed_and_does_not_fail():
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        report = check(sdpa, areas=["shapes", "dropout"])
    assert report.conforms
    assert report["dropout"].counted == {"refused": 2}
    assert report["shapes"].counted == {"refused": 3, "passed": 6}
    assert report["dropout"].outcomes[0].words.startswith("RuntimeError: No available kernel")


def flash(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
          softcap=0.0, return_lse=True):  # fmt: skip
    """flash's call on regard: (B, L, H, D), and a pair."""
    mask = regard.causal() if causal else None
    if window_size != (-1, -1):
        mask = regard.window(window_size[0] + 1, ahead=window_size[1])
    options = {"scale": softmax_scale, "softcap": softcap or None, "dropout": dropout_p}
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return regard.attention(q, k, v, mask=mask, **options).transpose(1, 2), None


def test_a_function_with_the_call_of_flash_is_graded():
    report = check(flash, areas=QUICK)
    assert report.signature == "flash"
    missing = not_offered("boolean masks", "additive masks", "sinks")
    assert statuses(report) == {"fully masked rows": "noted", **missing}
    assert report["shapes"].counted == {"passed": 8, "not offered": 1}  # no batch axis
    assert report["fully masked rows"].outcomes[2].words == "0"  # causal, more queries than keys


@pytest.mark.thorough  # each of its calls is traced anew
def test_flex_attention_is_graded():
    report = check(flex_attention, areas=["plain", "softcap", "sinks"])
    assert report.signature == "flex"
    assert statuses(report) == not_offered("sinks")


def test_masks_of_flex_are_functions_of_indices():
    def block_masks(query, key, value, score_mod=None, block_mask=None, enable_gqa=False):
        b, h, i, j = torch.meshgrid(*map(torch.arange, (2, 3, 11, 17)), indexing="ij")
        score = query @ key.mT / 4
        if score_mod is not None:
            score = score_mod(score, b, h, i, j)
        if block_mask is not None:
            score = score.masked_fill(~block_mask.mask_mod(b, h, i, j), -torch.inf)
        return score.softmax(-1) @ value

    trial = ["boolean masks", "additive masks"]
    counted = [check(block_masks, areas=[area])[area].counted for area in trial]
    assert [one["passed"] for one in counted] == [5, 4]  # the last ones have other sizes


def test_parameters_beyond_a_family_are_offered():
    def more(query, key, value, attn_mask=None, is_causal=False, *, softcap=None, sinks=None,
             window_size=None):  # fmt: skip
        mask = regard.causal(offset=0) if is_causal else None
        if window_size is not None:
            back, ahead = window_size
            mask = regard.window(back + 1, ahead=ahead, offset=0)
        mask = mask if attn_mask is None else regard.dense(attn_mask)
        return regard.attention(query, key, value, mask=mask, softcap=softcap, sink=sinks)

    report = check(more, areas=["causal", "boolean masks", "windows", "softcap", "sinks"])
    assert statuses(report) == {}


def test_a_wrapped_function_is_called_as_its_family_is():
    def wrapped(*tensors, **options):
        return sdpa(*tensors, **options)

    report = check(wrapped, signature="torch", areas=["scale", "grouped heads", "windows"])
    assert statuses(report) == not_offered("windows")


@pytest.mark.thorough
def test_compiled_functions_are_graded():
    assert check(sdpa, areas=["compile"])["compile"].counted == {"passed": 2}


@pytest.mark.parametrize("family", ["torch", "regard"])
def test_the_definition_of_a_case_is_that_of_explain(family):
    """Its lines, which run where torch alone is, against ours, for every case and alignment."""
    names = ["attn_mask", "is_causal", "scale", "enable_gqa", "window_size", "softcap", "sinks"]
    setting = Setting(lambda *_, **__: None, [], Signature(family, names), "float64", "cpu")
    for case in (one for one in cases() if not one.hidden):
        trial = Trial(case, setting)
        mine = trial.value("definition(q.double(), k.double(), v.double())")
        q, k, v = (trial.tensor(name).double() for name in "qkv")
        mask = regard.dense(trial.tensor("see")) if "see" in trial.names else None
        options = {name: trial.names.get(name) for name in ("bias", "sink")}
        options = {n: o if o is None else o.double() for n, o in options.items()}
        options |= {"scale": case.scale, "softcap": case.softcap, "mask": mask}
        ours = regard.explain(q, k, v, **options).context
        seen = ~mine.isnan() & ours.isfinite()
        assert error_of(mine[seen], ours[seen]) < 1e-12, case
        assert bool(seen.any()), case
