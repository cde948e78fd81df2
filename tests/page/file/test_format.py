"""Numbers as the page writes them."""


def test_a_weight_is_written_with_two_or_three_figures(node):
    figures = {0.5: "0.500", 0.0456: "0.046", 0.00234: "0.0023", 0.00098: "9.8·10⁻⁴", 1e-7: "10⁻⁷"}
    figures |= {0: "0", 1: "1", 0.9996: "0.999+"}
    texts = node({"format.js": "weight"}, "return given.map((value) => weight(value));", [*figures])
    assert texts == [*figures.values()]


def test_a_number_that_is_too_small_for_its_decimals_is_written_as_a_weight(node):
    figures = {0.5: "0.50", -0.0049: "−0.0049", 0.0002: "2·10⁻⁴", -0.0002: "−2·10⁻⁴"}
    figures |= {0: "0.00", 3e-8: "0.00", -3e-8: "0.00", 2.5e7: "2.5·10⁷"}  # a difference's rounding
    code = "return given.map((value) => signed(value, 2));"
    assert node({"format.js": "signed"}, code, [*figures]) == [*figures.values()]


def test_all_figures_of_a_number_have_its_power_of_ten(node):
    figures = {0.125: "0.125", -3.5e-9: "−3.5·10⁻⁹", 1e-7: "1·10⁻⁷", 3: "3"}
    assert node({"format.js": "full"}, "return given.map(full);", [*figures]) == [*figures.values()]
    code = "return csvRow([...given, 3.5e-9]);"  # a file keeps what programs read
    assert node({"format.js": "csvRow"}, code, [0.125]) == "0.125,3.5e-9"
