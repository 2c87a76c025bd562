"""Three steps of a few recipes under Lightning, in as many processes as there are.

    python tests/lightning_together.py OUT      with RANK, LOCAL_RANK, WORLD_SIZE, …

Each process leaves what it holds after the three steps in OUT.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from together import CASES, Pictures, TinyBackbone

from eqco.data import source_from_dataset

TOGETHER = ("simo, queue", "simclr", "simo, in two micro-batches")


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
    held = {}
    for case in TOGETHER:
        module = module_of(CASES[case])
        count = int(os.environ["WORLD_SIZE"])
        trainer_for(CASES[case], max_steps=3, devices=count, strategy="ddp").fit(module)
        held[case] = module.method.state_dict()
    torch.save(held, Path(place) / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1])
