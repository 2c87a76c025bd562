"""Settings for all tests: one thread each, hypothesis without a clock and repeatable.

Whole folders are marked here, single tests where they stand; a test without a mark is a unit test.
At the end the counts are printed that tests keep by `record_property("count: WHAT", NUMBER)`.
"""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the network

MARKS = {"cli": "end_to_end", "processes": "end_to_end", "faults": "faults"}


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """A folder where experiments find the trainings that others have done."""
    return tmp_path_factory.mktemp("trained_runs")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    for item in items:
        folder = item.path.parent.relative_to(tests).name if tests in item.path.parents else ""
        if folder in MARKS:
            item.add_marker(MARKS[folder])


def pytest_terminal_summary(terminalreporter):
    counts = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith("count: "):
                counts[name.removeprefix("count: ")] += value
    for name, value in counts.items():
        terminalreporter.write_line(f"{name}: {value:,}")
