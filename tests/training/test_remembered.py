"""--objective.normaliser: history and queue in the trainer."""

from dataclasses import replace

import pytest
import together
import torch
from torch.testing import assert_close

from eqco.methods import SimCLRSettings
from eqco.recipes import ObjectiveSettings
from eqco.runtime.errors import InputError
from eqco.training.loop import optimise, warm_up


def steps(recipe, count, state=None, first=0):
    components = together.built(recipe, torch.float64)
    components.method.train()
    warm_up(components)
    if state is not None:
        components.method.load_state_dict(state[0])
        components.optimiser.load_state_dict(state[1])
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(first, first + count):
        output = optimise(components, scaler, components.loader.micro_batches(step), step)
        components.method.after_step(output)
    return components.method.state_dict(), components.optimiser.state_dict()


@pytest.mark.parametrize(
    ("method", "source"),
    [
        (together.simo(), "instance"),
        (together.moco(shuffle_bn=False), "instance"),
        (SimCLRSettings(count=4), "instance"),
        (together.simo(queue_size=21), "queue"),
    ],
    ids=["simo", "moco", "simclr", "queue"],
)
def test_resumed_equals_uninterrupted_and_differs_from_the_batch_s(method, source):
    """Twelve steps are two epochs: every image has been visited before."""
    recipe = together.tiny(method, objective=together.remembered(source))
    whole = steps(recipe, 12)
    resumed = steps(recipe, 5, steps(recipe, 7), first=7)
    assert_close(resumed, whole, rtol=0, atol=0)
    plain, _ = steps(replace(recipe, objective=ObjectiveSettings(alpha=64)), 12)
    name = "encoder.backbone.layers.0.weight"
    assert (whole[0][name] - plain[name]).abs().max() > 1e-6


def test_a_queue_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="normaliser=queue without a queue"):
        together.tiny(together.simo(), objective=together.remembered("queue"))
    settings = ObjectiveSettings(normaliser="instance", normaliser_decay=1.0)
    with pytest.raises(InputError, match=r"normaliser_decay=1\.0"):
        together.tiny(together.simo(), objective=settings)


@pytest.mark.parametrize("source", ["batch", "instance", "queue"])
def test_the_recipe_counts_the_negatives_that_a_step_has(source):
    """Keys of a queue are negatives, unless they are remembered for the normaliser alone."""
    recipe = together.tiny(together.simo(queue_size=11), objective=together.remembered(source))
    components = together.built(recipe, torch.float64)
    warm_up(components)
    (batch,) = components.loader.micro_batches(0)
    contrast = components.method(batch, 0).contrasts[0]
    assert contrast.negatives.num_negatives == recipe.num_negatives


def test_an_image_in_place_of_an_unreadable_one_is_there_twice_and_trains():
    recipe = together.tiny(together.simo(), objective=together.remembered("instance"))
    components = together.built(recipe, torch.float64)
    (batch,) = components.loader.micro_batches(0)
    twice = replace(
        batch, index=batch.index.clone().index_fill_(0, torch.tensor([0]), batch.index[1])
    )
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert optimise(components, scaler, [twice], 0).loss.isfinite()
