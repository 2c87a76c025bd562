"""The page's colours, those of our plots among them, as variables of its style sheet."""

from eqco.report.style import COLOURS, DARK_COLOURS, SHADES, shade

__all__ = ["colours", "palette"]

LIGHT = {
    "ground": "#ffffff",
    "card": "#f7f9fc",
    "code": "#f0f3f8",
    "ink": "#22262c",
    "soft": "#464d57",
    "muted": "#626b77",
    "line": "#d9dee6",
    "hair": "#edf0f4",
    "on-eqco": "#ffffff",
}
DARK = {
    "ground": "#14171c",
    "card": "#1a1f27",
    "code": "#232a34",
    "ink": "#e8ebf0",
    "soft": "#c3c9d3",
    "muted": "#98a2b1",
    "line": "#333b48",
    "hair": "#262c36",
    "on-eqco": "#10151d",
}


def colours(*, dark: bool) -> dict[str, str]:
    """Every colour by name."""
    shades = {name.replace(" ", "-"): shade(name, dark=dark) for name in SHADES}
    return (DARK | DARK_COLOURS if dark else LIGHT | COLOURS) | shades


def palette() -> str:
    """The variables, for light screens and paper, and for dark screens."""
    light, dark = (
        ":root{" + "".join(f"--{name}:{value};" for name, value in colours(dark=dim).items()) + "}"
        for dim in (False, True)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
