"""The documents as a site: it builds without a warning, needs no network, and its search finds."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import eqco

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason='the site needs pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Sources(HTMLParser):
    """What a page has a browser fetch."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given.get("href") or "")


@pytest.mark.end_to_end
def test_no_page_fetches_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        sources = Sources(page).found
        assert page.name == "report.html" or sources, page
        assert not [each for each in sources if re.match("(https?:)?//", each)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(.?https?:|@import", sheet.read_text()), sheet


@pytest.mark.end_to_end
def test_the_page_of_the_records_is_part_of_the_site(site):
    assert 'href="report.html"' in (site / "index.html").read_text()
    assert "<title>EqCo: results</title>" in (site / "report.html").read_text()


@pytest.mark.end_to_end
def test_docstrings_become_equations_examples_and_lists(site):
    page = (site / "api" / "losses.html").read_text()
    assert "<math" in page
    assert ".. math" not in page
    assert "&gt;&gt;&gt;" in page
    assert "<blockquote>" not in page, "an example outside a block of code"
    assert "Parameters:" in page


@pytest.mark.end_to_end
def test_the_search_works_from_the_file_system(site, browser):
    """As someone has it who opens site/index.html, with no server."""
    page = browser.new_page()
    page.set_default_timeout(180_000)  # ms: a busy machine is no failure
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").press_sequentially("saturation")  # it hears keys alone
    page.wait_for_selector(".md-search-result__item")
    assert "how_it_works" in page.inner_html(".md-search-result__list")
    assert complaints == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)


def test_the_reference_has_every_public_name():
    named = {
        name.rsplit(".", 1)[1]
        for path in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: (eqco\.[\w.]+)$", path.read_text(), re.MULTILINE)
    }
    assert set(eqco._HOMES) <= named, sorted(set(eqco._HOMES) - named)


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_a_docstring_is_rewritten_as_markdown():
    pytest.importorskip("latex2mathml", reason='the site needs pip install ".[docs]"')
    as_markdown = load_script("docstrings").as_markdown
    text = "The margin.\n\n.. math:: m = \\tau\n    + 1\n\nWords.\n\n>>> 1 + 1\n2\n\nMore."
    first, *_ = rewritten = as_markdown(text).split("\n\n")
    assert first == "The margin."
    assert rewritten[1].startswith('<div class="equation"><math')
    assert rewritten[1].endswith("</math></div>")
    assert rewritten[-3:] == ["Words.", "```pycon\n>>> 1 + 1\n2\n```", "More."]
