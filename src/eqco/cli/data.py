"""`eqco data`: what a data set holds, before anything is trained on it."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from eqco.data.images import MemoryImages
from eqco.data.opening import DEFAULT_ROOT, open_source
from eqco.data.pictures import check_picture_name, contact_sheet, save_picture
from eqco.data.sources import Source
from eqco.runtime.atomic_files import refuse_existing, refuse_unwritable


def run(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "groceries",
    /,
    *,
    check: Literal["header", "decode"] = "decode",
    unlabelled: bool = False,
    channels: int | None = None,
    split_seed: int = 0,
    memory_gib: float = 2.0,
    root: Path = DEFAULT_ROOT,
    sheet: Path = Path("contact-sheet.png"),
    overwrite: bool = False,
) -> None:
    """Describe a data set: splits, classes, sizes, unreadable files, and a contact sheet.

    Names: groceries, groceries-coarse, signs (built in), cifar10, cifar100, stl10, fashion-mnist,
    imagenette, imagenet. A folder may hold train, val (also valid, validation, dev), test,
    unlabelled; or a folder per class; or images alone.

    Args:
        source: a folder of images, a CSV or Parquet list, "train-{0000..0031}.tar", hf:PATH or
            hf:NAME as for `eqco train`, or a data set by name.
        check: decode every image, or read the headers alone (fast; misses damage further in).
        unlabelled: take all images of a folder without classes.
        channels: bands of every image. By default pictures (8-bit, grey or colour) are colour; npy
            of (height, width) or (height, width, bands), 16-bit grey and TIFFs of bands are taken
            as they are. 1 keeps grey pictures grey; 3 makes all pictures colour.
        split_seed: decides train, val and test where a folder has classes alone.
        memory_gib: images of one size are kept decoded in memory up to this size.
        root: where data sets by name are downloaded to.
        sheet: file for the contact sheet.
        overwrite: replace that file.

    Examples:
        eqco data
        eqco data photos/ --check header
        eqco data cifar10 --sheet cifar10.png
    """
    check_picture_name(sheet)
    refuse_existing(sheet, overwrite=overwrite, option="--sheet")
    refuse_unwritable(sheet, option="--sheet")
    found = open_source(
        source,
        root=root,
        unlabelled=unlabelled,
        channels=channels,
        split_seed=split_seed,
        memory_gib=memory_gib,
        check=check,
        on_unreadable="skip",
    )
    console = Console()
    describe(console, found)
    save_picture(contact_sheet(next(iter(found.splits.values()))), sheet)
    console.print(f"written: {sheet}", markup=False)


def describe(console: Console, source: Source) -> None:
    """Print what there is and what is left out."""
    table = Table("split", "images", "classes", "images per class", "kept", title=source.name)
    for split in source.splits.values():
        per_class = "unlabelled"
        if split.labels is not None:
            counts = Counter(split.labels.tolist()).values()
            per_class = f"{min(counts)} to {max(counts)}"
        kept = "in memory" if isinstance(split.images, MemoryImages) else "on disk"
        classes = str(len(split.classes)) if split.classes else "–"
        table.add_row(split.name, f"{len(split):,}", classes, per_class, kept)
    console.print(table)
    if source.classes:
        names = ", ".join(source.classes[:12]) + (" …" if len(source.classes) > 12 else "")
        console.print(f"classes: {names}", markup=False)
    layout = next(iter(source.splits.values())).images.layout
    console.print(f"every image: {layout}", markup=False)
    if source.sizes:
        common = sorted(source.sizes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{width} x {height} ({n:,})" for (height, width), n in common[:5])
        more = f", and {len(common) - 5} more" if len(common) > 5 else ""
        console.print(f"sizes (width x height): {shown}{more}", markup=False)
    if source.ignored:
        kinds = Counter(Path(name).suffix or "no suffix" for name in source.ignored)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        console.print(f"ignored by their names: {shown}", markup=False)
    for note in source.notes:
        console.print(note, markup=False, highlight=False)
    console.print(f"unreadable: {len(source.unreadable)}", markup=False)
    for error in source.unreadable:
        console.print(f"  {error.name}: {error.reason}", markup=False, highlight=False)
