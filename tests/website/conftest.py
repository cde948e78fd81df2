"""The site, built once for the tests of this folder, without what the model computes."""

from importlib.util import find_spec

import pytest

LIBRARIES = ("griffe", "jinja2", "latex2mathml", "mdit_py_plugins")  # of the extra `site`
collect_ignore_glob = [] if all(map(find_spec, LIBRARIES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site."""
    from website.build import build

    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder
