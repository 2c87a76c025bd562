"""Fine-tuning: the share of labels, the layers that are kept, and resumption to the bit."""

import re
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from eqco.data import Split
from eqco.data.images import MemoryImages
from eqco.encoders import Encoder, linear_head, mlp_head, normalised_head
from eqco.encoders.colours import HeadPair
from eqco.evaluation.features import fingerprint
from eqco.evaluation.finetuning import (
    FineTuning,
    choose_tuning_precision,
    fine_tune,
    first_layers,
    labelled_share,
)
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError

CPU = torch.device("cpu")
QUICK = FineTuning(epochs=4, batch_size=20, learning_rate=0.5)


class Backbone(nn.Module):
    """Draws by itself and keeps statistics, so that resumption has something to lose."""

    feature_dim = 6

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 6), nn.BatchNorm1d(6), nn.ReLU()
        )
        self.dropout = nn.Dropout(0.2)

    def forward(self, images):
        return self.dropout(self.layers(images))


class ToOnePixel(nn.Sequential):
    """Its last convolution sees a single pixel of an image of 16, and four of one of 32."""

    feature_dim = 8

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 16, stride=16),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.Flatten(),
        )


def coloured(count, name="train", seed=0):
    """Noisy images of three colours."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = torch.randint(0, 100, (count, 3, 16, 16), generator=generator)
    pixels[torch.arange(count), labels] += 120
    return Split(name, MemoryImages(pixels.to(torch.uint8)), labels, ("red", "green", "blue"))


def encoder(head=normalised_head):
    torch.manual_seed(0)
    return Encoder(Backbone(), head(6, 4))


SPLITS = coloured(60), coloured(30, "test", 1)


def test_all_weights_are_trained_and_the_given_ones_stay():
    given, done = encoder(), []
    before = fingerprint(given)
    found = fine_tune(given, *SPLITS, protocol=QUICK, size=16, advance=done.append)
    assert (found.scores.argmax(dim=1) == found.labels).float().mean() > 0.9
    assert found.losses[-1] < found.losses[0]
    assert fingerprint(given) == before
    assert (sum(done), found.num_labelled, len(found.losses)) == (4 * 3, 60, 4)
    moved = zip(given.backbone.parameters(), found.encoder.backbone.parameters(), strict=True)
    assert all(not torch.equal(*pair) for pair in moved)
    assert not found.encoder.training


def test_where_torch_leaves_a_gradient_unset_bfloat16_is_not_chosen_and_refused(monkeypatch):
    monkeypatch.setattr("eqco.encoders.precision.has_native_bfloat16", lambda device: True)
    own = ToOnePixel()
    assert choose_tuning_precision("auto", own, 32, CPU) == "bfloat16"
    assert choose_tuning_precision("auto", own, 16, CPU) == "float32"
    assert choose_tuning_precision("float32", own, 16, CPU) == "float32"
    assert choose_tuning_precision("bfloat16", own, 16, torch.device("cuda")) == "bfloat16"
    message = r"16 pixels the convolution '1' of ToOnePixel sees .* Give --precision float32"
    with pytest.raises(InputError, match=message):
        fine_tune(
            Encoder(own, normalised_head(8, 4)),
            *SPLITS,
            protocol=QUICK,
            size=16,
            precision="bfloat16",
        )


def test_killed_and_run_again_it_ends_as_if_never_stopped(tmp_path):
    whole = fine_tune(encoder(), *SPLITS, protocol=QUICK, size=16)
    place, done = tmp_path / "finetune.pt", 0

    def interrupt(count):
        nonlocal done
        done += count
        if done == 5:  # the second of three steps of the second epoch
            signal.raise_signal(signal.SIGINT)

    settings = {"protocol": QUICK, "size": 16, "checkpoint": place}
    with pytest.raises(KeyboardInterrupt):
        fine_tune(encoder(), *SPLITS, advance=interrupt, **settings)
    assert read_checkpoint(place)["step"] == 5
    torch.manual_seed(99)  # what the process draws besides must not matter
    again = fine_tune(encoder(), *SPLITS, **settings)
    assert torch.equal(again.scores, whole.scores)
    assert again.losses == whole.losses
    assert fingerprint(again.encoder) == fingerprint(whole.encoder)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    place, short = tmp_path / "finetune.pt", replace(QUICK, epochs=1)
    fine_tune(encoder(), *SPLITS, protocol=short, size=16, checkpoint=place)
    other = replace(short, label_share=0.5)
    with pytest.raises(InputError, match=r"belongs to another fine-tuning .* --overwrite"):
        fine_tune(encoder(), *SPLITS, protocol=other, size=16, checkpoint=place)


def test_the_share_is_of_each_class_seeded_and_nested():
    train = coloured(300)
    small, large = (labelled_share(train, share, seed=3) for share in (0.05, 0.1))
    assert small.labels.bincount().tolist() == [5, 5, 5]
    assert large.labels.bincount().tolist() == [10, 10, 10]

    def pixels(split):
        return {bytes(image.numpy().tobytes()) for image in split.images.pixels}

    assert pixels(small) < pixels(large) < pixels(train)
    assert pixels(labelled_share(train, 0.05, seed=3)) == pixels(small)
    assert pixels(labelled_share(train, 0.05, seed=4)) != pixels(small)
    assert labelled_share(train, 1.0, seed=3) is train


def test_a_class_without_a_label_is_refused_by_name():
    train = coloured(300).subset([*range(0, 300, 3), 1, 4, 7, *range(2, 300, 3)])
    with pytest.raises(InputError, match=r"--labels 0.1 of the 3 .* 'green' is none. .* 0.17"):
        labelled_share(train, 0.1, seed=0)
    assert labelled_share(train, 0.17, seed=0).labels.bincount().tolist() == [17, 1, 17]


def named_share(train):
    """What is to be given at least, by the refusal of a share that is none of any class."""
    with pytest.raises(InputError, match="is none") as refused:
        labelled_share(train, 1e-9, seed=0)
    return float(re.search(r"at least (\S+)\.$", str(refused.value))[1])


def test_the_share_that_a_refusal_names_is_accepted_and_hardly_more_than_needed():
    for count in range(2, 301):
        images = MemoryImages(torch.zeros(count, 3, 1, 1, dtype=torch.uint8))
        train = Split("train", images, torch.zeros(count, dtype=torch.int64), ("few",))
        share = named_share(train)
        assert len(labelled_share(train, share, seed=0)) == 1
        assert 0.5 / count <= share < 1.1 * 0.5 / count


def test_a_refused_share_names_what_is_enough_for_the_smallest_class():
    train = coloured(300).subset([*range(0, 300, 3), *range(1, 22, 3), 2, 5, 8])
    assert train.labels.bincount().tolist() == [100, 7, 3]
    with pytest.raises(InputError, match=r"--labels 0.05 of the 3 .* 'blue' is none. .* 0.17"):
        labelled_share(train, 0.05, seed=0)
    enough = labelled_share(train, named_share(train), seed=0)
    assert enough.labels.bincount().tolist() == [17, 1, 1]


def test_the_first_layers_of_a_head_are_kept_with_what_follows_them():
    found = fine_tune(encoder(), *SPLITS, protocol=replace(QUICK, epochs=1, head_layers=1), size=16)
    kinds = [type(layer) for layer in found.encoder.head]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert not torch.equal(found.encoder.head[0].weight, encoder().head[0].weight)
    assert list(first_layers(normalised_head(6, 4), 0)) == []
    with pytest.raises(InputError, match=r"--head-layers 2, but this head has 2 .* Give 0 to 1"):
        first_layers(mlp_head(6, 4), 2)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (linear_head(6, 4), r"has 1 linear layer, of which the last .*\. Leave --head-layers out"),
        (nn.Identity(), r"has 0 linear layers\. Leave --head-layers out"),
        (
            HeadPair((mlp_head(6, 4), mlp_head(6, 4)), (6, 6)),
            r"is two side by side, for luminance and for colour, .*\. Leave --head-layers out",
        ),
    ],
)
def test_a_head_without_layers_to_keep_is_told_apart(head, message):
    with pytest.raises(InputError, match=f"--head-layers 1, but this head {message}"):
        first_layers(head, 1)
    assert list(first_layers(head, 0)) == []


def test_epochs_batches_and_rate_follow_the_labels():
    settled = FineTuning(label_share=0.01).settled(40)
    assert (settled.epochs, settled.batch_size) == (60, 40)
    assert settled.rate(0, 1) == pytest.approx(0.05 * 40 / 256)
    assert settled.rate(30, 1) == pytest.approx(settled.rate(0, 1) / 2)
    assert FineTuning().settled(1000).batch_size == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_share": 0.0}, "--labels 0; the share of labels is more than 0 and at most 1"),
        ({"label_share": 10.0}, "--labels 10; .* such as 0.01"),
        ({"epochs": 0}, "epochs=0; train for at least 1"),
        ({"batch_size": 1}, "batch_size=1; batch norm needs at least 2"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        FineTuning(**changes)
