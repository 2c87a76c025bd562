"""Rooms import downwards only, and the core needs torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "eqco"

# top to bottom; rooms on one row do not know each other
ROWS = [
    {"cli"},
    {"report"},
    {"experiments"},
    {"detection"},
    {"assembly", "recipes"},
    {"evaluation", "mutual_information"},
    {"training"},
    {"methods"},
    {"encoders", "contrast", "data"},
    {"theory"},
    {"runtime"},
]
HEIGHT = {room: len(ROWS) - row for row, rooms in enumerate(ROWS) for room in rooms}
# assembly and recipes share a row: assembly turns recipes into objects and may see them
NEIGHBOURS = {("assembly", "recipes")}


def rooms_imported(path):
    """(line, room) for every import of this package in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [node.module or ""]
            if node.module == "eqco":
                names = [f"eqco.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "eqco" and len(parts) > 1:
                yield node.lineno, parts[1]


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def arrows():
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path)
        if room not in ("__init__", "__main__"):
            for line, other in rooms_imported(path):
                yield path, line, room, other


def test_every_room_has_its_row():
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= HEIGHT.keys()


def test_no_arrow_points_up_or_sideways():
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {room} imports {other}"
        for path, line, room, other in arrows()
        if room != other
        and HEIGHT.get(other, 99) >= HEIGHT[room]
        and (room, other) not in NEIGHBOURS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_test_sees_arrows():
    assert ("contrast", "theory") in {(room, other) for *_, room, other in arrows()}


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


CORE = """
import sys, torch
before = set(sys.modules)
import eqco
queries, positives = torch.randn(2, 8, 4)
eqco.EqCoLoss(alpha=64)(queries, positives).item()
eqco.KeyQueue(4, 4); eqco.gaussian_information(0.5, 20)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"eqco", "torch"}))
"""


def test_the_loss_and_the_theory_need_torch_alone():
    answer = run_python(CORE)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


WITHOUT_EXTRAS = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "torchvision", "PIL", "tyro", "rich", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import warnings
warnings.simplefilter("ignore")  # torch's own, without numpy
sys.meta_path.insert(0, Missing())
from eqco import *
import eqco
EqCoLoss, info_nce, named_recipe
try:
    eqco.train
except ImportError as error:
    print(error)
"""


def test_without_extras_the_core_is_there_and_the_rest_says_the_install_line():
    answer = run_python(WITHOUT_EXTRAS)
    assert 'pip install ".[train]"' in answer.stdout, answer.stdout + answer.stderr


def test_importing_the_package_does_not_even_load_torch():
    answer = run_python("import sys, eqco; print('torch' in sys.modules)")
    assert answer.stdout.strip() == "False", answer.stderr


def test_every_public_name_resolves_and_no_other_does():
    import eqco

    for name in eqco._HOMES:
        assert getattr(eqco, name) is not None
    assert set(eqco.__all__) < set(eqco._HOMES) <= set(dir(eqco))
    with pytest.raises(AttributeError, match="no attribute 'equo'"):
        _ = eqco.equo
