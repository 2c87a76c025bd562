"""What a training ends with on the screen."""

import io
import shlex
from types import SimpleNamespace

from rich.console import Console

from eqco.assembly.assessment import Undecided
from eqco.cli.train import parse
from eqco.recipes import named_recipe, recipe_to_dict, with_settings
from eqco.report.assessment import (
    describe_information,
    how_to_test,
    print_self_consistency,
    too_few,
    unknown_data,
    warnings,
)
from eqco.runtime.run_directory import RunDirectory


def assessed(not_beaten=(), *undecided, images=1000):
    """What an assessment says of the pairs that are not beaten, on so many validation images."""
    return SimpleNamespace(
        not_beaten=not_beaten,
        undecided=undecided,
        val=SimpleNamespace(name="val"),
        val_features=SimpleNamespace(values=range(images)),
    )


def test_without_labels_the_commands_that_show_neighbours_are_named(tmp_path):
    """In one line, however narrow the terminal, and with a path that the shell takes as one."""
    place = tmp_path / "run"
    RunDirectory(place).start(
        {}, {"source": "/home/me/my photos", "data": "my photos", "images": 9}
    )
    stream = io.StringIO()
    begun = SimpleNamespace(source=SimpleNamespace(splits={}), backbone=None)
    print_self_consistency(Console(file=stream, width=40), begun, place)
    command = f"eqco index {place} '/home/me/my photos', then eqco search index PHOTO"
    assert command in stream.getvalue()


def test_information_is_never_negative_and_an_estimate_is_no_bound():
    said = [
        describe_information({"information": value, "information_kind": kind})
        for value, kind in ((1.2, "bound"), (1.2, "estimate"), (-3.48, "bound"), (-0.1, "estimate"))
    ]
    assert said[0] == "each view tells at least 1.20 nats of the other"
    assert said[1] == "each view tells about 1.20 nats of the other"
    assert said[2] == said[3] == "the loss shows no information yet of one in the other"


def test_a_warning_names_what_to_change_in_commands_that_are_understood(tmp_path):
    place = tmp_path / "my run"
    recipe = with_settings(named_recipe("simo", "folder"), num_queries=256)
    RunDirectory(place).start(
        recipe_to_dict(recipe),
        {"source": "/home/me/photos", "data": "photos", "images": 3000, "init": "first.pt"},
    )
    images = range(3000)
    begun = SimpleNamespace(
        recipe=recipe,
        source=SimpleNamespace(sizes={(80, 90): 3000}),
        loader=SimpleNamespace(split=images),
        backbone=None,
    )
    pairs = ("raw pixels", "knn"), ("raw pixels", "probe")
    found = assessed(pairs)
    first, *advice = warnings(found, begun, place)
    assert first == "warning: this encoder is not clearly better than raw pixels (kNN, probe)."
    longer, larger, batch = (shlex.split(line.partition("eqco train ")[2]) for line in advice)
    assert parse(longer).training.epochs == 2 * recipe.training.epochs
    assert parse(larger).data.image_size == 64
    assert parse(batch).training.num_queries == 64  # what the rules take for so many images
    assert [parse(each).out.resolve() for each in (larger, batch)] == [
        tmp_path / "my run-64px",
        tmp_path / "my run-n64",
    ]
    assert parse(batch).init == "first.pt"
    best = with_settings(recipe, num_queries=64, epochs=1000, warmup_epochs=0)
    begun.source.sizes = {(40, 90): 3000}
    _, nothing_known = warnings(found, SimpleNamespace(**{**vars(begun), "recipe": best}), place)
    assert nothing_known == "  another recipe: eqco recipes lists them"


def test_a_warning_names_calls_in_python_where_no_command_has_the_data_or_the_network(tmp_path):
    place, recipe = tmp_path / "run", with_settings(named_recipe("simo", "folder"), epochs=20)
    longer = f"init={str(place)!r}, epochs=40, out={f'{place}-extended'!r})"

    def said(began, backbone):
        RunDirectory(place).start({}, {"data": "photos", "images": 3000, **began})
        begun = SimpleNamespace(
            recipe=recipe,
            source=SimpleNamespace(sizes={(80, 90): 3000}),
            loader=SimpleNamespace(split=range(3000)),
            backbone=backbone,
        )
        found = assessed((("raw pixels", "knn"),))
        return [line.partition(":")[2].strip() for line in warnings(found, begun, place)[1:]]

    own = {"source": "/home/me/photos", "network": "Mine"}
    assert said(own, backbone=object()) == [f"eqco.train(…, encoder=…, {longer}"]
    first, larger, batch = said({"source": None, "network": None}, backbone=None)
    assert first == f"eqco.train(…, {longer}"
    assert larger.startswith("eqco.train(…, image_size=64, out=")
    assert batch.startswith("eqco.train(…, num_queries=64, out=")


def test_where_the_images_are_too_few_it_is_said_in_place_of_what_to_train(tmp_path):
    """What training cannot change is answered with more labels; the rest keeps its commands."""
    place, recipe = tmp_path / "run", named_recipe("simo", "folder")
    RunDirectory(place).start({}, {"source": "/home/me/photos", "data": "photos", "images": 40})
    begun = SimpleNamespace(
        recipe=recipe,
        source=SimpleNamespace(sizes={(80, 90): 40}),
        loader=SimpleNamespace(split=range(40)),
        backbone=None,
    )
    pairs = ("raw pixels", "knn"), ("colour histogram", "knn"), ("random weights", "knn")
    pixels, colours = (
        Undecided(pair=pair, winnable=False, images=images)
        for pair, images in zip(pairs, (60, 150), strict=False)
    )
    random = Undecided(pair=pairs[2], winnable=True, images=12)
    assert warnings(assessed(pairs[:2], pixels, colours, images=10), begun, place) == [
        "warning: too few labelled validation images (10) to tell whether this encoder is better "
        "than raw pixels (kNN); colour histogram (kNN): even one that is right on all of them "
        "would not be clearly ahead. Label more images: it takes about 150 for validation."
    ]
    found = assessed(pairs, pixels, random, images=10)
    few, ahead, warning, *advice = warnings(found, begun, place)
    assert "better than raw pixels (kNN):" in few
    assert ahead == (
        "warning: this encoder is ahead of random weights (kNN), but 10 labelled validation images "
        "are too few to tell that from chance. Label more images: it takes about 12 for "
        "validation, if it stays as far ahead."
    )
    assert warning == "warning: this encoder is not clearly better than colour histogram (kNN)."
    assert advice[0].startswith("  train longer:")


def test_the_images_to_label_are_counted_with_those_that_are_not_held_back():
    """A tenth of train is, where there is no split for validation."""
    undecided = [Undecided(pair=("raw pixels", "knn"), winnable=False, images=150)]
    (said,) = too_few(undecided, 100, held_back=True)
    assert said.endswith("it takes about 150 for validation, a tenth of 1,500 in train.")
    never = Undecided(pair=("raw pixels", "probe"), winnable=False, images=None)
    (said,) = too_few([*undecided, never], 100, held_back=True)
    assert said.endswith("would not be clearly ahead. Label more images.")


def test_of_few_images_in_general_it_is_warned_where_nothing_more_exact_is_said():
    general = "warning: differences between rows say little with fewer than 100 images."
    assert warnings(assessed(images=99), None, None) == [general]
    assert warnings(assessed(images=100), None, None) == []
    undecided = Undecided(pair=("raw pixels", "knn"), winnable=True, images=120)
    assert general not in warnings(assessed([undecided.pair], undecided, images=99), None, None)


def test_the_command_that_tests_is_named_where_there_are_test_images(tmp_path):
    RunDirectory(tmp_path).start({}, {"source": "/home/me/photos", "data": "photos", "images": 9})
    labelled, bare = SimpleNamespace(labels=[0]), SimpleNamespace(labels=None)

    def said(**splits):
        source = SimpleNamespace(splits=splits)
        return how_to_test(SimpleNamespace(source=source, backbone=None), tmp_path)

    assert said(train=labelled, test=labelled) == f"on test images: eqco eval {tmp_path}"
    assert said(train=labelled, val=labelled) == said(train=labelled, test=bare) == ""


def test_data_that_were_given_in_python_are_asked_for_in_commands(tmp_path):
    known = {"data": "photos", "images": 9}
    RunDirectory(tmp_path / "a").start({}, {"source": "/home/me/photos", **known})
    RunDirectory(tmp_path / "b").start({}, {"source": None, **known})
    assert [unknown_data(tmp_path / name) for name in "ab"] == ["", " PHOTOS"]
