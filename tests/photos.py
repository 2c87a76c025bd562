"""Photos in a folder, and a short training on them."""

from eqco.assembly import train
from eqco.data import open_source
from eqco.recipes import named_recipe, with_settings


def save_photos(folder, count, *, classes=None):
    """The first embedded photos as files; in folders of their own where classes are wanted."""
    images = open_source("groceries")["train"].images
    for number in range(count):
        place = folder / f"class-{number % classes}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        # spread over the set, whose neighbours are of one class
        images.read(number * len(images) // count).save(place / f"{number:04d}.jpg", quality=95)
    return folder


def train_shortly(data, out, **settings):
    """A run of a step or two."""
    often = {"log_every": 1, "diagnose_every": 1, "num_queries": 16, "count": 4, "alpha": None}
    recipe = with_settings(named_recipe("simo", "smoke"), **{**often, **settings})
    train(data, recipe, out=out, show=lambda report: None)
    return out
