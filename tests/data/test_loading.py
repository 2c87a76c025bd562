"""Batches are a function of (seed, step): not of workers, processes or where a run began."""

import itertools
from pathlib import Path

import pytest
import torch

from eqco.data import (
    EvaluationLoader,
    Split,
    StepLoader,
    ViewSpec,
    open_source,
)
from eqco.data.images import MemoryImages
from eqco.data.pipelines import LINEAR, MOCO_V2, SIMCLR
from eqco.runtime.errors import InputError


def memory_split(count: int = 23, side: int = 16) -> Split:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return Split("train", MemoryImages(pixels), torch.arange(count) % 3, ("a", "b", "c"))


def same(one, other) -> bool:
    pairs = zip((*one.views, one.index), (*other.views, other.index), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def loader_of(split, pipeline=MOCO_V2, *, num_views=2, **changes):
    settings = {"num_queries": 4, "seed": 5} | changes
    return StepLoader(split, [ViewSpec(pipeline, 16)] * num_views, **settings)


def batch_of(loader, step):
    (batch,) = loader.micro_batches(step)
    return batch


@pytest.fixture(params=["memory", "disk"])
def split(request, folder) -> Split:
    return memory_split() if request.param == "memory" else open_source(folder)["train"]


def test_a_batch_depends_on_seed_and_step_alone(split):
    loader = loader_of(split, MOCO_V2)
    again = loader_of(split, MOCO_V2)
    batches = [batch_of(loader, step) for step in range(8)]
    for step in (7, 3, 0, 5):
        assert same(batch_of(again, step), batches[step])
    assert not same(batch_of(loader_of(split, MOCO_V2, seed=6), 0), batches[0])


def test_iteration_resumes_in_the_middle_of_an_epoch(split):
    loader = loader_of(split, MOCO_V2)
    whole = [batch for (batch,) in loader.iterate(0, 7)]
    resumed = [batch for (batch,) in loader_of(split, MOCO_V2).iterate(4, 7)]
    assert len(resumed) == 3
    assert all(map(same, resumed, whole[4:]))


def test_the_number_of_processes_only_slices_the_batch(split):
    whole = batch_of(loader_of(split, MOCO_V2), 6)
    parts = [batch_of(loader_of(split, MOCO_V2, rank=rank, world_size=2), 6) for rank in range(2)]
    assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
    for number, view in enumerate(whole.views):
        assert torch.equal(torch.cat([part.views[number] for part in parts]), view)


def test_micro_batches_are_the_batch_in_parts(split):
    whole = batch_of(loader_of(split), 6)
    halves = loader_of(split, accumulation_steps=2).micro_batches(6)
    assert [len(half.index) for half in halves] == [2, 2]
    for number, view in enumerate(whole.views):
        assert torch.equal(torch.cat([half.views[number] for half in halves]), view)


def test_each_process_takes_its_share_of_each_micro_batch():
    halves = loader_of(memory_split(), accumulation_steps=2).micro_batches(6)
    for rank in range(2):
        mine = loader_of(memory_split(), accumulation_steps=2, rank=rank, world_size=2)
        for half, share in zip(halves, mine.micro_batches(6), strict=True):
            assert torch.equal(share.index, half.index[rank : rank + 1])
            assert torch.equal(share.views[0], half.views[0][rank : rank + 1])


def test_views_have_sizes_and_pipelines_of_their_own(split):
    """A view does not change with what the others are."""
    specs = [ViewSpec(MOCO_V2, 16), ViewSpec(LINEAR, 8), ViewSpec(SIMCLR, 24)]
    batch = batch_of(StepLoader(split, specs, num_queries=4, seed=5), 2)
    assert [view.shape[1:] for view in batch.views] == [(3, 16, 16), (3, 8, 8), (3, 24, 24)]
    others = [ViewSpec(SIMCLR, 12), ViewSpec(LINEAR, 8)]
    again = batch_of(StepLoader(split, others, num_queries=4, seed=5), 2)
    assert torch.equal(again.views[1], batch.views[1])


def test_the_number_of_workers_changes_nothing(folder):
    split = open_source(folder)["train"]
    alone, helped = (
        [batch for (batch,) in loader_of(split, MOCO_V2, workers=workers).iterate(2, 6)]
        for workers in (0, 2)
    )
    assert all(map(same, alone, helped))


def test_an_epoch_visits_every_image_once_but_for_the_last_incomplete_batch():
    loader = loader_of(memory_split(23), MOCO_V2)
    assert loader.steps_per_epoch == 5
    epochs = [
        torch.cat([batch_of(loader, step).index for step in range(first, first + 5)])
        for first in (0, 5)
    ]
    for epoch in epochs:
        assert len(epoch.unique()) == 20
    assert not torch.equal(*epochs)


def test_the_two_views_differ_and_show_the_image_of_their_index():
    split = memory_split()
    plain = loader_of(split, LINEAR, num_views=2)
    batch = batch_of(plain, 0)
    (first, second), index = batch.views, batch.index
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
    views = [batch_of(loader_of(each, LINEAR), 1) for each in (in_memory, on_disk)]
    assert torch.equal(views[0].index, views[1].index)
    # Pillow rounds after each direction: within one grey level and a half, over the smallest std
    assert (views[0].views[0] - views[1].views[0]).abs().max() < 1.5 / 255 / min(LINEAR.std)


@pytest.fixture
def shared_images(tmp_path: Path, save_image) -> Path:
    for number in range(8):
        save_image(tmp_path / "same" / f"{number}.png", (20, 20), seed=number)
    return tmp_path / "same"


def test_evaluation_gives_all_images_in_order(split):
    batches = list(EvaluationLoader(split, size=16, batch_size=5))
    labels = torch.cat([labels for _, labels in batches])
    assert torch.equal(labels, split.labels)
    assert sum(len(images) for images, _ in batches) == len(split)
    assert {images.shape[1:] for images, _ in batches} == {(3, 16, 16)}


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(InputError, match="num_queries=24, but the split 'train' has 23 images"):
        loader_of(memory_split(23), MOCO_V2, num_queries=24)
    with pytest.raises(InputError, match="cannot be shared by 3 processes"):
        loader_of(memory_split(23), MOCO_V2, world_size=3)


def damage(folder: Path) -> Path:
    victim = folder / "train" / "cat" / "3.png"
    victim.write_bytes(victim.read_bytes()[:100])
    return victim


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_breaks_during_training_is_named(folder, workers):
    split = open_source(folder)["train"]
    victim = damage(folder)
    loader = loader_of(split, MOCO_V2, workers=workers)
    with pytest.raises(InputError, match=f"{victim} cannot be read"):
        list(loader.iterate(0, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_replaces_such_a_file_and_lists_it_once(folder, tmp_path, workers):
    split = open_source(folder)["train"]
    victim = damage(folder)
    listed = tmp_path / "run" / "unreadable.txt"
    changes = {"on_unreadable": "skip", "unreadable_list": listed, "workers": workers}
    loader = loader_of(split, MOCO_V2, **changes)
    batches = list(loader.iterate(0, 6))
    assert all(len(batch.views[0]) == 4 for (batch,) in batches)
    assert list(loader.unreadable) == [str(victim)]
    assert listed.read_text().startswith(f"{victim}\t")
    assert len(listed.read_text().splitlines()) == 1


def test_two_processes_cover_an_epoch_without_overlap():
    loaders = [loader_of(memory_split(16), MOCO_V2, rank=rank, world_size=4) for rank in range(4)]
    seen = [
        int(i)
        for loader, step in itertools.product(loaders, range(4))
        for i in batch_of(loader, step).index
    ]
    assert sorted(seen) == list(range(16))
