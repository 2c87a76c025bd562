"""A record is written whole, found by recipe and seed, and never passed over when damaged."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

import eqco
from eqco.runtime.errors import InputError
from eqco.runtime.records import (
    Record,
    code_version,
    find_record,
    hardware,
    read_records,
    recipe_hash,
)

RECIPE = {"alpha": 512, "pairs": 64}
RESULTS = Path(__file__).parents[2] / "results"


def record(**changes):
    return Record(
        **{
            "experiment": "tab5",
            "profile": "smoke",
            "recipe": RECIPE,
            "seed": 3,
            "metrics": {"information": 1.9},
            "code": code_version(),
            "hardware": hardware(),
            "seconds": 0.1,
            **changes,
        }
    )


def test_what_is_written_is_found_again(tmp_path):
    written = record()
    path = written.write(tmp_path)
    assert path == tmp_path / "tab5" / "smoke" / f"{recipe_hash(RECIPE)}-3.json"
    assert find_record(tmp_path, "tab5", "smoke", RECIPE, 3) == written
    assert read_records(tmp_path, "tab5", "smoke") == [written]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_curve_stands_on_one_line_however_long(tmp_path):
    long = record(curves={"loss": [[step, 0.5] for step in range(1000)]})
    short = record(curves={"loss": []})
    lines = [each.write(tmp_path).read_text().count("\n") for each in (long, short)]
    assert lines[0] == lines[1] < 40
    long.write(tmp_path)
    assert read_records(tmp_path, "tab5", "smoke") == [long]


def test_records_of_some_recipes_are_read_without_opening_the_others(tmp_path):
    other = record(recipe={**RECIPE, "alpha": 1})
    other.write(tmp_path).write_text("damaged")
    wanted = record()
    wanted.write(tmp_path)
    assert read_records(tmp_path, "tab5", "smoke", {recipe_hash(RECIPE)}) == [wanted]


def test_a_record_of_a_training_is_read_at_a_glance():
    files = list((RESULTS / "trainings").rglob("*.json"))
    assert files
    assert max(path.read_text().count("\n") for path in files) <= 60


def test_another_recipe_or_seed_is_another_run(tmp_path):
    record().write(tmp_path)
    assert find_record(tmp_path, "tab5", "smoke", RECIPE, 4) is None
    assert find_record(tmp_path, "tab5", "smoke", {**RECIPE, "alpha": 513}, 3) is None


def test_the_hash_ignores_the_order_of_keys():
    assert recipe_hash({"pairs": 64, "alpha": 512}) == recipe_hash(RECIPE)


def test_the_hash_is_that_of_what_is_read_back(tmp_path):
    """Numbers as keys become words in JSON, and words sort otherwise: "224" before "32"."""
    written = record(recipe={"images": {32: 256, 224: 48}})
    written.write(tmp_path)
    (found,) = read_records(tmp_path, "tab5", "smoke")
    assert found.recipe == {"images": {"32": 256, "224": 48}}
    assert find_record(tmp_path, "tab5", "smoke", written.recipe, 3) == found


def damaged(tmp_path, content):
    """The error that answers a record with this content, by both ways of reading."""
    path = record().write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(InputError) as single:
        find_record(tmp_path, "tab5", "smoke", RECIPE, 3)
    with pytest.raises(InputError) as several:
        read_records(tmp_path, "tab5", "smoke")
    assert str(single.value) == str(several.value)
    assert str(single.value).startswith(str(path))
    assert str(single.value).endswith("restore it or delete it.")
    return str(single.value)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"experiment": "ta', b"\xff\xfe\x00", b"[1, 2]", b"null", b"[" * 100_000],
    ids=["empty", "cut off", "no UTF-8", "a list", "null", "deep"],
)
def test_a_file_that_is_no_json_object_is_named(tmp_path, content):
    assert "is not a record of this project (" in damaged(tmp_path, content)


def changed(**fields):
    """The JSON of a record with some fields changed."""
    return json.dumps({**dataclasses.asdict(record()), **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"experiment": ["tab5"]}, 'experiment is ["tab5"], not text'),
        ({"profile": None}, "profile is null, not text"),
        ({"recipe": [1]}, "recipe is [1], not a JSON object"),
        ({"seed": "3"}, 'seed is "3", not a whole number'),
        ({"seed": 3.0}, "seed is 3.0, not a whole number"),
        ({"seed": True}, "seed is true, not a whole number"),
        ({"metrics": None}, "metrics is null, not a JSON object"),
        ({"metrics": {"a": "high"}}, "the metric 'a' is \"high\", not a number"),
        ({"metrics": {"a": None}}, "the metric 'a' is null, not a number"),
        ({"curves": []}, "curves is [], not a JSON object"),
        ({"code": 1}, "code is 1, not text"),
        ({"hardware": "here"}, 'hardware is "here", not a JSON object'),
        ({"seconds": "long"}, 'seconds is "long", not a number'),
        ({"cpu_seconds": "long"}, 'cpu_seconds is "long", not a number or null'),
        ({"finished": 7}, "finished is 7, not text"),
        ({"colour": "red"}, "'colour' is no field of a record"),
    ],
)
def test_a_field_of_another_type_is_named_with_what_it_holds(tmp_path, fields, fault):
    assert f"is not a record of this project ({fault});" in damaged(tmp_path, changed(**fields))


FIELDS = [field.name for field in dataclasses.fields(Record)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "cpu_seconds"])
def test_a_missing_field_is_named(tmp_path, name):
    values = json.loads(changed())
    del values[name]
    assert f"({name} is missing)" in damaged(tmp_path, json.dumps(values).encode())


@pytest.mark.parametrize("part", ["metrics", "curves"])
def test_a_measurement_that_the_file_does_not_hold_names_the_file(tmp_path, part):
    path = record().write(tmp_path)
    [read] = read_records(tmp_path, "tab5", "smoke")
    with pytest.raises(InputError, match=f"{path} does not hold 'knn'"):
        getattr(read, part)["knn"]
    assert getattr(read, part).get("knn") is None
    assert read.write(tmp_path) == path  # a record that was read is written as any other
    assert read_records(tmp_path, "tab5", "smoke") == [record(finished=read.finished)]


def test_records_of_before_the_processor_time_was_taken_are_read(tmp_path):
    path = record(cpu_seconds=5.0).write(tmp_path)
    values = json.loads(path.read_text())
    del values["cpu_seconds"]
    path.write_text(json.dumps(values))
    assert read_records(tmp_path, "tab5", "smoke")[0].cpu_seconds is None


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"experiment": "tab4"}, "experiment is tab4, not tab5"),
        ({"profile": "paper"}, "profile is paper, not smoke"),
        ({"seed": 4}, "seed is 4, not 3"),
        (
            {"recipe": {"alpha": 1}},
            f"the recipe's hash is {recipe_hash({'alpha': 1})}, not {recipe_hash(RECIPE)}",
        ),
    ],
)
def test_a_record_under_a_wrong_name_is_refused(tmp_path, fields, difference):
    said = damaged(tmp_path, changed(**fields))
    assert f"holds another run than its name says ({difference});" in said


def test_hardware_and_code_say_what_ran():
    import eqco

    assert code_version().startswith(eqco.__version__)
    assert hardware()["processor"]
    assert hardware()["cores"] >= 1


def test_a_changed_record_leaves_the_version_of_the_code_and_changed_code_does_not(
    tmp_path, monkeypatch
):
    source, kept = tmp_path / "src" / "eqco" / "__init__.py", tmp_path / "results" / "a.json"
    for file in (source, kept):
        file.parent.mkdir(parents=True)
        file.write_text("")
    identity = ["-c", "user.name=eqco", "-c", "user.email=eqco@localhost"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(eqco, "__file__", str(source))
    measure = code_version.__wrapped__
    clean = measure()
    kept.write_text("{}")
    assert measure() == clean
    source.write_text("changed")
    assert measure() == f"{clean}-dirty"
