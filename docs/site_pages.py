"""What mkdocs does not do by itself: pages from outside docs/, links to the source, the report."""

import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from eqco.report.page import write_page

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/eqco/eqco/blob/main/"
PAGES = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and the page that `eqco report` writes."""
    for name, origin in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / origin).read_text())
        files.append(File.generated(config, name, content=text))
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(ROOT / "results", Path(folder) / "report.html").read_text()
    files.append(File.generated(config, "report.html", content=page))
    return files


def on_page_markdown(markdown: str, *, page: Page, **about: Any) -> str:
    """Make of a page what GitHub makes of it.

    Links out of docs/ lead to the repository, tables inside `<details>` are tables, and marks of
    filled blocks do not stick to what follows.
    """
    outside = "../" * (1 + page.file.src_uri.count("/"))
    linked = markdown.replace(f"]({outside}", f"]({SOURCE}")
    opened = linked.replace("<details>", '<details markdown="1">')
    return re.sub(r"<!-- (block [\w-]+|end) -->", "", opened)
