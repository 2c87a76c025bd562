"""The linear protocol: its schedule, a backbone that stays, and a classifier that learns."""

import math
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from eqco.data import Split
from eqco.data.images import FileImages, MemoryImages
from eqco.encoders import LightEncoder
from eqco.evaluation.classifier import images_hash
from eqco.evaluation.features import fingerprint
from eqco.evaluation.linear import LINEAR_PROTOCOLS, LinearProtocol, train_linear
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError

QUICK = LinearProtocol(
    learning_rate=30.0, weight_decay=0.0, epochs=5, drops=(0.6, 0.8), batch_size=20
)


class MeanColour(nn.Module):
    """Three features, which tell coloured images apart; statistics that train mode would move."""

    feature_dim = 3

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=False)

    def forward(self, images):
        return self.norm(images).mean(dim=(2, 3))


def coloured(count, name="train", seed=0):
    """Noisy images of three colours."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = torch.randint(0, 100, (count, 3, 16, 16), generator=generator)
    pixels[torch.arange(count), labels] += 120
    return Split(name, MemoryImages(pixels.to(torch.uint8)), labels, ("red", "green", "blue"))


def test_the_rate_is_the_published_one_at_every_epoch():
    moco, simclr = LINEAR_PROTOCOLS["moco"], LINEAR_PROTOCOLS["simclr"]
    assert [moco.rate(epoch * 7, 7) for epoch in (0, 59, 60, 79, 80, 99)] == pytest.approx(
        [30, 30, 3, 3, 0.3, 0.3]
    )
    assert [simclr.rate(epoch * 7, 7) for epoch in (0, 59, 60, 79, 80, 89)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    assert (moco.weight_decay, moco.epochs, moco.batch_size) == (0.0, 100, 256)
    assert (simclr.weight_decay, simclr.epochs, simclr.batch_size) == (1e-6, 90, 256)


@pytest.mark.parametrize(
    ("name", "epochs", "decay", "rates"),
    [
        ("pycontrast", 60, 0.0, {0: 30, 29: 30, 30: 6, 40: 1.2, 50: 0.24, 59: 0.24}),
        ("mocov3", 90, 0.0, {0: 0.1, 45: 0.05, 89: 0.1 * (1 + math.cos(math.pi * 89 / 90)) / 2}),
        ("mocov3-vit", 90, 0.0, {0: 3, 30: 2.25, 45: 1.5}),  # cos 60° is ½
        ("byol", 80, 0.0, {0: 0.2, 40: 0.1}),
        ("swav", 100, 1e-6, {0: 0.3, 50: 0.15}),
    ],
)
def test_the_rate_is_that_of_each_systems_own_code(name, epochs, decay, rates):
    protocol = LINEAR_PROTOCOLS[name]
    found = {epoch: protocol.rate(epoch * 7, 7) for epoch in rates}
    assert found == pytest.approx(rates)
    assert (protocol.epochs, protocol.weight_decay, protocol.batch_size) == (epochs, decay, 256)


def test_drops_keep_their_share_of_a_shorter_training():
    short = replace(LINEAR_PROTOCOLS["moco"], epochs=10)
    assert [short.rate(epoch, 1) for epoch in (5, 6, 7, 8)] == pytest.approx([30, 3, 3, 0.3])
    assert replace(short, epochs=1).rate(0, 1) == 30


def test_separable_features_are_learned_and_the_backbone_stays():
    backbone = MeanColour()
    kept = {name: value.clone() for name, value in backbone.state_dict().items()}
    done = []
    found = train_linear(
        backbone,
        coloured(60),
        coloured(30, "test", 1),
        protocol=QUICK,
        size=16,
        advance=done.append,
    )
    assert (found.scores.argmax(dim=1) == found.labels).float().mean() == 1.0
    assert found.losses[-1] < found.losses[0]
    assert found.before == found.after
    assert all(torch.equal(value, kept[name]) for name, value in backbone.state_dict().items())
    assert sum(done) == 5 * 3


def test_a_backbone_that_moves_is_found_out():
    class Moving(MeanColour):
        def train(self, mode=True):
            return super().train(True)  # eval mode is ignored, so the statistics move

    with pytest.raises(RuntimeError, match="the backbone changed from"):
        train_linear(Moving(), coloured(60), coloured(30), protocol=QUICK, size=16)


def test_a_fingerprint_tells_one_bit():
    backbone = LightEncoder()
    before = fingerprint(backbone)
    assert fingerprint(backbone) == before
    with torch.no_grad():
        weight = backbone.stem[0].weight
        weight[0, 0, 0, 0] = torch.nextafter(weight[0, 0, 0, 0], torch.tensor(1e9))
    assert fingerprint(backbone) != before


def test_a_stopped_training_ends_as_one_that_was_not_stopped(tmp_path):
    splits = coloured(60), coloured(30, "test", 1)
    whole = train_linear(MeanColour(), *splits, protocol=QUICK, size=16)

    class StopError(Exception):
        pass

    left = 3 * 3 + 1  # stops inside the fourth epoch

    def stop(count):
        nonlocal left
        left -= count
        if left < 0:
            raise StopError

    place = tmp_path / "linear.pt"
    with pytest.raises(StopError):
        train_linear(MeanColour(), *splits, protocol=QUICK, size=16, checkpoint=place, advance=stop)
    again = train_linear(MeanColour(), *splits, protocol=QUICK, size=16, checkpoint=place)
    assert torch.equal(again.scores, whole.scores)
    assert again.losses == whole.losses


def test_a_signal_inside_an_epoch_is_saved_and_the_resumed_training_ends_the_same(tmp_path):
    splits = coloured(60), coloured(30, "test", 1)
    whole = train_linear(MeanColour(), *splits, protocol=QUICK, size=16)
    place, done = tmp_path / "linear.pt", 0

    def interrupt(count):
        nonlocal done
        done += count
        if done == 5:  # the second of three steps of the second epoch
            signal.raise_signal(signal.SIGINT)

    settings = {"protocol": QUICK, "size": 16, "checkpoint": place}
    with pytest.raises(KeyboardInterrupt):
        train_linear(MeanColour(), *splits, advance=interrupt, **settings)
    assert read_checkpoint(place)["step"] == 5
    advanced = []
    again = train_linear(MeanColour(), *splits, advance=advanced.append, **settings)
    assert advanced[0] == 5
    assert torch.equal(again.scores, whole.scores)
    assert again.losses == whole.losses


def test_a_checkpoint_of_another_training_is_replaced_only_on_request(tmp_path):
    place = tmp_path / "linear.pt"

    def trained(epochs, **changes):
        protocol = replace(QUICK, epochs=epochs)
        splits = coloured(60), coloured(30, "test", 1)
        return train_linear(MeanColour(), *splits, protocol=protocol, size=16, **changes)

    trained(1, checkpoint=place)
    with pytest.raises(InputError, match=r"belongs to another linear training .* --overwrite"):
        trained(2, checkpoint=place)
    replaced = trained(2, checkpoint=place, overwrite=True)
    assert replaced.losses == trained(2).losses
    done = []
    again = trained(2, checkpoint=place, overwrite=True, advance=done.append)
    assert done == [6]  # found done: it resumes its own checkpoint
    assert torch.equal(again.scores, replaced.scores)


def test_images_are_distinguished_by_any_name_any_label_and_their_number():
    def fingerprint_of(names, labels):
        return images_hash(Split("train", FileImages(names), torch.tensor(labels), ("a", "b")))

    first = fingerprint_of(["1.png", "2.png", "3.png"], [0, 1, 0])
    assert fingerprint_of(["1.png", "2.png", "3.png"], [0, 1, 0]) == first
    others = [
        fingerprint_of(["1.png", "x.png", "3.png"], [0, 1, 0]),
        fingerprint_of(["1.png", "2.png", "3.png"], [0, 0, 0]),
        fingerprint_of(["1.png", "2.png"], [0, 1]),
        fingerprint_of(["1.png", "\udcff.png", "3.png"], [0, 1, 0]),  # a name that is no UTF-8
    ]
    assert len({first, *others}) == 5


def test_images_in_memory_are_distinguished_by_their_pixels():
    train = coloured(60)
    other = replace(train, images=MemoryImages(train.images.pixels.flip(1)))
    assert images_hash(other) != images_hash(train)


def test_a_checkpoint_of_relabelled_images_is_refused(tmp_path):
    train, test = coloured(60), coloured(30, "test", 1)
    place, protocol = tmp_path / "linear.pt", replace(QUICK, epochs=1)
    train_linear(MeanColour(), train, test, protocol=protocol, size=16, checkpoint=place)
    other = replace(train, labels=train.labels.index_fill(0, torch.tensor(30), 1))
    with pytest.raises(InputError, match="belongs to another linear training"):
        train_linear(MeanColour(), other, test, protocol=protocol, size=16, checkpoint=place)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (coloured(60), Split("test", coloured(9).images, None), "'test' has no labels"),
        (coloured(60).subset([0, 1, 3, 4] * 5), coloured(9), "no image of .blue."),
        (coloured(10), coloured(9), "batch_size=20, but there are 10 training images"),
    ],
)
def test_images_that_cannot_be_learned_from_are_refused(train, test, message):
    with pytest.raises(InputError, match=message):
        train_linear(MeanColour(), train, test, protocol=QUICK, size=16)


def test_features_that_are_not_finite_are_reported():
    class Broken(MeanColour):
        def forward(self, images):
            return super().forward(images) * float("nan")

    with pytest.raises(InputError, match="the loss is nan with learning_rate=30"):
        train_linear(Broken(), coloured(60), coloured(9), protocol=QUICK, size=16)
