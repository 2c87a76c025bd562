"""What a training ends with on the screen."""

import io

from rich.console import Console

from eqco.report.assessment import print_self_consistency
from eqco.runtime.run_directory import RunDirectory


def test_without_labels_the_commands_that_show_neighbours_are_named(tmp_path):
    """In one line, however narrow the terminal, and with a path that the shell takes as one."""
    place = tmp_path / "run"
    RunDirectory(place).start(
        {}, {"source": "/home/me/my photos", "data": "my photos", "images": 9}
    )
    stream = io.StringIO()
    print_self_consistency(Console(file=stream, width=40), None, place)
    command = f"eqco index {place} '/home/me/my photos', then eqco search index PHOTO"
    assert command in stream.getvalue()
