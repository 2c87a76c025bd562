"""Whatever is typed after `eqco`: it works, or a sentence says what would. Never a traceback.

Commands that would train for long are only given what ends before: a flag or a folder that is not
there. Large numbers are left out where they ask for no more than patience or memory.
"""

import contextlib
import io
import os

import pytest
from faults.trainings import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from eqco.cli.main import COMMANDS, main
from eqco.methods import METHODS
from eqco.recipes import PROFILES, RECIPES

TRIED = 1200

# a command line holds no NUL; bytes that are no UTF-8 come as lone surrogates
text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("\udc80\udcff"),
    max_size=15,
)
odd = st.sampled_from(
    [
        *("", "-", "--", "=", "0", "-1", "1", "2", "nan", "inf", "-inf", "1e400", "1e-400"),
        *("None", "True", "{}", "[]", "*", "/", "..", "\n", "%s", "[bold]", "[/]", "é", "١"),
        *("0x10", "1_0"),
    ]
)
broken = text | odd | st.integers(-5, 5).map(str) | st.floats().map(str)
small = st.integers(-2, 9).map(str)
large = st.sampled_from(["65536", str(2**31), str(2**63), str(2**64), "9" * 30, "9" * 5000])


def options(flags):
    """A list of arguments out of flags and what may follow each, and anything in between."""
    one = st.one_of(
        *(st.builds(lambda f, v: [f, *v], st.just(f), v) for f, v in flags.items()),
        *(st.builds(lambda f, v: [f"{f}={''.join(v)}"], st.just(f), v) for f, v in flags.items()),
        st.lists(broken, min_size=1, max_size=1),
    )
    return st.lists(one, max_size=5).map(lambda parts: [each for part in parts for each in part])


def one(*values):
    """One value, of these kinds or broken."""
    return st.lists(st.one_of(*values, broken), min_size=0, max_size=2)


def outcome(arguments):
    """Exit code and what was said, of a command in this process."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
    said = []
    for stream in streams:
        stream.flush()
        said.append(stream.buffer.getvalue().decode(errors="replace"))
    return code, said


def never_fails_badly(command, flags, record_property, ending=(), examples=TRIED):
    codes = []

    @settings(max_examples=examples)
    @given(options(flags))
    def check(arguments):
        code, (printed, complaint) = outcome([*command, *arguments, *ending])
        codes.append(code)
        assert code in (0, 2), (arguments, code)
        if code:
            assert complaint.strip() or printed.strip(), arguments
        assert "Traceback" not in complaint, arguments

    check()
    record_property("count: command lines tried", len(codes))
    return codes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Files that a command writes by itself go here."""
    monkeypatch.chdir(tmp_path)


def test_any_arguments_at_all(record_property):
    tried = []
    named = st.sampled_from([*COMMANDS, "--version", "--help", "help"])

    @settings(max_examples=TRIED)
    @given(text | odd | named, st.lists(broken, max_size=4))
    def check(first, rest):
        rest = [each for each in rest if not each.startswith(("-h", "--h"))]
        # a flag that no command has, so that nothing long is begun
        code, (printed, complaint) = outcome([first, *rest, "--no-such-flag=1"])
        tried.append(first)
        assert code in (0, 2), (first, rest)
        assert "Traceback" not in complaint, (first, rest)
        assert printed or complaint

    check()
    record_property("count: command lines tried", len(tried))


def test_eqco_plan(record_property):
    numbers = one(small, large)
    flags = {
        "--framework": one(st.sampled_from([*RECIPES])),
        "--num-queries": numbers,
        "--num-negatives": numbers,
        "--memory": one(st.sampled_from(["512MB", "1GB", "0", "-3MB", "1e9", "3 kB", "9e999TB"])),
        "--alpha": one(small, large),
        "--temperature": one(small),
        "--base-learning-rate": one(small),
        "--dim": numbers,
        "--dataset-size": numbers,
        "--epochs": numbers,
        "--json": st.just([]),
    }
    codes = never_fails_badly(["plan"], flags, record_property)
    assert {0, 2} <= set(codes)


def test_eqco_recipes(record_property):
    flags = {
        "--profile": one(st.sampled_from([*PROFILES])),
        **{name: st.just([]) for name in RECIPES},
    }
    never_fails_badly(["recipes"], flags, record_property, examples=300)


def test_eqco_lab(record_property):
    """Numbers small enough to be done at once."""
    flags = {
        "--information": st.lists(small | broken, max_size=3),
        "--pairs": st.lists(small | broken, max_size=3),
        "--alpha": one(small, large),
        "--estimators": st.lists(st.sampled_from(["infonce", "eqco", "ml-cpc"]) | text, max_size=3),
        "--dim": one(small),
        "--hidden-size": one(small),
        "--output-size": one(small),
        "--learning-rate": one(small),
        "--seeds": st.lists(small | large | broken, max_size=2),
        "--json": st.just([]),
    }
    ending = ["--steps", "1", "--repeats", "2"]
    never_fails_badly(["lab"], flags, record_property, ending, examples=TRIED // 2)


def test_eqco_data_and_views(record_property, files):
    common = {"--unlabelled": st.just([]), "--root": one()}
    data = {
        "--check": one(st.sampled_from(["header", "decode"])),
        "--split-seed": one(small, large),
        "--memory-gib": one(small, large),
        "--sheet": one(st.just("sheet.png"), st.just("a/b.xyz"), st.just(str(files))),
    }
    views = {
        "--pipeline": one(st.sampled_from(["mocov1", "mocov2", "simclr", "linear"])),
        "--size": one(small),
        "--split": one(st.sampled_from(["train", "unlabelled"])),
        "--images": one(small),
        "--views": one(small),
        "--seed": one(small, large),
        "--on-unreadable": one(st.sampled_from(["error", "skip"])),
        "--out": one(st.just("views.png"), st.just("views")),
    }
    small_set = [str(files)]
    for command, own in ((["data"], data), (["views"], views)):
        never_fails_badly(
            [*command, *small_set, "--overwrite"],
            {**common, **own},
            record_property,
            examples=TRIED // 4,
        )


def test_eqco_train_up_to_the_first_step(record_property):
    """The folder of images is not there: everything before it is checked."""
    flags = {
        "--recipe": one(st.sampled_from([*RECIPES, ".", os.devnull])),
        "--profile": one(st.sampled_from([*PROFILES])),
        "--out": one(),
        "--resume": one(st.sampled_from([".", os.devnull, "last.pt"])),
        "--device": one(st.sampled_from(["cpu", "meta", "cuda:99", "cpu:7"])),
        "--method": one(st.sampled_from([*METHODS])),
        "--optimiser.drops": st.lists(small | broken, max_size=3),
    }
    for name in (
        *(
            "method.ema-decay",
            "data.image-size",
            "data.workers",
            "encoder.bn-groups",
            "method.count",
        ),
        *("objective.temperature", "objective.alpha", "optimiser.base-learning-rate"),
        *("optimiser.warmup-epochs", "training.num-queries", "training.epochs", "training.seed"),
        *(
            "training.accumulation-steps",
            "encoder.width",
            "method.queue-size",
            "training.save-every",
        ),
    ):
        flags[f"--{name}"] = one(small, large)
    codes = never_fails_badly(
        ["train", "no/such/folder"], flags, record_property, examples=TRIED // 3
    )
    assert set(codes) <= {2, 0}


def test_eqco_train_with_a_folder_of_images(record_property, pictures, tmp_path):
    """One setting is wrong beyond repair; the images are there, and nothing is written."""
    flags = {f"--{name}": one(small) for name in ("data.image-size", "training.num-queries")}
    ending = ["--optimiser.reference", "0", "--out", str(tmp_path / "run")]
    command = ["train", str(pictures), *map(str, SMALL)]
    codes = never_fails_badly(command, flags, record_property, ending, examples=TRIED // 6)
    assert set(codes) <= {2, 0}
    assert not (tmp_path / "run").exists()


def test_eqco_reproduce(record_property):
    flags = {
        "--profile": one(),
        "--seeds": st.lists(broken, max_size=2),
        "--results": one(),
        "--out": one(),
        "--list": st.just([]),
    }
    ending = ["--profile", "no-such-profile"]
    never_fails_badly(["reproduce"], flags, record_property, ending, examples=TRIED // 24)
