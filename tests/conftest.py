"""Settings for all tests: one thread each, hypothesis without a clock and repeatable."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)
