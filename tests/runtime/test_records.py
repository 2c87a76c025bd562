"""A record is written whole, found by recipe and seed, and never passed over when damaged."""

import dataclasses

import pytest

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


def test_another_recipe_or_seed_is_another_run(tmp_path):
    record().write(tmp_path)
    assert find_record(tmp_path, "tab5", "smoke", RECIPE, 4) is None
    assert find_record(tmp_path, "tab5", "smoke", {**RECIPE, "alpha": 513}, 3) is None


def test_the_hash_ignores_the_order_of_keys():
    assert recipe_hash({"pairs": 64, "alpha": 512}) == recipe_hash(RECIPE)


def test_a_damaged_record_is_named(tmp_path):
    path = record().write(tmp_path)
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match=f"{path.name} is not a record"):
        find_record(tmp_path, "tab5", "smoke", RECIPE, 3)


def test_a_record_under_a_wrong_name_is_refused(tmp_path):
    path = record().write(tmp_path)
    other = dataclasses.replace(record(), recipe={"alpha": 1})
    path.write_bytes(other.write(tmp_path / "elsewhere").read_bytes())
    with pytest.raises(InputError, match="another run than its name says"):
        find_record(tmp_path, "tab5", "smoke", RECIPE, 3)


def test_hardware_and_code_say_what_ran():
    import eqco

    assert code_version().startswith(eqco.__version__)
    assert hardware()["processor"]
    assert hardware()["cores"] >= 1
