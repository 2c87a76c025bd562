"""Imports point down the layers, a method is known in its own file, the core needs torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from eqco.methods import METHODS
from eqco.recipes import RECIPES

SOURCE = Path(__file__).parents[1] / "src" / "eqco"

# top to bottom, as docs/architecture.md has them
LAYERS = {
    "tell": {"cli", "report", "experiments", "integrations"},
    "measure": {"evaluation", "detection", "mutual_information", "planning"},
    "learn": {"assembly", "recipes", "training", "methods", "encoders", "data"},
    "core": {"contrast", "theory"},
    "under all": {"runtime"},
}
DEPTH = {package: depth for depth, layer in enumerate(LAYERS.values()) for package in layer}
# inside a layer, and the one arrow that points up: the kNN probe during training
ALLOWED = {
    "cli": {"report", "experiments", "integrations"},
    "report": {"experiments"},
    "assembly": {"recipes", "training", "methods", "encoders", "data", "evaluation"},
    "training": {"methods", "encoders", "data"},
    "recipes": {"methods", "data"},
    "methods": {"encoders", "data"},
    "contrast": {"theory"},
}


def packages_imported(path):
    """(line, package) for every import of this package in a file, wherever it stands."""
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


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def arrows():
    for path in sorted(SOURCE.rglob("*.py")):
        package = package_of(path)
        if package not in ("__init__", "__main__"):
            for line, other in packages_imported(path):
                yield path, line, package, other


def test_every_package_has_its_layer():
    packages = {package_of(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert packages <= DEPTH.keys()


def test_imports_point_down():
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {package} imports {other}"
        for path, line, package, other in arrows()
        if package != other
        and DEPTH.get(other, 0) <= DEPTH[package]
        and other not in ALLOWED.get(package, ())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_test_sees_arrows():
    assert ("contrast", "theory") in {(package, other) for *_, package, other in arrows()}


# classes and names that only `methods` and `recipes/named.py` may tell apart
CLASSES = {kind.__name__ for kind in METHODS.values()}
CLASSES |= {name.removesuffix("Settings") for name in CLASSES}
NAMES = {*METHODS, *RECIPES}


def distinctions(tree):
    """Lines that compare with a method's or recipe's name, or ask for a method's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if NAMES.intersection(word for word in words if isinstance(word, str)):
                yield node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if CLASSES & names:
                yield node.lineno


# experiments name the framework of a cell themselves
EXCEPTIONS = {"recipes/named.py"}


def test_nobody_but_methods_tells_methods_apart():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in distinctions(ast.parse(path.read_text()))
        if package_of(path) != "methods" and str(path.relative_to(SOURCE)) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code", ['a == "simo"', 'a in ("x", "mocov2")', "isinstance(a, SiMo | MoCo)"]
)
def test_the_test_sees_distinctions(code):
    assert list(distinctions(ast.parse(code))) == [1]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


WITHOUT_EXTRAS = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "torchvision", "PIL", "tyro", "rich", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import warnings
warnings.simplefilter("ignore")  # torch's own, without numpy
sys.meta_path.insert(0, Missing())
import torch
before = set(sys.modules)
from eqco import *
import eqco
queries, positives = torch.randn(2, 8, 4)
EqCoLoss(alpha=64)(queries, positives).item()
eqco.KeyQueue(4, 4); eqco.gaussian_information(0.5, 20)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"eqco", "torch"}))
try:
    eqco.train
except ImportError as error:
    print(error)
"""


def test_loss_and_theory_need_torch_alone_and_the_rest_says_the_install_line():
    answer = run_python(WITHOUT_EXTRAS)
    assert answer.stdout.startswith("[]\n"), answer.stdout + answer.stderr
    assert 'pip install ".[train]"' in answer.stdout, answer.stdout + answer.stderr


STAGES = """
import sys, eqco
slow = {"torch", "torchvision", "torch._dynamo"}
print(sorted(slow & set(sys.modules)))
import eqco.assembly
print(sorted(slow & set(sys.modules)))
"""


def test_the_package_loads_without_torch_and_what_commands_share_without_torchvision():
    answer = run_python(STAGES)
    assert answer.stdout.splitlines() == ["[]", "['torch']"], answer.stderr


def test_every_public_name_resolves_and_no_other_does():
    import eqco

    for name in eqco._HOMES:
        assert getattr(eqco, name) is not None
    assert set(eqco.__all__) < set(eqco._HOMES) <= set(dir(eqco))
    with pytest.raises(AttributeError, match="no attribute 'equo'"):
        _ = eqco.equo
