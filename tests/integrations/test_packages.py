"""Without its package each module says its install line, and the package itself needs none."""

import subprocess
import sys

import pytest

NEEDED = {
    "sentence_transformers": ("sentence_transformers", "sentence-transformers"),
    "open_clip": ("open_clip", "open-clip"),
    "lightly": ("lightly", "lightly"),
    "metric_learning": ("pytorch_metric_learning", "metric-learning"),
    "lightning": ("lightning", "lightning"),
    "transformers": ("transformers", "transformers"),
}
CODE = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
for module, package in {needed!r}:
    sys.modules[package] = None  # as if it were not installed
    try:
        importlib.import_module(f"eqco.integrations.{{module}}")
    except ImportError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def answers():
    code = CODE.format(needed=[(module, package) for module, (package, _) in NEEDED.items()])
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return dict(zip(NEEDED, answer.stdout.splitlines(), strict=True))


@pytest.mark.end_to_end
@pytest.mark.parametrize("module", NEEDED)
def test_a_missing_package_is_answered_with_its_install_line(answers, module):
    package, extra = NEEDED[module]
    assert f"needs the package '{package}" in answers[module]
    assert answers[module].endswith(f'pip install ".[{extra}]"')
