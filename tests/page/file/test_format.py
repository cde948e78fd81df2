"""Numbers as the page writes them."""


def test_a_weight_is_written_with_two_or_three_figures(node):
    figures = {0.5: "0.500", 0.0456: "0.046", 0.00234: "0.0023", 0.00098: "9.8·10⁻⁴", 1e-7: "10⁻⁷"}
    figures |= {0: "0", 1: "1", 0.9996: "0.999+"}
    texts = node({"format.js": "weight"}, "return given.map(weight);", [*figures])
    assert texts == [*figures.values()]
