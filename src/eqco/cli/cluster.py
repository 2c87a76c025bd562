"""What the commands of many trainings share: where they run, and how many at a time."""

import importlib.util
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro

from eqco.experiments.experiment import Perform, Show, one_by_one
from eqco.integrations import ray
from eqco.runtime.cores import available_cores
from eqco.runtime.errors import InputError

__all__ = ["HERE", "Cluster", "ClusterOptions"]

OFF = "off"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where trainings run, and what each of them takes."""

    ray: str | None = None
    """local: as tasks of Ray on this machine, as many at a time as it has cores; ADDRESS: on that
    cluster, such as 10.0.0.1:6379; off: one after the other."""
    cores: int | None = None
    """Cores, and threads, of each training. To the bit, results are the same for the same number;
    1 unless one training has the machine to itself."""
    gpus: float | None = None
    """GPUs of each training on Ray; 1 by default with --device cuda."""
    restarts: int = 3
    """How often Ray starts a training again, from its last checkpoint, when its worker is lost."""

    def check(self) -> None:
        """Refuse what no training can have."""
        if self.cores is not None and self.cores < 1:
            raise InputError(f"--cores {self.cores}; it must be at least 1.")
        if self.gpus is not None and self.gpus < 0:
            raise InputError(f"--gpus {self.gpus:g}; it must be 0 or more.")
        if self.restarts < 0:
            raise InputError(f"--restarts {self.restarts}; it must be 0 or more.")

    def address(self, runs: int) -> str | None:
        """Of the cluster for so many runs; None: one after the other.

        Without --ray, a local one where Ray is installed and two trainings fit on the machine.
        """
        if self.ray is not None:
            return None if self.ray == OFF else self.ray
        fits = len(available_cores()) // (self.cores or 1)
        installed = importlib.util.find_spec("ray") is not None
        return ray.LOCAL if installed and min(fits, runs) > 1 else None

    def perform(self, address: str | None, *, shared: Path, device: str, show: Show) -> Perform:
        """Does runs on the cluster at that address, or one after the other."""
        if address is None:
            if self.cores is not None:
                torch.set_num_threads(self.cores)
            return partial(one_by_one, show=show)
        gpus = float(device.startswith("cuda")) if self.gpus is None else self.gpus
        cluster = ray.Cluster(
            address=address, cores=self.cores or 1, gpus=gpus, restarts=self.restarts
        )
        return partial(ray.perform, cluster=cluster, shared=shared, show=show)


Cluster = Annotated[ClusterOptions, tyro.conf.arg(name="")]  # options without a prefix
HERE = ClusterOptions()
