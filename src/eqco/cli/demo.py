"""`eqco demo`: see that it works, in a few minutes, with nothing but this package."""

from pathlib import Path

from rich.console import Console

from eqco.experiments.rule import rule_against_k
from eqco.report.rule import plot_rule, print_rule


def run(*, out: Path = Path("demo")) -> None:
    """Show the rule m = τ·log(α/K) at work.

    Args:
        out: folder for the plots.

    Examples:
        eqco demo
        eqco demo --out /tmp/look
    """
    console = Console()
    alpha, temperature = 4096.0, 0.2
    console.print("1. The rule on random embeddings", style="bold")
    points = rule_against_k(
        [4, 16, 64, 256, 1024, 4096, 16384], alpha=alpha, temperature=temperature
    )
    print_rule(console, points)
    console.print(f"written: {plot_rule(points, alpha, out / 'rule.png')}", markup=False)
