"""Photos that can be searched: an index knows its encoder, its photos, and what it left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from eqco.assembly.loaded import prepare_image
from eqco.assembly.weights import open_weights
from eqco.data import EvaluationLoader, Split
from eqco.data.albums import Album, open_album
from eqco.data.bands import to_picture
from eqco.data.decoding import UnreadableImageError, find_layout, read_image
from eqco.data.opening import DEFAULT_ROOT, kind_of, resolved_name
from eqco.encoders import Precision, autocast_to, in_channels_of
from eqco.evaluation.embedding import Embedding, embed
from eqco.evaluation.features import fingerprint
from eqco.evaluation.similarity import VectorIndex, group_pairs
from eqco.runtime.atomic_files import write_text
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import read_object, write_json

__all__ = ["Match", "PhotoIndex", "build_index", "open_index"]

FACTS, VECTORS, UNREADABLE = "index.json", "vectors.npz", "unreadable.txt"
FORMAT = "eqco index 1"
SAMPLE = 256  # photos whose copies say how alike near-duplicates are
BORDER = 16  # a copy has lost a sixteenth at each side
QUANTILE = 0.05
# Pixels along each side of small pictures, and how alike they must be: chosen on the embedded
# photos, where it parts different ones from copies that have lost up to a tenth at each side.
SMALL, SAME = 8, 0.95


@dataclass(frozen=True)
class Match:
    """A photo that was found, and its similarity to what was searched for."""

    name: str
    similarity: float
    number: int
    """Its place in the index."""


def build_index(
    backbone: nn.Module,
    image_size: int,
    photos: Path | str,
    out: Path | str,
    *,
    weights: str | None,
    network: dict[str, Any] | None = None,
    overwrite: bool = False,
    on_unreadable: Literal["error", "skip"] = "skip",
    batch_size: int = 256,
    workers: int = 0,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    root: Path = DEFAULT_ROOT,
    show: Callable[[int], None] = lambda count: None,
) -> "PhotoIndex":
    """Make the photos of a folder searchable, or resume where it was stopped.

    Args:
        backbone: images to features.
        image_size: pixels along each side that it is given.
        photos: a folder of any layout, or a data set by name.
        out: folder of the index.
        weights: where the encoder is opened from again; None: it will be given.
        network: what `open_weights` needs beside.
        overwrite: replace an index.
        on_unreadable: leave out photos that cannot be read and list them, or stop at the first.
        batch_size, workers, device, precision: of the computation.
        root: where data sets by name are kept.
        show: gets the number of photos of each part that is done.
    """
    out, name = Path(out), resolved_name(str(photos))  # as it is opened again, with equal names
    facts = out / FACTS
    if facts.exists() and not overwrite:
        raise InputError(f"{out} holds an index. Pass --overwrite, or choose another --out.")
    names = [each.name for each in out.iterdir()] if out.is_dir() else []
    others = [each for each in names if not each.startswith((FACTS, VECTORS, UNREADABLE))]
    if not facts.exists() and others:
        raise InputError(f"{out} holds {min(others)} and is no index. Choose another --out.")
    albums = open_album(name, root=root, channels=in_channels_of(backbone))
    how = Embedding(
        backbone=backbone,
        size=image_size,
        batch_size=batch_size,
        normalise=True,
        workers=workers,
        device=device,
        on_unreadable=on_unreadable,
        precision=precision,
    )
    if not facts.exists() and UNREADABLE in names:
        (out / VECTORS).unlink(missing_ok=True)  # of an index that was stopped before its end
    done = embed(how, albums, out / VECTORS, overwrite=overwrite, show=show)
    facts.unlink(missing_ok=True)  # what is half replaced is no index
    write_text(out / UNREADABLE, "".join(f"{line}\n" for line in done.unreadable))
    write_json(
        facts,
        {
            "format": FORMAT,
            "weights": weights,
            "network": network or {},
            "fingerprint": fingerprint(backbone),
            "image_size": image_size,
            "precision": precision,
            "photos": name,
            "count": done.count,
            "unreadable": len(done.unreadable),
            "copies": similarity_of_copies(how, albums, mean_vector(out / VECTORS)),
        },
    )
    return open_index(out, encoder=backbone)


def mean_vector(vectors: Path) -> Tensor:
    """The mean of the photos' unit vectors, (D,): what all of them have in common."""
    with np.load(vectors) as content:
        features = torch.from_numpy(content["features"]).double()
    return (features.mean(dim=0) if len(features) > 1 else torch.zeros_like(features[0])).float()


@torch.no_grad()
def similarity_of_copies(how: Embedding, albums: Sequence[Album], mean: Tensor) -> float:
    """How alike a photo and a slightly cut copy are: 95 % of a sample of photos are that alike.

    It differs from encoder to encoder, so that a fixed limit for near-duplicates would mean little.
    """
    found: list[Tensor] = []
    step = max(1, sum(map(len, albums)) // SAMPLE)
    for album in albums:
        loader = EvaluationLoader(
            Split("sample", album.images.subset(range(0, len(album), step)), None),
            size=how.size,
            batch_size=how.batch_size,
            device=how.device,
            on_unreadable="skip",
        )
        for images, _ in loader:
            whole, cut = (
                unit_vectors(how.backbone, each, how.precision) - mean
                for each in (images, without_border(images))
            )
            found.append(F.cosine_similarity(whole, cut))
    return round(float(torch.cat(found).quantile(QUANTILE)), 6)


def unit_vectors(backbone: nn.Module, images: Tensor, precision: Precision) -> Tensor:
    """What an index keeps of prepared images, (N, D), on the CPU."""
    with autocast_to(precision, images.device):
        features: Tensor = backbone(images)
    return F.normalize(features.float().cpu(), dim=1)


def without_border(images: Tensor) -> Tensor:
    """Images (N, C, S, S) that have lost a sixteenth at each side, as large as before."""
    size = images.shape[-1]
    border = max(1, size // BORDER)
    if size <= 2 * border:
        return images
    cut = images[..., border : size - border, border : size - border]
    return F.interpolate(cut, size=(size, size), mode="bilinear", align_corners=False)


def open_index(
    path: Path | str,
    *,
    encoder: nn.Module | None = None,
    weights: Path | str | None = None,
    photos: Path | str | None = None,
    device: torch.device | str = "cpu",
    use_faiss: bool | None = None,
) -> "PhotoIndex":
    """An index that `eqco index` or `encoder.index` has written.

    Args:
        path: its folder.
        encoder: the encoder it was made with, if that is at hand (its backbone will do).
        weights: where that encoder is now, if it was moved; any other is refused.
        photos: where the photos are now, if they were moved.
        device: where to compute.
        use_faiss: None: where it is installed; the answers are the same.
    """
    folder = Path(path)
    facts = folder / FACTS
    if not facts.exists():
        raise InputError(f"{folder} holds no index. Make one with: eqco index RUN PHOTOS.")
    found = read_object(facts)
    if found.get("format") != FORMAT:
        raise InputError(
            f"{facts} is of format {found.get('format')!r}, not {FORMAT!r}; index anew."
        )
    backbone = getattr(encoder, "backbone", encoder)
    if backbone is not None:
        refuse_another(found, backbone, folder, "the encoder that was given")
    return PhotoIndex(folder, found, backbone, weights, photos, device, use_faiss)


def refuse_another(facts: dict[str, Any], backbone: nn.Module, folder: Path, called: str) -> None:
    """Refuse an encoder that the index was not made with: its vectors mean something else."""
    if fingerprint(backbone) != facts["fingerprint"]:
        raise InputError(
            f"{folder} was made with {facts['weights'] or 'an encoder given in Python'}, and "
            f"{called} has other weights (trained further, or another run). Give the encoder it "
            f"was made with, or index the photos again."
        )


def small_pictures(picture: Image.Image) -> Tensor:
    """A picture and what is left without its border, (2, 3·8²), of mean 0 and length 1."""
    width, height = picture.size
    cut = (width / BORDER, height / BORDER, width - width / BORDER, height - height / BORDER)
    small = [
        np.asarray(picture.resize((SMALL, SMALL), Image.Resampling.BOX, box), dtype=np.float32)
        for box in ((0, 0, width, height), cut)
    ]
    rows = torch.from_numpy(np.stack(small)).flatten(1)
    return F.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)


def look_same(one: Tensor, other: Tensor) -> bool:
    """Whether the correlation of two photos is `SAME` or more, one of them cut or neither.

    >>> one, other = (F.normalize(torch.randn(2, 192), dim=1) for _ in range(2))
    >>> look_same(one, one), look_same(one, other)
    (True, False)
    """
    return bool((one @ other.T).max() >= SAME)


class PhotoIndex:
    """Photos to search by an encoder; `open_index` and `build_index` make it.

    Similarity is the cosine of features less the mean of all photos: 1 for the same photo, about 0
    for unrelated ones, also where the encoder gives all photos much in common.
    """

    def __init__(
        self,
        path: Path,
        facts: dict[str, Any],
        backbone: nn.Module | None,
        weights: Path | str | None,
        photos: Path | str | None,
        device: torch.device | str,
        use_faiss: bool | None,
    ):
        self.path, self.facts, self.device = path, facts, device
        self.photos = str(facts["photos"] if photos is None else photos)
        self.weights = facts["weights"] if weights is None else str(weights)
        self.opened = backbone
        self.mean = mean_vector(path / VECTORS)
        with np.load(path / VECTORS) as content:
            self.names: list[str] = content["names"].tolist()
            features = torch.from_numpy(content["features"])
        self.vectors = VectorIndex(features - self.mean, use_faiss=use_faiss)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"PhotoIndex({str(self.path)!r}, {len(self):,} photos of {self.photos})"

    @cached_property
    def backbone(self) -> nn.Module:
        """The encoder it was made with, opened when it is needed; another is refused."""
        if self.opened is not None:
            return self.opened.to(self.device).eval()
        if self.weights is None:
            raise InputError(
                f"{self.path} was made with an encoder given in Python; give the same as encoder=…"
            )
        found = open_weights(self.weights, **self.facts["network"])
        refuse_another(self.facts, found.backbone, self.path, self.weights)
        return found.backbone.to(self.device)

    @torch.no_grad()
    def search(self, photo: Any, count: int = 10) -> list[Match]:
        """The photos most like one, which may be a path, a PIL image, an array or a tensor."""
        bands, size = in_channels_of(self.backbone), self.facts["image_size"]
        prepared = prepare_image(photo, bands, size).to(self.device)
        precision = self.facts.get("precision", "float32")  # indexes did not always tell
        (unit,) = unit_vectors(self.backbone, prepared, precision)
        return [self.match(*found) for found in self.vectors.search(unit - self.mean, count)]

    def duplicates(self, at_least: float | None = None) -> list[list[Match]]:
        """Groups of near-duplicates, closest first; similarities are with the first of each group.

        Without `at_least`, pairs as alike as 95 % of the photos are to a slightly cut copy, whose
        small pictures are the same as well: few encoders are so good that one can do without.
        """
        least = self.facts["copies"] if at_least is None else at_least
        if at_least is not None and not 0 < at_least <= 1:
            raise InputError(f"at_least={at_least}; it must be greater than 0 and at most 1.")
        if least <= 0:
            raise InputError(
                "this encoder does not know its own photos again when they are slightly cut (their "
                f"similarity is {least:.2f}), so that it finds no copies. Train it longer, or give "
                "a similarity of your own, such as --at-least 0.9."
            )
        pairs = self.vectors.pairs(least)
        if at_least is None:
            pairs = self.confirmed(pairs)
        return [[self.match(*found) for found in group] for group in group_pairs(pairs)]

    def confirmed(self, pairs: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
        """The pairs of which small pictures are the same, too."""
        matches = [self.match(number, 1.0) for number in sorted({n for p in pairs for n in p[:2]})]
        gone = [match.name for match in matches if self.is_moved(match)]
        if gone:
            raise InputError(
                f"{len(gone)} photos are not in {self.photos} any more, the first being {gone[0]}, "
                f"so that nobody can look at them. Give --folder if they were moved, index what is "
                f"there again, or let the encoder decide with --at-least {self.facts['copies']}."
            )
        small = {match.number: small_pictures(self.picture(match)) for match in matches}
        return [pair for pair in pairs if look_same(small[pair[0]], small[pair[1]])]

    def match(self, number: int, similarity: float) -> Match:
        """A photo by its place."""
        return Match(self.names[number], similarity, number)

    def file(self, match: Match) -> Path | None:
        """Where the photo is; None where the photos are no folder."""
        if kind_of(self.photos) != "folder":
            return None
        return Path(self.photos).expanduser() / match.name

    def is_moved(self, match: Match) -> bool:
        """Whether the file is not where it was when it was indexed."""
        file = self.file(match)
        return file is not None and not file.is_file()

    @cached_property
    def albums(self) -> dict[str, tuple[Album, int]]:
        """Of photos that are no folder: each image by its name."""
        return {
            name: (album, number)
            for album in open_album(self.photos)
            for number, name in enumerate(album.names)
        }

    def picture(self, match: Match) -> Image.Image:
        """The photo to look at, as a PIL image; `UnreadableImageError` if it cannot be had."""
        file = self.file(match)
        if file is None:
            album, number = self.albums[match.name]
            return to_picture(album.images.read(number))
        if not file.is_file():
            raise UnreadableImageError(str(file), "it is not there any more")
        return to_picture(read_image(file, find_layout([str(file)])))
