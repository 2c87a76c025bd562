"""The page in a real browser: its numbers are those of eqco.theory and of the records."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eqco.cli.main import main
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.experiment import profile_records
from eqco.report.catalog import EXHIBITS
from eqco.report.page import write_page
from eqco.runtime.records import Record, read_records
from eqco.theory import (
    eqco_margin,
    gradient_bound,
    info_nce,
    information_bound,
    positive_prior,
    posterior,
    scaled_learning_rate,
)

pytestmark = pytest.mark.end_to_end
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(RESULTS, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def visit(browser):
    """Opens a page; at the end nothing may have gone wrong in it, nor been fetched."""
    contexts, complaints, requests = [], [], []

    def open_page(path, *, width=1200, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(180_000)  # ms: a busy machine is no failure
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert len(requests) == len(contexts)


def set_slider(page, name, place):
    page.eval_on_selector(
        f"#{name}",
        "(input, place) => { input.value = place; input.dispatchEvent(new Event('input')); }",
        str(place),
    )


def value(page, selector):
    return float(page.get_attribute(selector, "data-value"))


def cosines(num_negatives):
    """The explorer's query: positive 0.8, hardest negative 0.5, all others 0."""
    negative = torch.zeros(1, num_negatives, dtype=torch.float64)
    negative[0, 0] = 0.5
    return torch.tensor([0.8], dtype=torch.float64), negative


@pytest.mark.parametrize(
    "places",
    [
        {"K": 8, "N": 16, "alpha": 32, "tau": 0.2},
        {"K": 0, "N": 4, "alpha": 0, "tau": 1},
        {"K": 32, "N": 26, "alpha": 40, "tau": 0.05},
        {"K": 13, "N": 9, "alpha": 5, "tau": 0.07},
    ],
    ids=["SiMo", "least", "most", "margin below zero"],
)
def test_sliders_move_the_numbers_to_those_of_the_theory(visit, report, places):
    page = visit(report)
    for name, place in places.items():
        set_slider(page, name, place)
    K, N, alpha, tau = (value(page, f"#{name}-shown") for name in ("K", "N", "alpha", "tau"))
    assert [K, N, alpha] == [round(2 ** (places[name] / 2)) for name in ("K", "N", "alpha")]
    assert tau == places["tau"]
    margin = eqco_margin(alpha, int(K), tau)
    positive, negative = cosines(int(K))
    expected = {
        "margin": margin,
        "rate": scaled_learning_rate(0.03, int(N)),
        "ceiling": information_bound(torch.zeros(()).double(), alpha),
        "ceiling-plain": information_bound(torch.zeros(()).double(), K),
        "prior": positive_prior(alpha),
        "prior-plain": positive_prior(K),
    }
    for suffix, m in (("", margin), ("-plain", 0.0)):
        missed = 1 - posterior(positive, negative, temperature=tau, margin=m)
        share = torch.softmax(negative / tau, dim=1)[:, 0]
        expected[f"hardest{suffix}"] = missed * share
        expected[f"gradient{suffix}"] = gradient_bound(
            positive, negative, temperature=tau, margin=m
        )
    for quantity, theory in expected.items():
        shown = value(page, f'[data-quantity="{quantity}"]')
        assert math.isclose(shown, float(theory), rel_tol=1e-9, abs_tol=1e-12), quantity
        text = page.text_content(f'[data-quantity="{quantity}"]').split()[0]
        assert math.isclose(float(text), float(theory), rel_tol=6e-3, abs_tol=1e-12), quantity


def test_every_preset_prints_a_command_that_works(visit, report, capsys):
    page = visit(report)
    presets = page.query_selector_all(".presets button")
    assert len(presets) == 5
    for preset in presets:
        preset.click()
        command = page.text_content("#plan")
        assert main(shlex.split(command)[1:]) == 0, command


def drawn(page, place):
    """The charts below a place: series name -> points, chart by chart."""
    return page.eval_on_selector_all(
        f"{place} .chart",
        """figures => figures.map(figure => Object.fromEntries(
            [...figure.querySelectorAll('[data-series]')].map(
                group => [group.dataset.series, JSON.parse(group.dataset.points)])))""",
    )


def test_the_live_chart_is_the_theory_with_and_without_the_rule(visit, report):
    page = visit(report)
    set_slider(page, "alpha", 16)
    set_slider(page, "tau", 0.1)
    for tab, theory in (("Gradient", gradient_bound), ("Loss", info_nce)):
        page.click(f".tabs button:text-is('{tab}')")
        (chart,) = drawn(page, "#live-chart")
        for name, points in chart.items():
            assert [k for k, _ in points] == [2**power for power in range(17)]
            for k, shown in points[:13]:
                margin = eqco_margin(256, k, 0.1) if name == "EqCo" else 0.0
                expected = theory(*cosines(k), temperature=0.1, margin=margin)
                assert math.isclose(shown, float(expected), rel_tol=1e-9), (tab, name, k)


@pytest.mark.parametrize(
    ("name", "profile"),
    [("tab5", "paper"), ("study-bound", "desk"), ("cifar10-simo", "desk"), ("demo", "desk")],
)
def test_charts_have_the_recorded_points(visit, report, name, profile):
    page = visit(report)
    charts = EXHIBITS[name].charts(profile_records(EXPERIMENTS[name], profile, RESULTS))
    found = drawn(page, f'[data-charts="{name}/{profile}"]')
    assert len(found) == len(charts)
    for chart, here in zip(charts, found, strict=True):
        assert list(here) == [series.name for series in chart.series]
        for series in chart.series:
            assert here[series.name] == [list(point) for point in series.points]


def test_a_point_of_table_5_is_the_mean_of_its_records(visit, report):
    page = visit(report)
    chart = drawn(page, '[data-charts="tab5/paper"]')[0]
    records = read_records(RESULTS, "tab5", "paper")
    values = [r.metrics["eqco, information 2"] for r in records if r.recipe["pairs"] == 64]
    assert chart["EqCo (estimate)"][0] == [64, pytest.approx(sum(values) / len(values))]
    assert chart["EqCo (estimate), paper"][0] == [64, 1.9]


def test_a_series_is_hidden_and_shown_again_by_its_button(visit, report):
    page = visit(report)
    place = '[data-charts="tab5/paper"]'
    button = page.locator(f"{place} .legend button", has_text="InfoNCE (bound), paper")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert all("InfoNCE (bound), paper" not in chart for chart in drawn(page, place))
    button.click()
    assert all("InfoNCE (bound), paper" in chart for chart in drawn(page, place))


def test_pointer_and_arrow_keys_read_the_values(visit, report):
    page = visit(report)
    figure = page.locator('[data-charts="tab5/paper"] .chart').first
    tip = figure.locator(".tip")
    assert not tip.is_visible()
    figure.locator("svg").hover()
    assert "K = " in tip.inner_text()
    figure.locator("svg").press("Home")
    text = tip.inner_text()
    assert "K = 64" in text
    assert "1.9" in text
    figure.locator("svg").press("End")
    assert "K = 512" in tip.inner_text()
    figure.locator("svg").press("Escape")
    assert not tip.is_visible()


@pytest.mark.parametrize("width", [300, 360, 768, 1200])
def test_nothing_is_wider_than_the_screen(visit, report, width):
    page = visit(report, width=width, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_dark_page_is_dark_and_the_printed_one_is_not(visit, report):
    page = visit(report, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 23, 28)"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_every_control_has_a_name_and_every_place_of_a_link_exists(visit, report):
    page = visit(report)
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, svg[tabindex]')].filter(node =>
            !(node.textContent.trim() || node.ariaLabel || node.labels?.length)).length"""
    )
    assert nameless == 0
    lost = page.evaluate(
        """[...document.querySelectorAll('a[href^="#"]')].filter(link =>
            !document.getElementById(link.getAttribute('href').slice(1))).length"""
    )
    assert lost == 0


def test_what_records_say_is_shown_and_never_run(visit, tmp_path):
    evil = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
    for record in read_records(RESULTS, "tab5", "paper"):
        kinds = {**record.curves["kind"], "eqco, information 2": evil}
        replace(
            record,
            curves={**record.curves, "kind": kinds},
            code=evil,
            hardware={**record.hardware, "processor": evil},
            finished=evil,
        ).write(tmp_path)
    Record(
        experiment="bench-evil",
        profile="desk",
        recipe={},
        seed=0,
        metrics={evil: 1.0},
        code=evil,
        hardware={"processor": evil, "cores": 1, "torch": evil},
        seconds=1.0,
    ).write(tmp_path)
    page = visit(write_page(tmp_path, tmp_path / "report.html"))
    page.locator('[data-charts="tab5/paper"] svg[tabindex]').first.press("Home")
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert evil in page.text_content("#benchmarks")
    assert evil in page.text_content('[data-charts="tab5/paper"] .legend')
    data = json.loads(page.text_content("#data"))
    assert evil in json.dumps(data)
