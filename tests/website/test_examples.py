"""Every name of the reference has an example, and none of them is there for show."""

import doctest

from regard_site.docstrings import rooms

WITHOUT_LIBRARY = {  # where the tests run
    "regard.gpt.TensorBoard",
    "regard.integrations.inspect_ai.reading",
    "regard.integrations.lightning.MonitorCallback",
    "regard.integrations.ray.atlas_on_ray",
    "regard.integrations.tensorboard.TensorBoardWriter",
}


def examples(entry):
    """Its examples, and those of what it has, as doctest reads them."""
    sections = [section for one in (entry, *entry.members) for section in one.sections]
    texts = [str(getattr(one.value, "contents", one.value)) for one in sections]
    return [one for text in texts for one in doctest.DocTestParser().get_examples(text)]


def test_a_public_name_has_an_example_that_runs():
    entries = [entry for room in rooms() for entry in room.entries if entry.same_as is None]
    assert len(entries) > 100
    for entry in entries:
        found = examples(entry)
        assert found, f"the docstring of {entry.path} has no example; give it one, after >>>"
        run = [one.source for one in found if not one.options.get(doctest.SKIP)]
        beyond_imports = [source for source in run if not source.startswith(("import ", "from "))]
        assert bool(beyond_imports) != (entry.path in WITHOUT_LIBRARY), entry.path
