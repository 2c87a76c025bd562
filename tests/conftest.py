"""Settings for all tests: one thread each, hypothesis without a clock and repeatable."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """A folder where experiments find the trainings that others have done."""
    return tmp_path_factory.mktemp("trained_runs")
