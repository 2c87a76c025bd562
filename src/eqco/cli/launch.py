"""One command on several processes of this machine, by PyTorch's own launcher."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from eqco.runtime.errors import InputError
from eqco.runtime.processes import launched

__all__ = ["launch"]


def launch(arguments: Sequence[str], *, count: int, restarts: int = 0) -> None:
    """Run `eqco ARGUMENTS` in `count` processes that know each other, as torchrun does.

    Ends this process with the exit code of the process that failed, if one did: what it has to say
    it has said itself.

    Args:
        arguments: of the command, which each process runs.
        count: how many.
        restarts: how often all are started again after one was lost.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if launched():
        raise InputError(
            f"--processes {count} under torchrun, which has started the processes already. "
            f"Leave it out."
        )
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
    # the launcher's own tables of errors: the processes speak for themselves
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "eqco", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        # the process that has given its reason (2) goes before those that were lost with it
        number, code = min(codes.items(), key=lambda item: (item[1] < 0, item[1] != 2))
        if code < 0:
            name = signal.Signals(-code).name
            print(f"eqco: process {number} of {count} was ended by {name}.", file=sys.stderr)
        raise SystemExit(128 - code if code < 0 else code) from error
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from error
