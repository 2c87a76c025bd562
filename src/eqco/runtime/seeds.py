"""Random draws as a function of what they are for, never of when or where they are made.

Every draw of the project comes from one of these three, all of which give the same numbers on
every machine and in any order of calls:

* `generator_for`: everything that torch draws, by its purpose and a few numbers (seed, step, …).
* `counter_generator`: order, views and splits of the data, many numbers for each (seed, step).
* `random_source`: the Gaussians and critics of mutual information, by a seed and two settings.
"""

import hashlib
from typing import TYPE_CHECKING

import torch

from eqco.runtime.errors import InputError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["counter_generator", "generator_for", "random_source"]


def generator_for(purpose: str, *numbers: int) -> torch.Generator:
    """A generator of its own for each (purpose, numbers).

    >>> draw = [torch.rand(1, generator=generator_for("negatives", 0, step)) for step in (3, 3, 4)]
    >>> bool(draw[0] == draw[1]), bool(draw[0] == draw[2])
    (True, False)
    """
    text = ":".join([purpose, *map(str, numbers)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def counter_generator(seed: int, stream: int, step: int, view: int = 0) -> "np.random.Generator":
    """A generator for one place of one stream of one seed.

    Philox is a function of a key and a counter: two places never share a number, and any place can
    be reached without the ones before.
    """
    import numpy as np

    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed}; it must lie between 0 and 2**63 - 1.")
    key = np.array([seed, stream], dtype=np.uint64)
    counter = np.array([0, 0, view, step], dtype=np.uint64)  # the first two count the numbers
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def random_source(seed: int, num_pairs: int, information: float, purpose: str) -> torch.Generator:
    """A generator for each seed, K, information and purpose, however critics are grouped."""
    text = f"{seed}/{num_pairs}/{float(information)!r}/{purpose}"
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
