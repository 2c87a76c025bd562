"""The command line: help, unknown commands, missing extras, exit codes."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

import eqco
from eqco.cli import main as cli
from eqco.cli.main import COMMANDS, main
from eqco.cli.progress import progress_bar


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


def test_no_command_is_an_error_that_shows_the_help(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"eqco {eqco.__version__}"


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert main(["dmo"]) == 2
    assert "there is no command 'dmo'. Did you mean 'demo'?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "There are: train" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: eqco {name}" in text
    assert "Examples:" in text
    assert "Args:" not in text


def test_an_unknown_option_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--outt", "x"])
    assert stop.value.code == 2
    assert "--out" in capsys.readouterr().err


def test_what_the_user_can_mend_is_reported_without_traceback(capsys, monkeypatch):
    def refuse(name, rest):
        raise cli.InputError("pairs=1; at least 2")

    monkeypatch.setattr(cli, "dispatch", refuse)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "eqco: pairs=1; at least 2\n"


def test_ctrl_c_says_so(capsys, monkeypatch):
    def interrupt(name, rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "dispatch", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "eqco: stopped\n"


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"tyro", "rich", "matplotlib", "torchvision", "numpy", "PIL"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from eqco.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_extras_the_install_line_is_printed():
    command = [sys.executable, "-c", BLOCKED, "demo"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2
    assert 'pip install ".[train]"' in answer.stderr
    assert "Traceback" not in answer.stderr
    help_answer = subprocess.run([*command[:-1], "--help"], capture_output=True, text=True)
    assert help_answer.returncode == 0


def test_python_m_eqco_is_the_same_command():
    answer = subprocess.run([sys.executable, "-m", "eqco", "--version"], capture_output=True)
    assert answer.stdout.decode().strip() == f"eqco {eqco.__version__}"


def test_long_work_leaves_lines_with_the_time_left_in_a_log_file(monkeypatch):
    clock = iter([0.0, 10.0, 60.0, 70.0, 120.0])
    monkeypatch.setattr("eqco.cli.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with progress_bar(Console(file=stream), "4 runs", 8) as advance:
        for _ in range(4):
            advance(1)
    assert stream.getvalue().splitlines() == [
        "4 runs: 25% after 1 min, about 3 min left",
        "4 runs: 50% after 2 min, about 2 min left",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_wider_than_a_hundred_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= cli.HELP_COLUMNS
    assert os.environ["COLUMNS"] == "240"


@pytest.mark.parametrize("name", COMMANDS)
def test_paragraphs_and_options_of_the_help_fill_a_narrow_terminal(name, capsys, monkeypatch):
    """A line ends early only where a paragraph does, or where the next word would not fit."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    start, _, _ = text.partition("Examples:")
    paragraphs = [part for part in start.split("\n\n")[1:] if "\n " not in part]
    assert max(len(line) for part in paragraphs for line in part.splitlines()) <= 80
    options = re.findall(r"^│ ( {6,})(\S.*?) *│\n│ \1(\S+)", text, re.MULTILINE)
    assert all(len(f"{indent}{line} {word}") > 76 for indent, line, word in options)


def test_help_begins_with_what_is_needed_first(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out.split("positional arguments")[1]
    flags = ("DATA", "--recipe", "--training.epochs", "--training.num-queries", "--method.")
    places = [text.index(flag) for flag in flags]
    assert places == sorted(places)


def test_a_command_is_found_before_torch_is_loaded():
    code = (
        "import sys; from eqco.cli import main as m; m.dispatch = lambda *_: print("
        "'torch' in sys.modules); m.main(['plan'])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_a_reader_that_has_read_enough_ends_the_command_without_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "eqco", "eval", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
