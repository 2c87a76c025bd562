"""The script that fills the documents, as a module."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script():
    spec = importlib.util.spec_from_file_location("filling", ROOT / "docs" / "fill_documents.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


FILLING = load_script()
