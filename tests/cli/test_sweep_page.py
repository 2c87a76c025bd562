"""What the page about sweeps and clusters says of the commands."""

import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest

from eqco.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
COMMANDS = [shlex.split(line, comments=True)[1:] for line in "".join(BLOCKS).splitlines()]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_understood(command, monkeypatch):
    module, calls = importlib.import_module(f"eqco.cli.{command[0]}"), []

    @functools.wraps(module.run)
    def note(*arguments, **options):
        calls.append((arguments, options))

    monkeypatch.setattr(module, "run", note)
    assert main(command) == 0
    assert len(calls) == 1


def test_the_one_to_try_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    """Without Ray, which has tests of its own; two of the four trainings."""
    (command,) = (each for each in COMMANDS if "sweeps/try" in each)
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--seeds", "0", "--ray", "off"]) == 0, capsys.readouterr().err
    out = tmp_path / "sweeps" / "try"
    table = (out / "table.md").read_text()
    assert "| method.count=4 |" in table
    assert "| method.count=16 |" in table
    assert len(list((out / "records" / "sweep").glob("*.json"))) == 2
    assert len(list((out / "runs").glob("*/checkpoints/last.pt"))) == 2
