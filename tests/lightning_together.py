"""Three steps of a recipe under Lightning, in as many processes as there are.

    python tests/lightning_together.py OUT      with RANK, LOCAL_RANK, WORLD_SIZE, …

Each process leaves what it holds after the three steps in OUT.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from together import Pictures, TinyBackbone, simo, tiny

from eqco.data import source_from_dataset

# with all that processes must agree on: batch norm, keys of the batch and of a queue, accumulation
TOGETHER = tiny(simo(queue_size=21), accumulation_steps=2)


def module_of(recipe):
    from eqco.integrations.lightning import EqCoModule

    torch.manual_seed(0)
    return EqCoModule(recipe, source_from_dataset(Pictures()), encoder=TinyBackbone())


def trainer_for(recipe, **settings):
    from lightning.pytorch import Trainer

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(
        **{
            **quiet,
            "accelerator": "cpu",
            "devices": 1,
            "accumulate_grad_batches": recipe.training.accumulation_steps,
            **settings,
        }
    )


def main(place):
    rank, count = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
    module = module_of(TOGETHER)
    trainer_for(TOGETHER, max_steps=3, devices=count, strategy="ddp").fit(module)
    torch.save(module.method.state_dict(), Path(place) / f"{rank}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1])
