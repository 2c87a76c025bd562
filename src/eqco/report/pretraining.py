"""A training as pictures: f̂, gradient norm and kNN accuracy beside their references."""

from collections.abc import Sequence
from pathlib import Path

from eqco.experiments.pretraining import REFERENCES, compare, interval_of
from eqco.report.charts import Chart, Series
from eqco.report.style import COLOURS, INK, panels, save
from eqco.report.table_charts import colours_of, series_of_cells
from eqco.runtime.records import Record

__all__ = ["charts_pretraining", "finding_pretraining", "plot_pretraining"]

SHADES = {"pixels": "#bbbbbb", "random": "#8a8a8a", "trained": COLOURS["eqco"]}


def plot_pretraining(records: Sequence[Record], path: Path) -> Path:
    """Curves of every seed, and bars of the mean accuracy with 95 % intervals."""
    figure, axes = panels(3, width=3.3, height=3.2)
    kind = records[0].curves["information_kind"]
    for record in records:
        for panel, name in zip(axes, ("information", "gradient_norm_mean"), strict=False):
            steps, values = zip(*record.curves[name], strict=True)
            panel.plot(steps, values, color=COLOURS["eqco"], linewidth=1.4, alpha=0.8)
    axes[0].set_title(f"f̂, nats ({kind})", fontsize=10, color=INK)
    axes[1].set_title("mean ‖dL/dq‖", fontsize=10, color=INK)
    for panel in axes[:2]:
        panel.set_xlabel("step", fontsize=9, color=INK)
    axes[1].set_ylim(bottom=0)
    for place, name in enumerate(REFERENCES):
        found = interval_of(records, name)
        mean = 100 * found.value
        reach = [[mean - 100 * found.low], [100 * found.high - mean]]
        axes[2].bar(place, mean, yerr=reach, color=SHADES[name], capsize=4, width=0.65)
        axes[2].text(place, mean / 2, f"{mean:.1f}", ha="center", fontsize=9, color="white")
    axes[2].set_xticks(range(len(REFERENCES)), list(REFERENCES.values()), fontsize=8)
    neighbours = records[0].recipe["neighbours"]
    axes[2].set_title(f"kNN accuracy, % (k = {neighbours})", fontsize=10, color=INK)
    seeds = len({record.seed for record in records})
    figure.text(
        0.995,
        0.005,
        f"{records[0].recipe['data']}, profile {records[0].profile}, "
        f"{seeds} seed{'s' * (seeds > 1)}; whiskers: 95 % over test images",
        ha="right",
        fontsize=7,
        color="#888888",
    )
    return save(figure, path)


def charts_pretraining(records: Sequence[Record]) -> list[Chart]:
    """For the page: the curves of every seed, and accuracies."""
    kind = records[0].curves["information_kind"]
    cells = compare(records)
    bars = series_of_cells("accuracy", cells, range(len(cells)), look="bars")
    colours = colours_of([f"seed {record.seed}" for record in records])
    titles = {"information": f"f̂, nats ({kind})", "gradient_norm_mean": "mean ‖dL/dq‖"}
    return [
        Chart(
            title=cells[0].column,
            x_label="",
            y_label="",
            series=bars,
            categories=[cell.row for cell in cells],
            from_zero=True,
        ),
        *(
            Chart(
                title=title,
                x_label="step",
                y_label="",
                series=[
                    Series(name=f"seed {record.seed}", points=record.curves[name], colour=colour)
                    for record, colour in zip(records, colours, strict=True)
                ],
            )
            for name, title in titles.items()
        ),
    ]


def finding_pretraining(records: Sequence[Record]) -> str:
    """What training reached, beside what it had to beat."""
    pixels, random, trained = (cell.mean for cell in compare(records))
    recipe = records[0].recipe
    negatives = recipe["training"]["method"]["count"]
    return (
        f"SiMo with {negatives} negatives reaches {trained:.1f} % by nearest neighbours on "
        f"{recipe['data']}; raw pixels reach {pixels:.1f} %, random weights {random:.1f} %."
    )
