"""How much the library survives: runs the tests under tests/faults and adds up their counts.

python benchmarks/faults.py             kills, damaged files, inputs tried
python benchmarks/faults.py --record    keep them under results/bench-faults/
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from measure import command_line, keep_record, read_options

ROOT = Path(__file__).parents[1]


def counts_of(report: Path) -> Counter[str]:
    """The counts that the tests kept, and how many tests there were."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            found["tests passed"] += 1
        for entry in case.iter("property"):
            name = entry.attrib["name"]
            if name.startswith("count: "):
                found[name.removeprefix("count: ")] += int(entry.attrib["value"])
    return found


def main() -> None:
    options = read_options(command_line(__doc__, quick=False))
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/faults", "-n", "2"]
        done = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT)
        if done.returncode:
            raise SystemExit(done.returncode)
        found = counts_of(report)
    if options.record:
        keep_record("bench-faults", {"tests": "tests/faults"}, dict(found), start)


if __name__ == "__main__":
    main()
