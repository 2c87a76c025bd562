"""CPC v2 beside its published pseudo-code, patch by patch; and what EqCo adds to it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from eqco.assembly import build_components, load, train
from eqco.contrast import Objective
from eqco.data import Batch, DataSettings, source_from_dataset
from eqco.encoders import Encoder, backbone_named, linear_head
from eqco.encoders.layer_norm import layer_norm
from eqco.methods import CPCSettings, MethodParts
from eqco.methods.cpc import cut_patches, kept_bands, patch_places
from eqco.recipes import ObjectiveSettings, TrainingSettings, named_recipe
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.alarms import Alarms
from eqco.training.display import summary
from eqco.training.loop import diagnose_step

N, D, GRID = 2, 5, 3
PLAIN = CPCSettings(grid=GRID, patch_share=1 / 3, colour_drop=False)


class Backbone(nn.Module):
    feature_dim = 7

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 7, 2), nn.BatchNorm2d(7), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, images):
        return self.layers(images)


def built(settings, objective):
    torch.manual_seed(0)
    encoder = layer_norm(Encoder(Backbone(), linear_head(7, D))).double()
    parts = MethodParts(
        make_encoder=lambda number=0: encoder, objective=objective, total_steps=1, seed=0
    )
    return settings.build(parts).double().train()


def some_batch():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(N, 3, 9, 9, dtype=torch.float64, generator=generator)
    return Batch((images,), torch.arange(N))


def context_by_loops(network, grid):
    """The context network at one place after the other: grid[r][c] is a vector."""
    places = [(r, c) for r in range(GRID) for c in range(GRID)]
    for block in network.blocks:
        narrow, _, wide, _, down, _, back = block
        first = {
            (r, c): F.relu(narrow.weight[:, :, 0, 0] @ grid[r][c] + narrow.bias) for r, c in places
        }
        second = {}
        for r, c in places:
            second[r, c] = wide.bias
            for shift in (-1, 0, 1):
                if 0 <= c + shift < GRID:
                    weight = wide.weight[:, :, 0, shift + 1]
                    second[r, c] = second[r, c] + weight @ first[r, c + shift]
        third = {}
        for r, c in places:
            third[r, c] = down.bias + down.weight[:, :, 1, 0] @ second[r, c]
            if r > 0:  # above the first row there is nothing
                third[r, c] = third[r, c] + down.weight[:, :, 0, 0] @ second[r - 1, c]
        grid = [
            [
                grid[r][c] + back.weight[:, :, 0, 0] @ F.relu(third[r, c]) + back.bias
                for c in range(GRID)
            ]
            for r in range(GRID)
        ]
    return [[F.relu(grid[r][c]) for c in range(GRID)] for r in range(GRID)]


def turned(grid):
    """The grid turned to the left by a quarter."""
    return [[grid[c][GRID - 1 - r] for c in range(GRID)] for r in range(GRID)]


def published_objective(method, images, loss_of, drawn=None):
    """The sum over directions and offsets of the mean over predictions of `loss_of`.

    `loss_of(prediction, target, others)` gets the other patches' targets with whether each is of
    another image. Patches of 3 pixels at every third; from one row on they do not overlap. `drawn`
    has the numbers of the patches that each prediction has as negatives, contrast by contrast;
    None: all.
    """
    features, targets = [], []
    for image in images:
        rows = []
        for r in range(GRID):
            row = []
            for c in range(GRID):
                patch = image[:, 3 * r : 3 * r + 3, 3 * c : 3 * c + 3]
                row.append(method.encoder.backbone(patch[None])[0])
            rows.append(row)
        features.append(rows)
        head = method.encoder.head
        targets.append([[head.weight @ each + head.bias for each in row] for row in rows])
    places = [(r, c) for r in range(GRID) for c in range(GRID)]
    # patches are numbered row by row, image after image
    numbers = [
        [[GRID**2 * n + GRID * r + c for c in range(GRID)] for r in range(GRID)]
        for n in range(len(images))
    ]
    total, contrasts = 0.0, iter(drawn or ())
    grids, goals = features, targets
    for direction in range(len(method.contexts)):
        contexts = [context_by_loops(method.contexts[direction], grid) for grid in grids]
        for number, offset in enumerate((1, 2)):
            predictor = method.predictors[direction][number]
            rows = iter(next(contrasts)) if drawn else None
            losses = []
            for n in range(len(images)):
                for r in range(GRID - offset):
                    for c in range(GRID):
                        weight = predictor.weight[:, :, 0, 0]
                        prediction = weight @ contexts[n][r][c] + predictor.bias
                        target = goals[n][r + offset][c]
                        wanted = None if rows is None else next(rows).tolist()
                        others = [
                            (goals[m][s][d], m != n)
                            for m in range(len(images))
                            for s, d in places
                            if (m, s, d) != (n, r + offset, c)
                            and (wanted is None or numbers[m][s][d] in wanted)
                        ]
                        assert wanted is None or len(others) == len(wanted)
                        losses.append(loss_of(prediction, target, others))
            total = total + sum(losses) / len(losses)
        grids, goals, numbers = (
            [turned(grid) for grid in each] for each in (grids, goals, numbers)
        )
    return total


def softmax_of_a_tenth(prediction, target, others):
    """The published loss: cross-entropy over all patches of dot products times 0.1."""
    logits = torch.stack([prediction @ key for key in (target, *(key for key, _ in others))])
    return torch.logsumexp(0.1 * logits, 0) - 0.1 * logits[0]


def eqco_loss(prediction, target, others):
    """Eq. 5 over patches of other images: α = 500, τ = 0.3."""
    keys = [key for key, is_other_image in others if is_other_image]
    own, *rest = (F.cosine_similarity(prediction, key, dim=0) / 0.3 for key in (target, *keys))
    negative = sum(each.exp() for each in rest) * 500 / len(keys)
    return -(own.exp() / (own.exp() + negative)).log()


@pytest.mark.parametrize(
    ("settings", "objective", "loss_of"),
    [
        (
            replace(PLAIN, four_directions=False),
            Objective(temperature=10, similarity="dot"),
            softmax_of_a_tenth,
        ),
        (
            replace(PLAIN, other_images_only=True),
            Objective(temperature=0.3, alpha=500),
            eqco_loss,
        ),
        (
            replace(PLAIN, other_images_only=True, count=4),
            Objective(temperature=0.3, alpha=500),
            eqco_loss,
        ),
    ],
    ids=["published", "EqCo", "EqCo, some drawn"],
)
def test_the_loss_is_the_published_one_in_value_and_gradient(settings, objective, loss_of):
    method, batch = built(settings, objective), some_batch()
    parameters = list(method.parameters())
    output = method(batch, step=0)
    ours, drawn = output.loss, [each.negatives.indices for each in output.contrasts]
    drawn = drawn if settings.count is not None else None
    published = published_objective(method, batch.views[0], loss_of, drawn)
    assert_close(ours, published, rtol=1e-11, atol=1e-11)
    for mine, theirs in zip(
        torch.autograd.grad(ours, parameters),
        torch.autograd.grad(published, parameters),
        strict=True,
    ):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


SAMPLED = replace(PLAIN, other_images_only=True, count=7)


def drawn_by(settings, step=0, seed=0, num_images=5):
    """The numbers of the patches that each query has as negatives, contrast by contrast."""
    method = built(settings, Objective(temperature=0.3, alpha=500))
    method.seed = seed
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(num_images, 3, 9, 9, dtype=torch.float64, generator=generator)
    output = method(Batch((images,), torch.arange(num_images)), step)
    return [contrast.negatives.indices for contrast in output.contrasts]


def test_drawn_negatives_are_distinct_patches_of_other_images():
    for drawn, per_image in zip(drawn_by(SAMPLED), SAMPLED.contrast_queries, strict=True):
        assert drawn.shape == (5 * per_image, 7)
        own = torch.arange(5).repeat_interleave(per_image)[:, None]
        assert not (drawn // GRID**2 == own).any()
        assert drawn.min() >= 0
        assert drawn.max() < 5 * GRID**2
        assert all(len(set(row)) == 7 for row in drawn.tolist())


def test_each_prediction_of_each_step_has_a_draw_of_its_own_that_can_be_made_again():
    first = drawn_by(SAMPLED, step=3)
    again = drawn_by(SAMPLED, step=3)
    assert all(map(torch.equal, first, again))
    # offsets 1 and 2 have 6 and 3 queries of each image: every second contrast is of one shape
    others = [*first[2:], *drawn_by(SAMPLED, step=4), *drawn_by(SAMPLED, step=3, seed=1)]
    for drawn in others:
        assert not torch.equal(drawn[:15], first[0][:15])
    assert len(set(map(tuple, first[0].tolist()))) == len(first[0])


def test_a_draw_of_all_negatives_of_other_images_is_no_draw():
    losses = []
    for count in (None, GRID**2):
        settings = replace(PLAIN, other_images_only=True, count=count)
        method = built(settings, Objective(temperature=0.3, alpha=500))
        output = method(some_batch(), step=0)
        pools = [contrast.negatives for contrast in output.contrasts]
        assert all(pool.indices is None and pool.mask is None for pool in pools)
        losses.append(output.loss)
    assert torch.equal(*losses)


def test_the_published_geometry():
    """Six by six patches of 80 pixels every 36, and the three rows that do not overlap."""
    published = CPCSettings()
    assert published.patch_size(260) == 80
    assert patch_places(260, 6, 80) == [0, 36, 72, 108, 144, 180]
    assert list(published.offsets) == [3, 4, 5]
    assert published.queries_per_image == 4 * (3 + 2 + 1) * 6
    assert published.num_negatives(256) == 256 * 36 - 1
    assert replace(published, other_images_only=True).num_negatives(256) == 255 * 36
    few = replace(published, other_images_only=True, count=16)
    assert (few.num_negatives(256), few.num_batch_negatives(256)) == (16, 255 * 36)
    for side in (32, 96, 224):
        size = published.patch_size(side)
        places = patch_places(side, 6, size)
        assert places[-1] + size == side
        assert places[3] - places[0] >= size > places[2] - places[0]


def test_patches_are_cut_row_by_row():
    images = torch.arange(2 * 16.0).view(2, 1, 4, 4)
    patches = cut_patches(images, [0, 2], 2)
    assert patches.shape == (8, 1, 2, 2)
    assert patches[:, 0, 0, 0].tolist() == [0, 2, 8, 10, 16, 18, 24, 26]


def test_each_patch_keeps_one_band_drawn_from_the_step():
    kept = kept_bands(600, 3, seed=0, step=4)
    assert torch.equal(kept.sum(dim=1), torch.ones(600, 1, 1, dtype=torch.long))
    assert kept.sum(dim=0).flatten().min() > 150
    assert torch.equal(kept, kept_bands(600, 3, seed=0, step=4))
    assert not torch.equal(kept, kept_bands(600, 3, seed=0, step=5))


def test_the_context_does_not_look_down():
    """A change in a row leaves the context of all rows above as it was."""
    network = built(PLAIN, Objective(temperature=0.2)).contexts[0]
    places = torch.randn(1, 7, GRID, GRID, dtype=torch.float64)
    changed = places.clone()
    changed[:, :, 2] += 1
    before, after = network(places), network(changed)
    assert torch.equal(before[:, :, :2], after[:, :, :2])
    assert not torch.allclose(before[:, :, 2:], after[:, :, 2:])


@pytest.mark.parametrize("name", ["light-ln", "resnet18-ln"])
def test_layer_norm_sees_each_image_for_itself(name):
    torch.manual_seed(0)
    network = backbone_named(name).train()
    images = torch.randn(3, 3, 32, 32)
    assert_close(network(images)[1:2], network(images[1:2]), rtol=1e-4, atol=1e-5)
    assert not [each for each in network.state_dict() if "running" in each]
    plain = backbone_named(name.removesuffix("-ln")).state_dict()
    assert set(network.state_dict()) < set(plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (CPCSettings(patch_share=1.2), "method.patch_share=1.2; a patch must be smaller than its"),
        (CPCSettings(patch_share=0.6), "at most 0.5, such as --method.patch-share 0.3"),
        (CPCSettings(grid=1), "method.grid=1; it must be at least 2"),
        (
            CPCSettings(count=16),
            r"method.count=16 with method.other_images_only=False.* of its own image too.*"
            r"Add --method\.other-images-only, or leave --method\.count out",
        ),
        (CPCSettings(count=0, other_images_only=True), "method.count=0; at least 1"),
        (
            CPCSettings(count=253, other_images_only=True),
            r"method.count=253, but a batch of 8 images offers 252 .*--method\.count None",
        ),
    ],
)
def test_patches_that_leave_nothing_to_predict_or_to_draw_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        settings.check(num_queries=8)


def test_patches_without_room_are_refused():
    with pytest.raises(InputError, match=r"grid=6 .* 6 pixels of data.image_size: .* at most 5"):
        CPCSettings().views(DataSettings(image_size=6))
    with pytest.raises(InputError, match="micro-batch of 1, which has no other images"):
        CPCSettings(other_images_only=True).check(num_queries=1)
    with pytest.raises(InputError, match="micro-batch of 1, which has no other images"):
        CPCSettings(other_images_only=True, count=1).check(num_queries=1)


def test_a_target_that_would_share_pixels_with_its_patch_is_refused():
    """A third of 32 pixels is 11, and three patches of 11 begin at 0, 10 and 21."""
    thirds = CPCSettings(grid=3, patch_share=1 / 3)
    assert thirds.views(DataSettings(image_size=33))
    with pytest.raises(
        InputError, match=r"share=0.333333 of the 32 .*grid=3 .* 10 pixels apart.*share 0.312 "
    ):
        thirds.views(DataSettings(image_size=32))
    assert replace(thirds, patch_share=0.312).views(DataSettings(image_size=32))


@pytest.mark.parametrize("grid", [2, 3, 4, 6])
def test_the_published_share_leaves_no_pixel_in_common_at_any_size(grid):
    settings = CPCSettings(grid=grid)
    for side in range(12, 300):
        size = settings.patch_size(side)
        places = patch_places(side, grid, size)
        for offset in settings.offsets:
            for first in range(grid - offset):
                assert places[first] + size <= places[first + offset], side
        assert settings.views(DataSettings(image_size=side))


class OfSixPixels(nn.Sequential):
    feature_dim = 4

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_network_that_takes_images_but_no_patches_is_refused_before_training():
    """16 pixels make patches of 5."""
    with pytest.raises(InputError, match="OfSixPixels does not take images of 5 pixels"):
        build_components(smoke(), source_from_dataset(Pictures()), backbone=OfSixPixels())


def smoke(**changes):
    recipe = named_recipe("cpcv2", "smoke")
    return replace(recipe, **changes)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, count=64):
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (count, 3, 16, 16), generator=generator).to(torch.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, number):
        return self.pixels[number], number % 2


@pytest.mark.end_to_end
def test_the_published_recipe_is_assembled():
    components = build_components(named_recipe("cpcv2"), source_from_dataset(Pictures(256)))
    method = components.method
    assert [len(predictors) for predictors in method.predictors] == [3, 3, 3, 3]
    assert method.contexts[0].blocks[0][0].out_channels == 256
    kinds = {type(module) for module in method.encoder.modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    assert [view.size for view in components.loader.views] == [260]


def test_what_does_not_go_with_patches_is_refused():
    remembering = ObjectiveSettings(normaliser="instance")
    with pytest.raises(InputError, match=r"normaliser=instance with cpc, .*normaliser batch"):
        build_components(smoke(objective=remembering), source_from_dataset(Pictures()))
    with pytest.raises(InputError, match="accumulation=cached with the method cpc"):
        smoke(training=TrainingSettings(accumulation="cached", num_queries=32))


@pytest.mark.end_to_end
def test_a_run_is_evaluated_on_whole_images(tmp_path):
    train(Pictures(), smoke(), out=tmp_path / "run")
    encoder = load(tmp_path / "run")
    assert encoder.embed(Pictures().pixels[:3]).shape == (3, 256)


def test_the_embedding_of_an_image_is_the_mean_of_the_targets_of_its_patches():
    method, batch = built(PLAIN, Objective(temperature=10, similarity="dot")), some_batch()
    embeddings = method(batch, step=0).embeddings
    for image, embedding in zip(batch.views[0], embeddings, strict=True):
        targets = [
            method.encoder(image[None, :, 3 * r : 3 * r + 3, 3 * c : 3 * c + 3])[0]
            for r in range(GRID)
            for c in range(GRID)
        ]
        assert_close(embedding, sum(targets) / len(targets), rtol=1e-11, atol=1e-11)
    assert not embeddings.requires_grad
    assert built(PLAIN, Objective(temperature=0.2))(batch, step=0).embeddings is None


@pytest.mark.end_to_end
def test_with_the_dot_product_a_training_shows_the_rank_of_the_embeddings(tmp_path, monkeypatch):
    """f̂ and gradients are read from cosines alone, and a collapse is seen by the rank."""
    judged_by = []
    monkeypatch.setattr(Alarms, "check", lambda self, *_: judged_by.append(self.similarity) or [])
    method = replace(named_recipe("cpcv2", "smoke").method, similarity="dot")
    recipe = smoke(
        method=method,
        objective=ObjectiveSettings(temperature=10),
        training=TrainingSettings(num_queries=16, epochs=2, log_every=1, diagnose_every=4),
    )
    objective = build_components(recipe, source_from_dataset(Pictures())).objective
    assert (objective.similarity, objective.temperature) == ("dot", 10)
    reports = []
    train(Pictures(), recipe, out=tmp_path / "run", show=reports.append)
    lines = RunDirectory(tmp_path / "run").read_metrics()
    seen = [line for line in lines if "embedding_rank" in line]
    assert [line["step"] for line in seen] == [4, 8]
    assert judged_by == ["dot", "dot"]
    assert all(1 < line["embedding_rank"] < 64 and line["uniformity"] < 0 for line in seen)
    assert not any("information" in line for line in lines)
    assert f"embedding rank {seen[-1]['embedding_rank']:.1f}, lr" in summary(reports[-1])


def test_with_the_dot_product_a_collapse_is_noticed():
    """An encoder that gives every patch the same embedding."""
    method = built(PLAIN, Objective(temperature=10, similarity="dot"))
    nn.init.zeros_(method.encoder.head.weight)
    seen = diagnose_step(method(some_batch(), step=0), method.objective)
    assert seen.embedding_rank == 0
    alarms = Alarms("dot")
    (message,) = [said for step in range(100) for said in alarms.check(step, 1.0, seen, 0)]
    assert message.startswith("collapse at step 99")
