"""Damaged image files are decoded or refused: no crash, no hang, no flood of memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("decode_many.py")
COUNT = 3000
SECONDS = 300  # for all of them, on a busy machine; they take a few


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))


@pytest.mark.parametrize("kind", ["jpeg", "png", "others"])
def test_damaged_images_are_decoded_or_refused(kind, tmp_path, record_property):
    command = [sys.executable, str(SCRIPT), kind, "0", str(COUNT), str(tmp_path / "image")]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, preexec_fn=limit_memory
    )
    assert answer.returncode == 0, f"exit code {answer.returncode}: {answer.stderr[-2000:]}"
    assert 0 < int(answer.stdout) < COUNT, "some are refused, some survive"
    record_property("count: damaged images tried", COUNT)
