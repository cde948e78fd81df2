"""What a notebook shows of an explorer: a link, and a picture of the heads below it."""

from base64 import b64decode

import pytest
from support.notebook import Elements

from regard.page import Explorer


@pytest.mark.parametrize("name", ["recorded", "subject"])
def test_the_link_leads_to_the_page_and_the_heads_are_seen(name, request):
    explorer = Explorer(request.getfixturevalue(name))
    elements = Elements(explorer._repr_html_())
    explorer.stop()
    assert elements.actual["a"]["href"] == explorer.url
    kind, _, picture = elements.actual["img"]["src"].partition(",")
    assert kind == "data:image/png;base64"
    assert b64decode(picture).startswith(b"\x89PNG")
    assert f"ssh -N -L {explorer.port}:127.0.0.1:{explorer.port} " in elements.text
    assert "VS Code" in elements.text
