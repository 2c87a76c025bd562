"""Settings for all tests: one thread each, hypothesis without a clock and repeatable.

Whole folders are marked here, single tests where they stand; a test without a mark is a unit test.
At the end the counts are printed that tests keep by `record_property("count: WHAT", NUMBER)`.
"""

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from warm import Warm

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the network

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MARKS = {"cli": "end_to_end", "processes": "end_to_end", "faults": "faults"}


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """A folder where experiments find the trainings that others have done."""
    return tmp_path_factory.mktemp("trained_runs")


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Starts `eqco` commands and scripts."""
    warm = Warm(tmp_path_factory.mktemp("logs"))
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def browser():
    """A real browser, driven by playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with driver.sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(
                "no browser to look at the page with: install Debian's chromium, or run "
                "`playwright install chromium`"
            )
        opened = playwright.chromium.launch(executable_path=found, timeout=180_000)
        yield opened
        opened.close()


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


class Pace:
    """A line now and then: how many tests are done, and how long the rest may take."""

    EVERY = 15.0  # seconds

    def __init__(self, reporter):
        self.reporter = reporter
        self.done = 0

    def pytest_sessionstart(self, session):
        self.session = session

    def pytest_runtest_logstart(self):
        if self.done == 0:
            self.begun = self.printed = time.monotonic()

    def pytest_runtest_logfinish(self):
        self.done += 1
        now = time.monotonic()
        if now - self.printed >= self.EVERY:
            self.printed = now
            total = self.session.testscollected
            left = (now - self.begun) * (total - self.done) / self.done
            words = f"{self.done} of {total} tests, about {left / 60:.1f} min left"
            self.reporter.write(f"\n{words}\n")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # not in the processes that xdist starts
        config.pluginmanager.register(Pace(reporter))
