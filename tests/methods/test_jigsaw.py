"""Jigsaws: one patch of each cell, in a drawn order, the same for any number of processes."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from eqco.methods.jigsaw import jigsaw_patches, jigsaw_view, patch_side
from eqco.runtime import processes
from eqco.runtime.errors import InputError

SIDE = 36  # cells of 12, patches of 9


def numbered(count=4, side=SIDE):
    """Views whose pixels tell image, row and column: three bands."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    images = torch.arange(count).view(count, 1, 1).expand(count, side, side)
    places = torch.stack([rows, columns]).expand(count, 2, side, side)
    return torch.cat([images[:, None], places], dim=1).float()


def test_each_patch_is_a_square_of_another_cell_of_its_own_image():
    patches = jigsaw_patches(numbered(), seed=0, step=3)
    assert patches.shape == (4, 9, 3, 9, 9)
    for n, patch_list in enumerate(patches):
        cells = set()
        for patch in patch_list:
            image, rows, columns = patch
            assert (image == n).all()
            top, left = int(rows[0, 0]), int(columns[0, 0])
            assert_close(rows, (top + torch.arange(9.0))[:, None].expand(9, 9))
            assert_close(columns, (left + torch.arange(9.0)).expand(9, 9))
            # the whole patch lies in one cell
            assert max(top % 12, left % 12) <= 3
            cells.add((top // 12, left // 12))
        assert cells == set(itertools.product(range(3), range(3)))


def test_every_place_and_every_order_is_drawn_about_as_often():
    patches = jigsaw_patches(numbered(2000), seed=0, step=0)
    tops = patches[:, :, 1, 0, 0].long()
    share = torch.bincount(tops.flatten() % 12, minlength=4) / tops.numel()
    assert_close(share, torch.full((4,), 0.25), rtol=0, atol=0.02)
    cells = tops // 12 * 3 + patches[:, :, 2, 0, 0].long() // 12
    for place in range(9):
        share = torch.bincount(cells[:, place], minlength=9) / len(cells)
        assert_close(share, torch.full((9,), 1 / 9), rtol=0, atol=0.03)


def test_draws_are_a_function_of_seed_and_step():
    first, again, other = (jigsaw_patches(numbered(), seed=1, step=step) for step in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_process_cuts_its_part_as_one_process_would(monkeypatch):
    views = numbered()
    whole = jigsaw_patches(views, seed=1, step=4)
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    for rank, rows in enumerate((slice(0, 2), slice(2, 4))):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        assert torch.equal(jigsaw_patches(views[rows], seed=1, step=4), whole[rows])


def test_the_published_sizes():
    assert jigsaw_view("jigsaw", 224).size == 255
    assert patch_side(255) == 64


def test_the_smallest_image_is_the_smallest_whose_patches_are_large_enough():
    assert patch_side(jigsaw_view("jigsaw", 12).size) == 4
    refusal = (
        r"data.image_size=11, .*patches would have 3 pixels .*need 4\. .*image-size 12 or more"
    )
    with pytest.raises(InputError, match=refusal):
        jigsaw_view("jigsaw", 11)


@pytest.mark.parametrize("side", [(35, 35), (36, 39)])
def test_views_that_have_no_cells_are_refused(side):
    with pytest.raises(InputError, match=r"squares whose side is a multiple of 3"):
        jigsaw_patches(torch.zeros(2, 3, *side), seed=0, step=0)
