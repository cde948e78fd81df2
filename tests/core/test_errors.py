"""An error names the argument, its value, what was expected, and the cure."""

import pytest
import torch

import regard


def arguments(**changed):
    return {
        "query": torch.zeros(2, 6, 5, 4),
        "key": torch.zeros(2, 3, 7, 4),
        "value": torch.zeros(2, 3, 7, 8),
    } | changed


REFUSED = [
    ({"query": [1.0]}, TypeError, "query must be a tensor, but is list"),
    ({"key": None}, TypeError, "key must be a tensor, but is NoneType"),
    (
        {"query": torch.zeros(2, 6, 5, 4, dtype=torch.int64)},
        TypeError,
        r"query must be floating point, but is torch.int64; try query.float\(\)",
    ),
    (
        {"value": torch.zeros(2, 3, 7, 8, dtype=torch.complex64)},
        TypeError,
        "value must be floating",
    ),
    (
        {"key": torch.zeros(2, 3, 7, 4, dtype=torch.float16)},
        ValueError,
        r"key is torch.float16 but query is torch.float32; convert one: key.to\(query.dtype\)",
    ),
    (
        {"key": torch.zeros(2, 3, 7, 4, device="meta")},
        ValueError,
        "key is on meta but query on cpu; move one",
    ),
    ({"query": torch.zeros(4)}, ValueError, r"query needs at least the axes \(L, D\)"),
    ({"key": torch.zeros(7, 4)}, ValueError, r"key has 2 axes and query 4: .*key\[None\]"),
    ({"value": torch.zeros(3, 7, 8)}, ValueError, r"value has 3 axes and query 4.*value\[None\]"),
    ({"key": torch.zeros(2, 3, 7, 5)}, ValueError, "query and key must share their last axis D"),
    ({"value": torch.zeros(2, 3, 6, 8)}, ValueError, "same number S of positions"),
    ({"value": torch.zeros(2, 6, 7, 8)}, ValueError, "same number G of heads"),
    ({"key": torch.zeros(5, 3, 7, 4)}, ValueError, "key's batch dimensions differ"),
    (
        {"key": torch.zeros(2, 4, 7, 4), "value": torch.zeros(2, 4, 7, 8)},
        ValueError,
        "the query's heads H=6 must be a multiple of the key's G=4",
    ),
    (
        {"key": torch.zeros(2, 0, 7, 4), "value": torch.zeros(2, 0, 7, 8)},
        ValueError,
        "the query's heads H=6 must be a multiple of the key's G=0",
    ),
    (
        {"mask": torch.ones(5, 7).bool()},
        TypeError,
        r"mask must be a regard.Mask or None, but is Tensor; wrap a tensor as regard.dense\(mask\)",
    ),
    ({"mask": "causal"}, TypeError, "mask must be a regard.Mask or None, but is str"),
    ({"softcap": 0.0}, ValueError, "softcap must be above 0 and finite, but is 0.0; None"),
    ({"softcap": float("nan")}, ValueError, "softcap must be above 0 and finite, but is nan"),
    ({"softcap": float("inf")}, ValueError, "softcap must be above 0 and finite, but is inf"),
    ({"softcap": 1e39}, ValueError, r"softcap must be between 1e-38 and 1e\+38, but is 1e\+39"),
    ({"softcap": 1e-39}, ValueError, r"softcap must be between 1e-38 and 1e\+38, but is 1e-39 in"),
    ({"softcap": 10**400}, ValueError, "softcap must fit in a float, but is a larger integer"),
    ({"softcap": "x"}, TypeError, "softcap must be a number, but is str"),
    ({"scale": "x"}, TypeError, "scale must be a number, but is str"),
    ({"scale": torch.tensor(0.5)}, TypeError, r"scale must be .* Tensor; try scale.item\(\)"),
    ({"scale": float("inf")}, ValueError, "scale must be finite, but is inf"),
    ({"scale": -2e38}, ValueError, r"scale must be within ±1e\+38, but is -2e\+38 in float32"),
    ({"bias": torch.zeros(5, 6)}, ValueError, r"bias has shape \(5, 6\), which does not broadcast"),
    ({"bias": torch.ones(5, 7).bool()}, TypeError, r"bias.*torch.bool.*mask=regard.dense\(bias\)"),
    ({"bias": [[0.0]]}, TypeError, "bias must be a tensor, but is list"),
    ({"alibi": torch.zeros(5)}, ValueError, r"alibi holds one number a head: its shape \(5,\)"),
    ({"alibi": [0.5] * 6}, TypeError, "alibi must be a tensor, but is list"),
    ({"sink": torch.zeros(2, 5)}, ValueError, r"sink holds one number a head: its shape \(2, 5\)"),
    ({"sink": torch.zeros(6).long()}, TypeError, "sink must be floating point, but is torch.int64"),
]


@pytest.mark.parametrize(("changed", "kind", "message"), REFUSED)
def test_wrong_arguments_are_refused(changed, kind, message):
    for call in (regard.attention, regard.explain):
        with pytest.raises(kind, match=message):
            call(**arguments(**changed))
    if "value" in changed:
        return
    options = arguments(**changed)
    del options["value"]
    with pytest.raises(kind, match=message):
        regard.Pattern(**options)


@pytest.mark.parametrize("dropout", [-0.1, 1.5, float("nan")])
def test_dropout_is_a_probability(dropout):
    for call in (regard.attention, regard.explain):
        with pytest.raises(ValueError, match=rf"dropout must lie in \[0, 1\], but is {dropout}"):
            call(**arguments(dropout=dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_generator_must_be_torch_s(dropout):
    message = (
        r"generator must be a torch.Generator or None, but is int; "
        r"try torch.Generator\(\).manual_seed\(seed\)"
    )
    for call in (regard.attention, regard.explain):
        with pytest.raises(TypeError, match=message):
            call(**arguments(dropout=dropout, generator=3))


def test_errors_name_the_shapes():
    with pytest.raises(
        ValueError, match=r"query \(2, 6, 5, 4\), key \(2, 3, 7, 5\), value \(2, 3, 7, 8\)"
    ):
        regard.attention(**arguments(key=torch.zeros(2, 3, 7, 5)))


def test_errors_of_this_package_have_one_base():
    assert issubclass(regard.Error, Exception)
