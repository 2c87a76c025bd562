"""accumulation=cached: the gradient of the whole batch, whatever the pieces are."""

from dataclasses import replace

import pytest
import together
import torch
from torch import nn
from torch.testing import assert_close

from eqco.methods import METHODS, SimCLRSettings
from eqco.recipes import EncoderSettings, Recipe, TrainingSettings, recipe_from_dict, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.training.loop import optimise, warm_up

CACHEABLE = {name: together.small(kind) for name, kind in METHODS.items() if kind.cacheable}
WITHOUT_BATCH_NORM = EncoderSettings(backbone="light-ln", head="mlp", embedding_dim=4)


def recipe_for(method, steps, accumulation, encoder=WITHOUT_BATCH_NORM):
    training = TrainingSettings(
        num_queries=together.N, epochs=4, accumulation_steps=steps, accumulation=accumulation
    )
    return together.light(method, encoder=encoder, training=training)


def after_two_steps(method, steps, accumulation):
    components = together.built(recipe_for(method, steps, accumulation), torch.float64)
    scaler = torch.amp.GradScaler(enabled=False)
    warm_up(components)
    losses = []
    for step in range(2):
        output = optimise(components, scaler, components.loader.micro_batches(step), step)
        components.method.after_step(output)
        losses.append(output.loss)
    return losses, components.method.state_dict()


@pytest.mark.parametrize("name", CACHEABLE)
def test_without_batch_norm_it_trains_as_the_whole_batch(name):
    whole = after_two_steps(CACHEABLE[name], 1, "independent")
    assert_close(after_two_steps(CACHEABLE[name], 4, "cached"), whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - CACHEABLE.keys()))
def test_a_method_whose_encoder_gives_more_than_embeddings_is_refused(name):
    with pytest.raises(InputError, match=f"cached with the method {name}"):
        recipe_for(together.small(METHODS[name]), 4, "cached")


def test_independent_micro_batches_are_another_training():
    """Else the comparison above could not fail."""
    whole, _ = after_two_steps(CACHEABLE["simclr"], 1, "independent")
    pieces, _ = after_two_steps(CACHEABLE["simclr"], 4, "independent")
    assert abs(whole[0] - pieces[0]) > 1e-3


class InFloat32(nn.Module):
    """One that leaves autocast, for itself."""

    feature_dim = 8

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(432, 8)

    def forward(self, images):
        with torch.autocast("cpu", enabled=False):
            return self.layer(images.float().flatten(1)).tanh()


def gradient_in_bfloat16(steps, accumulation, monkeypatch):
    monkeypatch.setattr(together, "TinyBackbone", InFloat32)
    own = replace(WITHOUT_BATCH_NORM, backbone=Recipe().encoder.backbone)
    recipe = recipe_for(CACHEABLE["simclr"], steps, accumulation, own)
    components = replace(together.built(recipe, torch.float32), precision="bfloat16")
    scaler = torch.amp.GradScaler(enabled=False)
    optimise(components, scaler, components.loader.micro_batches(0), 0)
    return components.method.encoder.backbone.layer.weight.grad


def test_a_layer_that_stays_float32_gets_its_gradient_in_float32(monkeypatch):
    whole = gradient_in_bfloat16(1, "independent", monkeypatch)
    assert_close(gradient_in_bfloat16(4, "cached", monkeypatch), whole, rtol=0, atol=2e-6)
    assert whole.abs().max() > 1e-3


def test_the_negatives_are_those_of_the_whole_batch():
    recipe = recipe_for(SimCLRSettings(), 4, "cached")
    assert recipe.contrasted_size == together.N
    assert recipe.num_negatives == 2 * together.N - 2


def test_what_it_does_not_work_with_is_refused():
    recipe = recipe_for(CACHEABLE["moco"], 4, "cached")
    with pytest.raises(InputError, match=r"cached with encoder.bn_groups=2"):
        replace(recipe, encoder=replace(recipe.encoder, bn_groups=2))
    with pytest.raises(InputError, match=r"cached with training.compile=True"):
        replace(recipe, training=replace(recipe.training, compile=True))


def test_a_recipe_without_it_is_written_as_before_and_with_it_read_back():
    plain, cached = (recipe_for(SimCLRSettings(), 4, kind) for kind in ("independent", "cached"))
    assert "accumulation" not in recipe_to_dict(plain)["training"]
    for recipe in (plain, cached):
        assert recipe_from_dict(recipe_to_dict(recipe)) == recipe
