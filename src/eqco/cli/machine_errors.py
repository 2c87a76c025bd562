"""Limits of the machine, reported clearly: too little memory, a process that was killed."""

import re

__all__ = ["explain_error"]

# torch raises RuntimeError with such a text
NO_MEMORY = re.compile(r"can't allocate memory|out of memory|Unable to allocate", re.IGNORECASE)
WORKER = re.compile(r"DataLoader worker \(pid|a worker process ended")


def explain_error(error: BaseException) -> str | None:
    """A sentence for the user with what would work, or None where the error is a defect of ours.

    >>> explain_error(MemoryError())[:33]
    'there is not enough memory. Lower'
    >>> explain_error(RuntimeError("shapes do not match")) is None
    True
    """
    first = next(iter(str(error).splitlines()), "").strip().rstrip(".")
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        detail = f" ({first})" if first else ""
        return (
            f"there is not enough memory{detail}. Lower the batch (of a new run of eqco train: "
            f"--training.num-queries, or cut it by --training.accumulation-steps), the images' "
            f"size or the network's; checkpoints that were saved are kept."
        )
    if WORKER.search(str(error)):
        return (
            f"a process that reads images has ended ({first}), mostly for lack of memory. Use "
            f"fewer --data.workers (eqco train, also with --resume, and eqco sweep) or --workers "
            f"(other commands); checkpoints that were saved are kept."
        )
    return None
