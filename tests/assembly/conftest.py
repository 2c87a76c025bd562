"""A short run for the tests of this room."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from eqco.assembly import build_encoder, train
from eqco.recipes import DataSettings, EncoderSettings, named_recipe, recipe_to_dict
from eqco.runtime.run_directory import RunDirectory, write_json


@pytest.fixture(scope="session")
def light_run(tmp_path_factory):
    """A short training on the embedded photos."""
    recipe = named_recipe("simo", "demo")
    recipe = replace(
        recipe,
        training=replace(recipe.training, epochs=1, num_queries=64),
        optimiser=replace(recipe.optimiser, warmup_epochs=0),
    )
    place = tmp_path_factory.mktemp("runs") / "simo"
    train(recipe=recipe, out=place)
    return place


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """A run directory as a training leaves it, with weights that nothing was trained for."""

    def make(head="mlp", **encoder):
        settings = EncoderSettings(head=head, **encoder)
        size = 32 if settings.stem == "small" else 64
        recipe = replace(
            named_recipe("mocov2", "paper"), encoder=settings, data=DataSettings(image_size=size)
        )
        network = build_encoder(recipe)
        for module in network.modules():  # so that nothing agrees by chance
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.2, 0.6)
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 2)
        run = RunDirectory(tmp_path_factory.mktemp("runs") / settings.backbone.replace(":", "-"))
        met = {"data": "/home/me/photos", "images": 1000, "steps_per_epoch": 3, "code": "0.1.0"}
        run.start(recipe_to_dict(recipe), met)
        state = {f"encoder.{name}": value for name, value in network.state_dict().items()}
        run.save({"recipe": recipe_to_dict(recipe), "method": state, "step": 12}, keep=False)
        write_json(run.result, {"steps": 12, "probe": {"knn20_test": 0.8125}})
        return run.path

    torch.manual_seed(0)
    return make
