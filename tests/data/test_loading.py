"""Batches are a function of (seed, step): not of workers, processes or where a run began."""

import itertools
from pathlib import Path

import pytest
import torch

from eqco.data import (
    EvaluationLoader,
    LabelledLoader,
    Split,
    StepLoader,
    TwoViewLoader,
    open_source,
)
from eqco.data.images import MemoryImages
from eqco.data.pipelines import LINEAR, MOCO_V2
from eqco.runtime.errors import InputError


def memory_split(count: int = 23, side: int = 16) -> Split:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return Split("train", MemoryImages(pixels), torch.arange(count) % 3, ("a", "b", "c"))


def same(one, other) -> bool:
    fields = ("first", "second", "index")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def settings(**changes):
    return {"num_queries": 4, "size": 16, "seed": 5} | changes


@pytest.fixture(params=["memory", "disk"])
def split(request, folder) -> Split:
    return memory_split() if request.param == "memory" else open_source(folder)["train"]


def test_a_batch_depends_on_seed_and_step_alone(split):
    loader = TwoViewLoader(split, MOCO_V2, **settings())
    again = TwoViewLoader(split, MOCO_V2, **settings())
    batches = [loader.batch(step) for step in range(8)]
    for step in (7, 3, 0, 5):
        assert same(again.batch(step), batches[step])
    assert not same(TwoViewLoader(split, MOCO_V2, **settings(seed=6)).batch(0), batches[0])


def test_iteration_resumes_in_the_middle_of_an_epoch(split):
    loader = TwoViewLoader(split, MOCO_V2, **settings())
    whole = list(loader.iterate(0, 7))
    resumed = list(TwoViewLoader(split, MOCO_V2, **settings()).iterate(4, 7))
    assert len(resumed) == 3
    assert all(map(same, resumed, whole[4:]))


def test_the_number_of_processes_only_slices_the_batch(split):
    whole = TwoViewLoader(split, MOCO_V2, **settings()).batch(6)
    parts = [
        TwoViewLoader(split, MOCO_V2, **settings(rank=rank, world_size=2)).batch(6)
        for rank in range(2)
    ]
    for name in ("first", "second", "index"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole, name))


def test_the_number_of_workers_changes_nothing(folder):
    split = open_source(folder)["train"]
    alone = list(TwoViewLoader(split, MOCO_V2, **settings()).iterate(2, 6))
    helped = list(TwoViewLoader(split, MOCO_V2, **settings(workers=2)).iterate(2, 6))
    assert all(map(same, alone, helped))


def test_an_epoch_visits_every_image_once_but_for_the_last_incomplete_batch():
    loader = TwoViewLoader(memory_split(23), MOCO_V2, **settings())
    assert loader.steps_per_epoch == 5
    epochs = [
        torch.cat([loader.batch(step).index for step in range(first, first + 5)])
        for first in (0, 5)
    ]
    for epoch in epochs:
        assert len(epoch.unique()) == 20
    assert not torch.equal(*epochs)


def test_the_two_views_differ_and_show_the_image_of_their_index():
    split = memory_split()
    plain = StepLoader(split, LINEAR, num_views=2, **settings())
    (first, second), index = plain.batch(0)
    assert not torch.equal(first, second)
    mean = split.images.pixels[index].float().mean((1, 2, 3))
    scale = torch.tensor(LINEAR.std)[:, None, None]
    shown = ((first * scale) + torch.tensor(LINEAR.mean)[:, None, None]).mean((1, 2, 3)) * 255
    assert (shown - mean).abs().max() < 40


def test_images_on_disk_and_in_memory_give_the_same_views_to_a_grey_level(shared_images):
    in_memory = open_source(shared_images)["train"]
    on_disk = open_source(shared_images, memory_gib=0)["train"]
    assert in_memory.size == (20, 20)
    assert on_disk.size is None
    views = [TwoViewLoader(each, LINEAR, **settings()).batch(1) for each in (in_memory, on_disk)]
    assert torch.equal(views[0].index, views[1].index)
    # Pillow rounds after each direction: within one grey level and a half, over the smallest std
    assert (views[0].first - views[1].first).abs().max() < 1.5 / 255 / min(LINEAR.std)


@pytest.fixture
def shared_images(tmp_path: Path, save_image) -> Path:
    for number in range(8):
        save_image(tmp_path / "same" / f"{number}.png", (20, 20), seed=number)
    return tmp_path / "same"


def test_labels_come_with_their_images():
    split = memory_split()
    loader = LabelledLoader(StepLoader(split, LINEAR, num_views=1, **settings()))
    numbers = loader.steps.batch(0)[1]
    images, labels = next(loader.iterate(0))
    assert images.shape == (4, 3, 16, 16)
    assert torch.equal(labels, split.labels[numbers])


def test_evaluation_gives_all_images_in_order(split):
    batches = list(EvaluationLoader(split, size=16, batch_size=5))
    labels = torch.cat([labels for _, labels in batches])
    assert torch.equal(labels, split.labels)
    assert sum(len(images) for images, _ in batches) == len(split)
    assert {images.shape[1:] for images, _ in batches} == {(3, 16, 16)}


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(InputError, match="num_queries=24, but the split 'train' has 23 images"):
        TwoViewLoader(memory_split(23), MOCO_V2, **settings(num_queries=24))
    with pytest.raises(InputError, match="cannot be shared by 3 processes"):
        TwoViewLoader(memory_split(23), MOCO_V2, **settings(world_size=3))


def damage(folder: Path) -> Path:
    victim = folder / "train" / "cat" / "3.png"
    victim.write_bytes(victim.read_bytes()[:100])
    return victim


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_breaks_during_training_is_named(folder, workers):
    split = open_source(folder)["train"]
    victim = damage(folder)
    loader = TwoViewLoader(split, MOCO_V2, **settings(workers=workers))
    with pytest.raises(InputError, match=f"{victim} cannot be read"):
        list(loader.iterate(0, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_replaces_such_a_file_and_lists_it_once(folder, tmp_path, workers):
    split = open_source(folder)["train"]
    victim = damage(folder)
    listed = tmp_path / "run" / "unreadable.txt"
    changes = {"on_unreadable": "skip", "unreadable_list": listed, "workers": workers}
    loader = TwoViewLoader(split, MOCO_V2, **settings(**changes))
    batches = list(loader.iterate(0, 6))
    assert all(len(views.first) == 4 for views in batches)
    assert list(loader.unreadable) == [str(victim)]
    assert listed.read_text().startswith(f"{victim}\t")
    assert len(listed.read_text().splitlines()) == 1


def test_two_processes_cover_an_epoch_without_overlap():
    loaders = [
        TwoViewLoader(memory_split(16), MOCO_V2, **settings(rank=rank, world_size=4))
        for rank in range(4)
    ]
    seen = [
        int(i)
        for loader, step in itertools.product(loaders, range(4))
        for i in loader.batch(step).index
    ]
    assert sorted(seen) == list(range(16))
