"""What a training ends with: validation images alone, and baselines that mean something."""

import math
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

from eqco.assembly import parts
from eqco.assembly.assessment import (
    AssessedRow,
    Assessment,
    Undecided,
    assess,
    images_needed,
    is_clear,
    is_clearly_above,
)
from eqco.assembly.parts import validation_splits
from eqco.assembly.weights import pixels
from eqco.data import Source, Split
from eqco.data.images import MemoryImages
from eqco.encoders import ColourHistogram
from eqco.evaluation.scores import share_interval


def made_up(count, seed=0):
    """Images whose class is a colour, so that a histogram tells it and places do not."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 60, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    images[labels == 1] += 180
    return images, labels


def split(name, count, seed):
    images, labels = made_up(count, seed)
    return Split(name, MemoryImages(images), labels, ("dark", "light"))


def test_test_images_are_never_touched():
    source = Source(
        "made up", {name: split(name, 40, n) for n, name in enumerate(("train", "test"))}
    )
    train, val = validation_splits(source)
    assert (len(train), len(val)) == (36, 4)
    both = torch.cat([train.images.pixels, val.images.pixels])
    assert both.sum() == source["train"].images.pixels.sum()
    source = Source("made up", {**source.splits, "val": split("val", 10, 5)})
    assert validation_splits(source) == (source["train"], source["val"])


def test_without_labels_there_is_nothing_to_ask():
    bare = Split("train", MemoryImages(made_up(8)[0]), None)
    assert validation_splits(Source("bare", {"train": bare})) is None


def test_validation_images_without_labels_are_replaced_by_a_part_of_train():
    bare = Split("val", MemoryImages(made_up(8)[0]), None)
    source = Source("made up", {"train": split("train", 40, 0), "val": bare})
    assert [len(each) for each in validation_splits(source)] == [36, 4]


def test_a_probe_during_training_takes_a_part_of_many_images(monkeypatch):
    monkeypatch.setattr(parts, "PROBED", (9, 4))
    source = Source("made up", {"train": split("train", 36, 0), "val": split("val", 4, 1)})
    train, val = parts.probed_splits(source)
    assert (len(train), val) == (9, source["val"])
    assert_close(train.images.pixels, source["train"].images.pixels[::4])


def test_pixels_beside_colours():
    source = Source("made up", {"train": split("train", 60, 0), "val": split("val", 20, 1)})
    found = assess(pixels(8), source)
    rows = {row.name: row for row in found.rows}
    assert rows["colour histogram"].knn.value == 1
    assert ("colour histogram", "knn") in found.not_beaten  # nothing is clearly above 100 %


def test_a_histogram_by_hand():
    """Half black, half white: two colours of 512, √½ each."""
    images = torch.zeros(1, 3, 2, 2)
    images[..., 1] = 1
    histogram = ColourHistogram((0.0,) * 3, (1.0,) * 3)(images)[0]
    assert histogram.shape == (512,)
    assert_close(histogram[[0, 511]], torch.full((2,), 0.5).sqrt())
    assert_close(histogram.square().sum(), torch.tensor(1.0))
    grey = ColourHistogram((0.5,), (0.5,))(images[:, :1] * 2 - 1)[0]
    assert_close(grey[[0, 31]], torch.full((2,), 0.5).sqrt())


def test_clearly_above_is_a_matter_of_the_same_images():
    """7 of 100 images differ, all in favour: a chance of 1/128, which two intervals would hide."""
    theirs = torch.arange(100) < 50
    assert is_clearly_above(torch.arange(100) < 57, theirs)
    assert not is_clearly_above(torch.arange(100) < 51, theirs)


@pytest.mark.parametrize(("better", "worse"), [(5, 0), (6, 0), (8, 1), (9, 1), (2000, 1870)])
def test_clearly_above_is_the_exact_sign_test(better, worse):
    count = better + worse
    chance = sum(math.comb(count, k) for k in range(better, count + 1)) / 2**count
    ours = torch.arange(count) < better
    assert is_clearly_above(ours, ~ours) == (chance <= 0.025)


def test_of_two_images_nothing_is_clear():
    right = torch.ones(2, dtype=torch.bool)
    assert not is_clearly_above(right, ~right)


def assessment(theirs, ours):
    """Of raw pixels and an encoder, from which images each of them is right on."""
    rows = []
    for name, right in (("raw pixels", theirs), ("this encoder", ours)):
        share = share_interval(int(right.sum()), len(right))
        rows.append(
            AssessedRow(name=name, knn=share, probe=share, knn_hits=right, probe_hits=right)
        )
    val = split("val", len(theirs), 0)
    return Assessment(rows=tuple(rows), train=val, val=val, train_features=None, val_features=None)


@pytest.mark.parametrize(
    ("count", "theirs", "ours", "images"),
    [
        (5, 0, 5, 6),  # a chance of 1/32, with two sides 1/16
        (6, 0, 6, None),
        (40, 35, 40, 48),  # nobody can be ahead by more than 5
        (40, 36, 20, None),  # behind, and clearly
        (40, 34, 34, None),  # 40 would be clear, and this one is not ahead
        (100, 96, 100, 150),
        (500, 495, 500, 600),
        (500, 494, 499, None),
    ],
)
def test_undecided_is_what_not_even_the_best_encoder_could_win(count, theirs, ours, images):
    """And as many images are needed as give the best encoder 6 that the baseline has wrong."""
    numbers = torch.arange(count)
    found = assessment(numbers < theirs, numbers < ours)
    pairs = (("raw pixels", "knn"), ("raw pixels", "probe"))
    expected = [Undecided(pair=pair, winnable=False, images=images) for pair in pairs]
    assert found.undecided == (() if images is None else tuple(expected))
    assert {each.pair for each in found.undecided} <= set(found.not_beaten)


def test_no_number_of_images_decides_against_a_baseline_that_is_right_on_all():
    right = torch.ones(300, dtype=torch.bool)
    assert [each.images for each in assessment(right, right).undecided] == [None, None]


@pytest.mark.parametrize(
    ("count", "better", "worse", "images"),
    [
        (10, 5, 0, 12),  # 6 : 0
        (20, 8, 3, 50),  # 20 : 8, with a chance of 1.8 %
        (20, 5, 0, 24),
        (99, 8, 3, 248),  # 20 : 8
        (100, 8, 3, None),  # enough images: the lead is small
        (20, 4, 4, None),
        (20, 3, 8, None),
        (20, 6, 0, None),  # clear
    ],
)
def test_undecided_is_also_a_lead_among_few_images_that_may_be_chance(count, better, worse, images):
    ours = torch.arange(count) < better
    theirs = (torch.arange(count) >= better) & (torch.arange(count) < better + worse)
    found = assessment(theirs, ours).undecided
    assert [each.images for each in found] == ([] if images is None else [images] * 2)
    assert all(each.winnable for each in found)


@pytest.mark.parametrize(("better", "worse", "count"), [(50, 49, 99), (1, 0, 99), (8, 3, 20)])
def test_as_many_images_as_are_needed_are_clear_and_three_quarters_are_not(better, worse, count):
    share = Fraction(images_needed(better, worse, count), count)
    assert is_clear(math.floor(better * share), math.ceil(worse * share))
    share *= Fraction(3, 4)
    assert not is_clear(math.floor(better * share), math.ceil(worse * share))
