"""Trainings as tasks of Ray: to the bit as without it, resumed when a worker is lost or stopped."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from faults.trainings import assert_same_end
from photos import save_photos

from eqco.cli.cluster import ClusterOptions
from eqco.cli.main import main
from eqco.integrations import ray as door
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.records import code_version, read_records
from eqco.runtime.run_directory import RunDirectory

pytest.importorskip("ray", exc_type=ImportError)

SETTINGS = ["--profile", "smoke", "--training.num-queries", "16", "--training.epochs", "20"]
SETTINGS += ["--training.log-every", "1", "--training.diagnose-every", "10"]
SWEEP = ["sweep", "photos", *SETTINGS, "--over", "method.count=4,8"]
STORE = 80 * 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos, and the sweep as it is one after the other."""
    place = tmp_path_factory.mktemp("ray")
    save_photos(place / "photos", 60, classes=3)
    before = os.getcwd()
    os.chdir(place)
    try:
        assert main([*SWEEP, "--out", "alone", "--ray", "off"]) == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture(scope="module")
def address():
    """A cluster of two nodes with a core each, on this machine."""
    door.import_ray()
    node = {"num_cpus": 1, "object_store_memory": STORE}
    logs = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short name, for sockets
    head = {**node, "include_dashboard": False, "temp_dir": logs}
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address, whatever temp_dir is
    with warnings.catch_warnings():  # Ray leaves files and processes to the end
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**node)
            yield cluster.address
        finally:
            cluster.shutdown()
            del cluster
            gc.collect()
            shutil.rmtree(logs, ignore_errors=True)


def found(out):
    """What the records of a sweep say, but for times."""
    return {
        (record.path(out).name, json.dumps(record.metrics), json.dumps(record.curves))
        for record in read_records(out, "records", "sweep")
    }


def runs_of(out):
    return sorted((out / "runs").iterdir()) if (out / "runs").exists() else []


class Killer(threading.Thread):
    """Kills the first worker that has left a checkpoint; notes the nodes that workers were of."""

    def __init__(self, out):
        super().__init__(daemon=True)
        self.out, self.killed, self.nodes, self.stopped = out, None, set(), False

    def run(self):
        while not self.stopped:
            for run in map(RunDirectory, runs_of(self.out)):
                with suppress(OSError, ValueError):  # not there yet, or not any more
                    worker = int((run.path / "lock").read_text())
                    status = Path(f"/proc/{worker}/stat").read_text()
                    self.nodes.add(status.rsplit(")", 1)[1].split()[1])  # its parent
                    if self.killed is None and run.last.exists() and not run.result.exists():
                        os.kill(worker, signal.SIGKILL)
                        self.killed = worker
            time.sleep(0.005)


@pytest.mark.end_to_end
def test_two_nodes_and_a_killed_worker_leave_the_same_to_the_bit(
    folder, address, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    killer = Killer(folder / "together")
    killer.start()
    assert main([*SWEEP, "--out", "together", "--ray", address]) == 0, capsys.readouterr().err
    killer.stopped = True
    killer.join()
    assert killer.killed is not None
    assert len(killer.nodes) == 2
    assert found(folder / "together") == found(folder / "alone")
    pairs = zip(runs_of(folder / "together"), runs_of(folder / "alone"), strict=True)
    for one, other in pairs:
        assert one.name == other.name
        assert_same_end(RunDirectory(one), RunDirectory(other))
    said = capsys.readouterr().out
    assert "2/2 done: method.count=" in said
    table = (folder / "together" / "table.md").read_text()
    assert table == (folder / "alone" / "table.md").read_text()


@pytest.mark.end_to_end
def test_an_experiment_on_ray_has_the_records_that_it_has_without(address, tmp_path, capsys):
    for name, how in (("alone", "off"), ("together", address)):
        folders = ["--results", str(tmp_path / name), "--work", str(tmp_path / f"runs-{name}")]
        assert main(["reproduce", "tab5", "--profile", "smoke", *folders, "--ray", how]) == 0
    alone, together = (
        read_records(tmp_path / name, "tab5", "smoke") for name in ("alone", "together")
    )
    assert alone
    assert [record.metrics for record in alone] == [record.metrics for record in together]


@pytest.mark.end_to_end
def test_ctrl_c_stops_a_local_cluster_and_the_same_command_resumes(folder, monkeypatch, capsys):
    out = folder / "stopped"
    command = [*SWEEP, "--out", "stopped"]
    process = subprocess.Popen(
        [sys.executable, "-m", "eqco", *command, "--ray", "local"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 300
        while not any(RunDirectory(path).last.exists() for path in runs_of(out)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "what is trained is kept; the same command resumes" in said
    assert "Traceback" not in errors
    begun = [RunDirectory(path) for path in runs_of(out)]
    assert not all(run.result.exists() for run in begun)
    monkeypatch.chdir(folder)
    assert main([*command, "--ray", "off"]) == 0
    assert found(out) == found(folder / "alone")


class Nobody:
    """A board that nobody reads."""

    class write:  # noqa: N801
        @staticmethod
        def options(num_returns):
            return Nobody.write

        @staticmethod
        def remote(*told):
            pass


def job_of(error):
    def job(advance):
        advance(1)
        if error is not None:
            raise error

    return job


def test_what_the_user_can_mend_comes_back_from_a_worker(tmp_path):
    witness = tmp_path / "witness"
    witness.touch()
    given = (0, Nobody, 1, code_version(), witness)
    assert door.work(job_of(None), *given) is None
    assert str(door.work(job_of(InputError("too few")), *given)) == "too few"
    assert 'pip install ".[timm]"' in str(
        door.work(job_of(MissingExtraError("timm", "timm")), *given)
    )
    with pytest.raises(ZeroDivisionError):  # a defect keeps its traceback
        door.work(job_of(ZeroDivisionError()), *given)


def test_a_machine_with_other_code_or_another_folder_is_named(tmp_path):
    refused = door.work(job_of(None), 0, Nobody, 1, "0.0.1+older", tmp_path)
    assert "and this command is eqco 0.0.1+older. Install the same version" in str(refused)
    refused = door.work(job_of(None), 0, Nobody, 1, code_version(), tmp_path / "a" / "b")
    assert f"does not see {tmp_path / 'a'}" in str(refused)


@pytest.mark.parametrize(
    ("cores", "gpus", "message"), [(3, 0, "--cores 3 .* has 2"), (1, 1, "--gpus 1")]
)
def test_what_no_machine_has_is_refused(cores, gpus, message):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    with pytest.raises(InputError, match=message):
        door.refuse_too_large(nodes, door.Cluster(cores=cores, gpus=gpus))
    door.refuse_too_large(nodes, door.Cluster(cores=2))


def test_an_address_where_nothing_listens_is_refused_at_once():
    """Ray itself tries for many minutes."""
    with (
        pytest.raises(InputError, match=r"--ray 127\.0\.0\.1:9: no cluster of Ray can be used"),
        door.connected("127.0.0.1:9"),
    ):
        pass


def test_ray_is_taken_where_it_pays(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    assert ClusterOptions().address(runs=5) == "local"
    assert ClusterOptions().address(runs=1) is None
    assert ClusterOptions(cores=3).address(runs=5) is None
    assert ClusterOptions(ray="off").address(runs=5) is None
    assert ClusterOptions(ray="10.0.0.1:6379", cores=3).address(runs=1) == "10.0.0.1:6379"


def test_without_the_package_the_install_line_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[cluster\]"'):
        door.import_ray()


def test_processes_and_ray_exclude_each_other(capsys):
    assert main(["reproduce", "tab5", "--processes", "2", "--ray", "local"]) == 2
    assert "--processes 2 beside --ray local: choose one" in capsys.readouterr().err
