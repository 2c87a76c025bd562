"""Settings for all tests: one thread each, hypothesis without a clock and repeatable.

At the end the counts are printed that tests keep by `record_property("count: WHAT", NUMBER)`.
"""

from collections import Counter

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


def pytest_terminal_summary(terminalreporter):
    counts = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith("count: "):
                counts[name.removeprefix("count: ")] += value
    for name, value in counts.items():
        terminalreporter.write_line(f"{name}: {value:,}")
