"""The package builds, installs, and says the same of itself everywhere."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import eqco

tomllib = pytest.importorskip("tomllib", reason="comes with Python 3.11")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def requirements():
    """What pyproject asks for, beside extras of its own."""
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return [found for line in lines if (found := Requirement(line)).name != "eqco"]


def pinned(name):
    lines = (ROOT / name).read_text().splitlines()
    return {found.name: found.specifier for found in map(Requirement, lines[1:])}


def plain(name):
    return name.lower().replace("_", "-")


def version_of(specifier):
    (only,) = specifier
    return Version(only.version)


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert PROJECT["version"] == eqco.__version__ == cited[1]


def test_the_tested_versions_are_those_that_are_asked_for():
    tested = pinned("constraints.txt")
    assert set(tested) == {plain(each.name) for each in requirements()}, "see constraints.txt"
    for each in requirements():
        assert version_of(tested[plain(each.name)]) in each.specifier, each


def test_pages_about_other_packages_name_the_tested_versions():
    tested, named = pinned("constraints.txt"), {}
    for page in ("data", "sharing", "clusters", "similar_photos"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for packages in re.findall(r"tested with\s([^)]+)\)", text):
            named |= re.findall(r"([\w-]+) (\d[\d.]*)", packages)
    assert len(named) == 9
    for name, version in named.items():
        full = version_of(tested[plain(name)])
        assert version.split(".") == str(full).split(".")[: version.count(".") + 1], name


def test_the_oldest_versions_are_the_lower_limits():
    oldest = pinned("constraints-oldest.txt")
    limits = {plain(each.name): version_of(each.specifier) for each in requirements()}
    assert {name: version_of(own) for name, own in oldest.items()} == {
        name: limits[name] for name in oldest
    }


def test_all_takes_in_every_extra():
    parts = map(Requirement, PROJECT["optional-dependencies"]["all"])
    everything = {extra for part in parts for extra in part.extras}
    assert everything == set(PROJECT["optional-dependencies"]) - {"all"}


def run(*command, cwd=None):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.end_to_end
def test_a_wheel_from_the_source_archive_works_in_an_environment_of_its_own(tmp_path):
    """Built from the archive, so that nothing is missing in it; torch is lent by this one."""
    copy, dist, fresh = tmp_path / "copy", tmp_path / "dist", tmp_path / "fresh"
    tracked = run(
        "git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT
    )
    for name in filter(None, tracked.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    archive = run(sys.executable, "-c", BUILD, "build_sdist", dist, cwd=copy).splitlines()[-1]
    with tarfile.open(dist / archive) as packed:
        packed.extractall(tmp_path, filter="data")
    source = tmp_path / archive.removesuffix(".tar.gz")
    wheel = run(sys.executable, "-c", BUILD, "build_wheel", dist, cwd=source).splitlines()[-1]
    run(sys.executable, "-m", "venv", "--without-pip", fresh)
    python = fresh / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, dist / wheel)
    assert run(fresh / "bin" / "eqco", "--version", cwd=tmp_path) == f"eqco {eqco.__version__}"
    code = "import eqco, eqco.data; print(eqco.__file__, len(eqco.data.open_source()['train']))"
    place, photos = run(python, "-c", code, cwd=tmp_path).split()
    assert Path(place).is_relative_to(own)
    assert int(photos) > 0
