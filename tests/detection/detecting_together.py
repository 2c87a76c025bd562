"""Two steps of a detector's fine-tuning, and its test, in as many processes as there are.

    python tests/detection/detecting_together.py DATA OUT

with RANK, WORLD_SIZE, … in the environment. Each process leaves its weights and detections in
OUT.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from eqco.detection.fine_tuning import build, detect, fine_tune, with_precise_statistics
from eqco.detection.folders import open_annotated
from eqco.detection.settings import DESK
from eqco.encoders import resnet
from eqco.runtime import processes
from eqco.runtime.run_directory import RunDirectory

TINY = replace(
    DESK,
    epochs=1,
    drops=(),
    num_images=2,
    warmup_steps=0,
    sides=(64,),
    channels=16,
    proposals=20,
    sampled_boxes=8,
    precise_images=4,
)


def main(data, out):
    torch.set_num_threads(1)
    images = open_annotated(Path(data), "train")
    with processes.process_group("cpu", timeout=120):
        torch.manual_seed(0)
        parts = build(TINY, resnet(18), images, torch.device("cpu"), 0)
        run = RunDirectory(Path(out) / "run")
        if processes.is_writer():
            run.start({}, {})
        assert fine_tune(parts, run, {}) is None
        trained = {name: value.clone() for name, value in parts.detector.state_dict().items()}
        detector = with_precise_statistics(parts)
        found = detect(detector, images)
        kept = {
            "trained": trained,
            "precise": detector.state_dict(),
            "found": list(map(tuple, found)),
        }
        torch.save(kept, Path(out) / f"{processes.rank()}.pt")
        assert run.last.exists() or not processes.is_writer()


if __name__ == "__main__":
    main(*sys.argv[1:])
