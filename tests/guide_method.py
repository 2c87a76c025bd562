"""The method that docs/adding_a_method.md has as its example, as it stands there."""

import re
from pathlib import Path

import eqco.methods.base

GUIDE = Path(__file__).parents[1] / "docs" / "adding_a_method.md"


def guide_settings():
    """The class of its settings."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = {**vars(eqco.methods.base), "__name__": "guide"}
    exec(code, names)
    return names["OneWaySettings"]
