"""Exhibits are shown as they were made: tiles are exact means, and can be flown over."""

import sys

import torch
from regard_site.gallery.exhibit import ink, read_exhibits
from regard_site.gallery.forming import run_page
from regard_site.gallery.long_map import levels


def test_tiles_are_exact_means_and_lie_where_their_weights_do():
    image = torch.rand(512, 512, generator=torch.Generator().manual_seed(0)).tril()
    tiles = {
        (level, row, column): one
        for level, row, column, one in levels(image, 7, range(6, 8), first=4)
    }
    assert set(tiles) == {(6, 2, 2), (7, 4, 4), (7, 5, 4), (7, 5, 5)}
    torch.testing.assert_close(tiles[7, 5, 4], image[256:, :256])
    means = image.reshape(256, 2, 256, 2).mean(dim=(1, 3))
    torch.testing.assert_close(tiles[6, 2, 2], means)


def test_ink_is_the_logarithm_over_five_decades():
    weights = torch.tensor([0.0, 1e-7, 1e-6, 1e-4, 1e-1, 1.0])
    torch.testing.assert_close(ink(weights), torch.tensor([0.0, 0.0, 0.0, 0.4, 1.0, 1.0]))


def test_an_exhibit_that_is_not_complete_is_left_out(gallery, tmp_path):
    assert {one.name for one in read_exhibits(gallery)} == {"long-map", "forming", "atlas"}
    (tmp_path / "begun").mkdir()
    assert read_exhibits(tmp_path) == []


def test_the_page_whose_heads_form_runs_by_what_its_folder_holds(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which its folder is added
    assert {"train", "measure"} <= run_page().keys()
