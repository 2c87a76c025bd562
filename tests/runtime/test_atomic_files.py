"""A file is written whole or not at all, also by two processes at once."""

import json
import os
from pathlib import Path

import pytest

from eqco.runtime.atomic_files import atomic_write, refuse_unwritable
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import write_json


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half_written():
        with atomic_write(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_written()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_that_write_the_same_json_do_not_meet(tmp_path, monkeypatch):
    """Another process writes its whole file while this one is in the middle of its own."""
    path, write_text, met = tmp_path / "cost.json", Path.write_text, []

    def meeting(self, text, **options):
        count = write_text(self, text, **options)
        if not met:
            met.append(self)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                write_json(path, {"by": "the other"})
            assert json.loads(path.read_text()) == {"by": "the other"}
        return count

    monkeypatch.setattr(Path, "write_text", meeting)
    write_json(path, {"by": "this one"})
    assert met
    assert json.loads(path.read_text()) == {"by": "this one"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused_and_any_other_left_as_it_was(tmp_path):
    refuse_unwritable(tmp_path / "new" / "deep" / "a.txt")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "a.txt"
    with pytest.raises(InputError, match=r"a.txt cannot be written \(Not a directory\).*--sheet"):
        refuse_unwritable(inside, option="--sheet")
    with pytest.raises(InputError, match=r"^/proc/a.pth cannot be written"):
        refuse_unwritable(Path("/proc/a.pth"))
