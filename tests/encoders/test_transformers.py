"""Vision transformers: any size of image, and a first layer that does not learn."""

import math
from dataclasses import replace

import pytest
import torch

from eqco.assembly import build_components, open_weights, train
from eqco.assembly.export import export_weights
from eqco.data import source_from_dataset
from eqco.encoders import backbone_named, fix_patches, resize_input, resnet
from eqco.encoders.transformers import sine_cosine_positions
from eqco.recipes import named_recipe
from eqco.runtime.errors import InputError
from eqco.training.loop import optimise, warm_up

timm = pytest.importorskip("timm")
TINY = "timm:test_vit"  # timm's own for tests: six layers of 64 features, patches of 16


def pictures(count=8, side=32):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator)
    return source_from_dataset(pixels.to(torch.uint8))


def recipe_of(name, **encoder):
    """A recipe with the smallest of timm's transformers, four patches a picture."""
    recipe = named_recipe(name, "smoke")
    small = {"queue_size": 4, "shuffle_bn": False} if name == "mocov2" else {"count": 4}
    return replace(
        recipe,
        method=replace(recipe.method, **small),
        data=replace(recipe.data, image_size=32),
        encoder=replace(recipe.encoder, backbone=TINY, **encoder),
        optimiser=named_recipe("simclr-vit", "smoke").optimiser,
        training=replace(recipe.training, num_queries=4, log_every=1),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    train(pictures(), recipe_of("simclr-vit"), out=place)
    return place


def test_positions_are_the_literal_loop():
    positions = sine_cosine_positions(2, 3, 8)
    for row in range(2):
        for column in range(3):
            expected = []
            for place in (column, row):
                for function in (math.sin, math.cos):
                    expected += [function(place / 10000 ** (4 * i / 8)) for i in range(2)]
            found = positions[0, row * 3 + column]
            torch.testing.assert_close(found, torch.tensor(expected))
    with pytest.raises(InputError, match="dim=6; sines and cosines of two need a multiple of 4"):
        sine_cosine_positions(2, 2, 6)


def test_fixed_patches_have_no_gradient_and_the_class_token_no_position():
    network = backbone_named(TINY, image_size=32)
    fix_patches(network)
    prefix = network.pos_embed.shape[1] - 4
    assert not network.pos_embed[0, :prefix].any()
    assert torch.equal(network.pos_embed[:, prefix:], sine_cosine_positions(2, 2, 64))
    fixed = {name for name, each in network.named_parameters() if not each.requires_grad}
    assert fixed == {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    # uniform in ±√(6 / (3·16·16 + 64)), whose deviation is the limit over √3
    limit = math.sqrt(6 / (3 * 256 + 64))
    weight = network.patch_embed.proj.weight
    assert float(weight.abs().max()) <= limit
    assert float(weight.std()) == pytest.approx(limit / math.sqrt(3), rel=0.02)
    with pytest.raises(InputError, match="fixed_patches with a ResNet, which has no patches"):
        fix_patches(resnet(18))


@pytest.mark.parametrize("name", ["simclr-vit", "mocov2"])
def test_a_step_by_adamw_moves_all_but_the_patches(name):
    recipe = recipe_of(name, fixed_patches=True, bn_groups=1)
    components = build_components(recipe, pictures())
    encoder = components.method.encoder
    before = {name: each.detach().clone() for name, each in encoder.named_parameters()}
    for group in components.optimiser.param_groups:
        group["lr"] = 0.01
    scaler = torch.amp.GradScaler(enabled=False)
    components.method.train()
    warm_up(components)
    optimise(components, scaler, components.loader.micro_batches(0), 0)
    still = {n for n, each in encoder.named_parameters() if torch.equal(each, before[n])}
    assert {"backbone.pos_embed", "backbone.patch_embed.proj.weight"} <= still
    assert all(name.startswith(("backbone.pos_embed", "backbone.patch_embed")) for name in still)


def test_moco_v3_for_transformers_has_the_heads_and_crops_that_the_notes_name():
    """Not those published: docs/paper_notes.md says which."""
    recipe = named_recipe("mocov3-vit")
    method = build_components(
        replace(recipe, training=replace(recipe.training, num_queries=4)), pictures()
    ).method
    for head, expected in (
        (method.encoder.head, [(768, 384), (256, 768)]),
        (method.predictor, [(768, 256), (256, 768)]),
    ):
        linear = [each for each in head if isinstance(each, torch.nn.Linear)]
        assert [tuple(each.weight.shape) for each in linear] == expected
    assert isinstance(method.encoder.head[-1], torch.nn.BatchNorm1d)
    assert isinstance(method.predictor[-1], torch.nn.Linear)
    assert [view.pipeline.crop_scale for view in recipe.data.pair] == [(0.2, 1.0)] * 2


@pytest.mark.end_to_end
def test_a_run_is_opened_at_another_size_by_interpolated_positions(run):
    native, larger = open_weights(run), open_weights(run, image_size=48)
    assert (native.image_size, larger.image_size) == (32, 48)
    assert larger.backbone(torch.zeros(1, 3, 48, 48)).shape == (1, 64)
    ours = larger.backbone.pos_embed
    prefix = native.backbone.pos_embed.shape[1] - 4
    assert ours.shape == (1, prefix + 9, 64)
    grid = native.backbone.pos_embed[:, prefix:].reshape(1, 2, 2, 64).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(grid, (3, 3), mode="bicubic", antialias=True)
    torch.testing.assert_close(ours[:, prefix:], resized.flatten(2).transpose(1, 2))
    assert not any(each.requires_grad for each in larger.backbone.parameters())
    with pytest.raises(InputError, match="does not take images of image_size=8"):
        open_weights(run, image_size=8)


@pytest.mark.end_to_end
def test_an_exported_transformer_is_opened_at_its_size_and_at_others(run, tmp_path):
    native = open_weights(run)
    export_weights(native, "timm", tmp_path / "a.pth")
    images = torch.randn(2, 3, 32, 32)
    again = open_weights(tmp_path / "a.pth")
    assert torch.equal(again.backbone(images), native.backbone(images))
    larger = open_weights(tmp_path / "a.pth", image_size=48)
    expected = open_weights(run, image_size=48).backbone.pos_embed
    assert torch.equal(larger.backbone.pos_embed, expected)


@pytest.mark.end_to_end
def test_a_training_begins_with_weights_of_another_size(run, tmp_path):
    recipe = recipe_of("simclr-vit")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=48),
        optimiser=replace(recipe.optimiser, base_learning_rate=1e-12, weight_decay=0.0),
    )
    train(pictures(side=48), recipe, out=tmp_path / "longer", init=run)
    ours = open_weights(tmp_path / "longer").backbone
    theirs = open_weights(run, image_size=48).backbone
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-3, atol=1e-4)


def test_networks_that_take_any_size_are_left_as_they_are():
    network = resnet(18, stem="small")
    before = [each.clone() for each in network.parameters()]
    resize_input(network, 48)
    assert all(torch.equal(*each) for each in zip(network.parameters(), before, strict=True))
