"""Without its package each module says its install line."""

import importlib
import sys

import pytest

from eqco.runtime.errors import MissingExtraError

# module: what it imports, and the extra that installs it
NEEDED = {
    "sentence_transformers": (
        "sentence_transformers.base.losses.gradcache",
        "sentence-transformers",
    ),
    "open_clip": ("open_clip.loss", "open-clip"),
    "lightly": ("lightly.loss", "lightly"),
    "metric_learning": ("pytorch_metric_learning.losses", "metric-learning"),
    "lightning": ("lightning.pytorch", "lightning"),
    "transformers": ("transformers", "transformers"),
}


@pytest.mark.parametrize("module", NEEDED)
def test_a_missing_package_is_answered_with_its_install_line(module, monkeypatch):
    imported, extra = NEEDED[module]
    monkeypatch.setitem(sys.modules, imported, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"eqco.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError) as refusal:
        importlib.import_module(f"eqco.integrations.{module}")
    package = imported.split(".")[0]
    assert f"needs the package '{package}', which is not installed" in str(refusal.value)
    assert str(refusal.value).endswith(f'pip install ".[{extra}]"')
