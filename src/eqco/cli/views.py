"""`eqco views`: what the encoder will see, as a picture."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from eqco.data.opening import DEFAULT_ROOT, open_source
from eqco.data.pictures import check_picture_name, save_picture, views_picture
from eqco.data.pipelines import blur_radius, find_pipeline
from eqco.runtime.atomic_files import refuse_existing, refuse_unwritable
from eqco.runtime.errors import InputError


def run(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "groceries",
    /,
    *,
    pipeline: str = "mocov2",
    size: int | None = None,
    split: str = "train",
    images: int = 8,
    views: int = 8,
    seed: int = 0,
    unlabelled: bool = False,
    channels: int | None = None,
    on_unreadable: Literal["error", "skip"] = "error",
    root: Path = DEFAULT_ROOT,
    out: Path = Path("views.png"),
    overwrite: bool = False,
) -> None:
    """Draw originals with their views, made by the code that makes them in training.

    Args:
        source: a folder of images, or a data set by name (see `eqco data --help`).
        pipeline: mocov1, mocov2, simo (the same), simclr, infomin, byol, mocov3 or linear;
            byol-second and mocov3-second make the second view.
        size: side of a view; by default the images' own, or 224 if they differ in size.
        split: which images.
        images: how many originals.
        views: how many views of each.
        seed: of the choice and the views.
        unlabelled: take all images of a folder without classes.
        channels: bands of every image (see `eqco data --help`); of more than three, the first three
            are shown as red, green and blue.
        on_unreadable: stop at an image that cannot be read, or leave it out.
        root: where data sets by name are downloaded to.
        out: file for the picture.
        overwrite: replace that file.

    Examples:
        eqco views
        eqco views photos/ --pipeline simclr --size 96
    """
    check_picture_name(out)
    refuse_existing(out, overwrite=overwrite)
    refuse_unwritable(out)
    chosen = find_pipeline(pipeline)
    if views < 1:
        raise InputError(f"views={views}; draw at least 1.")
    data = open_source(
        source,
        root=root,
        unlabelled=unlabelled,
        channels=channels,
        check="none",
        on_unreadable=on_unreadable,
    )
    found = data[split]
    side = size
    if side is None:
        side = min(found.size) if found.size else 224
    blurred = f"blur {2 * blur_radius(side) + 1} px" if chosen.blur_probability else "no blur"
    picture = views_picture(
        found,
        chosen,
        size=side,
        seed=seed,
        num_images=images,
        num_views=views,
        on_unreadable=on_unreadable,
        title=f"{Path(source).name}, {pipeline} at {side} px ({blurred}): original, then its views",
    )
    save_picture(picture, out)
    console = Console()
    if left_out := chosen.left_out(data.channels):
        names = ", ".join(left_out)
        console.print(
            f"{data.channels} bands; left out, since they need three colour channels: {names}",
            markup=False,
        )
    console.print(f"written: {out}", markup=False)
