"""What the nodes of a job that hangs now send is collected, with stand-ins of Slurm's and kubectl's commands."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Timer

import pytest

from support.environments import make_env, write
from support.live_ranks import PY_SPY, program
from support.ras_server import Server, serving
from unhang.cli.main import main
from unhang.diagnose import collector, live, logs
from unhang.errors import UnhangError
from unhang.tell import progress

SQUEUE = f"""#!{sys.executable}
import sys
assert sys.argv[1:] == ["--noheader", "--jobs", "77", "--format", "%A %D %T"], sys.argv
print("77 2 RUNNING")
"""
# Runs the command as of node 0; node 1 has no Python, and breaks off in a file.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
assert not [name for name in os.environ if name.startswith("SLURM_")]
options = ["--jobid=77", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpu-bind=none",
    "--kill-on-bad-exit=0", "--input=none", "--label", "sh", "-c"]
assert sys.argv[1:12] == options, sys.argv[1:12]
said = subprocess.run(sys.argv[10:], capture_output=True, text=True, env={{**os.environ, "SLURM_PROCID": "0"}})
print("srun: a warning")
for line in said.stdout.splitlines():
    print("0:", line)
print("1: @unhang begin hung_1/dumps/rank_7")
print("1: @unhang data eJw=")
print("1: sh: python3: not found")
"""
KUBECTL = f"""#!{sys.executable}
import json, os, sys
options, words = sys.argv[1:3], sys.argv[3:]
assert options == ["-n", "team"], options
if words[:2] == ["get", "pods"]:
    assert words[2:] == ["--selector", "job=x", "--output", "json"], words
    pods = [("a-0", {{"phase": "Running"}}), ("a-1", {{"phase": "Failed", "containerStatuses": [
        {{"state": {{"terminated": {{"reason": "OOMKilled"}}}}}}]}})]
    items = [{{"metadata": {{"name": name, "namespace": "team"}}, "status": status}} for name, status in pods]
    print(json.dumps({{"items": items}}))
else:
    assert words[:7] == ["exec", "--namespace=team", "a-0", "-c", "main", "--", "sh"], words[:7]
    os.execvp("sh", words[6:])
"""


RAY = """
import os, types
def init(address, **options):
    assert (address, options) == ("ray://head:10001", {"log_to_driver": False, "logging_level": 40})
def remote(**options):
    assert options == {"num_cpus": 0, "max_retries": 0}
    return lambda take: types.SimpleNamespace(options=lambda scheduling_strategy: types.SimpleNamespace(
        remote=lambda command, seconds: (scheduling_strategy, take, tuple(command), seconds)))
def nodes():
    return [{"NodeManagerAddress": f"10.0.0.{n}", "NodeID": "abcdef0123" + str(n), "Alive": n < 2} for n in (1, 2)]
def wait(waiting):
    return waiting[:1], waiting[1:]
def get(one):
    strategy, take, command, seconds = one
    assert strategy == ("abcdef01231", False) and command[:2] == ("sh", "-c") and seconds > 30
    return take(list(command), seconds)
"""
STRATEGY = """
def NodeAffinitySchedulingStrategy(node, soft):
    return (node, soft)
"""


def with_ray(prefix: Path) -> Path:
    """Make an environment with a stand-in of Ray; return its interpreter."""
    env = make_env(prefix)
    files = {"__init__": RAY, "util/__init__": "", "util/scheduling_strategies": STRATEGY}
    write(env.site, {f"ray/{file}.py": text for file, text in files.items()})
    return env.python


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Mapping[int, int]) -> Path:
    """Return a folder of programs on PATH: a job hangs here, and py-spy is there."""
    monkeypatch.setattr(live, "APART_S", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    program(tmp_path / "bin", "py-spy", PY_SPY)
    return tmp_path / "bin"


@pytest.fixture
def ras(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a RAS; the ranks that are started after it have its address."""
    with serving() as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        yield server


def test_ras_tells_who_is_behind_without_py_spy(
    ras: Server, hung: Path, started: Mapping[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [{"rank": rank, "host": "10.0.0.1", "pid": started.get(rank, 4_000_000 + rank)} for rank in range(8)]
    state = {"status": {"init_state": 0}, "collective_counts": {"AllReduce": 9}}
    late = {"status": {"init_state": 0}, "collective_counts": {"AllReduce": 7}}
    lost = {**ranks[7], "status": {"unresponsive": True, "considered_dead": True}}
    comm = {"hash": "0xa", "size": 8, "ranks": [{**one, **(late if one["rank"] == 5 else state)} for one in ranks[:7]]}
    ras.document = {"timestamp": "1", "communicators": [{**comm, "missing_ranks": [lost]}]}
    ras.text = "NCCL version 2.26.2 compiled with CUDA 12.6\n\nCommunicators... (0.00s)\n\n#0-0 (a) MISMATCH\n"
    ras.text += "  Communicator ranks have different AllReduce operation counts\n"
    ras.text += "  7 ranks have launched up to operation 9\n  Rank 5 has launched up to operation 8\n"
    (hung / "py-spy").write_text("#!/bin/sh\nexit 3")
    kept = tmp_path / "kept"
    main(["diagnose", "--live", "--master", "hung:1", "--keep", str(kept), "--output-format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert told["suspects"] == [7]
    assert told["processes"] == ["pid 4000007 on 10.0.0.1"]
    assert f"rank 5 (pid {started[5]} on 10.0.0.1) behind" in str(told["causes"])
    assert (kept / "hung_1/this_node/ras.txt").read_text().count("SERVER PROTOCOL") == 2
    ras.document = None
    by_pid = {one.pid: one for one in collector.processes()}
    found = [one for one in collector.ranks([*by_pid.values()]) if one.world == "hung_1"]
    said = collector.asked(found, by_pid)["hung_1"].decode()
    (rank,) = logs.read(io.BytesIO((said + said).encode()), "ras.txt")
    assert [one.culprits for one in rank.statements] == [(5,)], "twice the same: it is no race"
    assert collector.ras("127.0.0.1:1") == b""
    ras.text = "no RAS"
    assert collector.asked(found, by_pid) == {}


@pytest.mark.slow
def test_a_job_of_slurm_s_is_diagnosed(hung: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(hung, "squeue", SQUEUE)
    program(hung, "srun", SRUN)
    kept = str(tmp_path / "kept")
    assert main(["diagnose", "--live", "--slurm", "77", "--keep", kept, "--output-format", "json"]) == 1
    said, notes = capsys.readouterr()
    answer = json.loads(said)
    assert answer["why"] == {
        "4": "its process is gone: it has ended or was killed, and its peers run",
        "6": "its process is stopped: by a signal, a debugger or the batch system; `kill -CONT` lets it go on",
        "7": "its process is gone: it has ended or was killed, and its peers run",
    }
    assert answer["job"]["size"] == 4, "by the dump's own group"
    assert answer["job"]["ranks"] == [4, 5, 6, 7]
    assert "not every node has answered (1 have): 1: sh: python3: not found" in notes
    assert "a file arrived incomplete: rank_7" in notes
    names = {file.relative_to(kept).as_posix() for file in Path(kept).rglob("*") if file.is_file()}
    assert names == {
        "hung_1/0/dumps/rank_5", "hung_1/0/ranks.json", "hung_1/0/stacks/rank_5.txt", "hung_1/0/stacks/rank_6.txt",
        "hung_1/nodes.json",
    }  # fmt: skip
    assert main(["diagnose", kept, "--output-format", "json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert again["why"] == answer["why"], "the same evidence, diagnosed again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--kubectl", "job=x -n team -c main"], "pod a-1: the pod is Failed OOMKilled"),
        (["--ray", "ray://head:10001", "--python", "env/bin/python"], "Ray says that this node is gone"),
    ],
)
def test_pods_and_nodes_of_ray_are_asked_and_those_that_do_not_run_are_named(
    words: list[str], note: str, hung: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(hung, "kubectl", KUBECTL)
    with_ray(hung.parent / "env")
    monkeypatch.chdir(hung.parent)
    # other tests' jobs may run on this machine, and the one with most ranks would be diagnosed
    main(["diagnose", "--live", *words, "--master", "hung:1", "--keep", "kept"])
    said, notes = capsys.readouterr()
    assert note in notes
    assert "its process is stopped" in said
    assert list(Path("kept").glob("hung_1/*/stacks/rank_5.txt"))


@pytest.mark.parametrize("place", ["here", "ray", pytest.param("slurm", marks=pytest.mark.slow)])
def test_stacks_are_taken_twice_and_no_python_imports_from_a_working_directory_or_pythonpath(
    place: str, hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write(f'{{__file__}} in {{sys.orig_argv}}\\n')"
    names = ("base64", "json", "zlib", "subprocess", "sitecustomize", "usercustomize", "ray/__init__")
    for folder in ("cwd", "path"):
        write(tmp_path / folder, {f"{name}.py": planted for name in names})
    with_its_ray = str(with_ray(tmp_path / "env"))  # before PYTHONPATH: making it runs a Python
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "path/json.py"))
    for name, text in {"py-spy": PY_SPY, "squeue": SQUEUE, "srun": SRUN}.items():
        program(hung, name, text.replace(sys.executable, f"{sys.executable} -I", 1))
    places = {
        "here": lambda: live.here("hung:1"),
        "slurm": lambda: live.slurm("77", "hung:1"),
        "ray": lambda: live.ray("ray://head:10001", with_its_ray, "hung:1"),
    }
    (job,) = live.collect(places[place](), tmp_path / "out", progress.silent)
    assert job.ranks == 2, "the third has no process"
    (stacks,) = job.folder.glob("*/stacks/rank_5.txt")
    assert [line for line in (":7)", ":8)") if line in stacks.read_text()] == [":7)", ":8)"]
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def sent(name: str, data: bytes) -> str:
    return f"@unhang begin {name}\n@unhang data {base64.b64encode(zlib.compress(data)).decode()}\n@unhang end\n"


OTHERS = "its ranks are of other jobs: 10.0.0.1:29500"


def sending(folder: Path, name: str, text: str) -> live.Place:
    (folder / name).write_text(text)
    return live.Place(name, ("cat", str(folder / name)))


RANKS = json.dumps({"unhang-live": 1, "size": 2, "ranks": [{"rank": 0, "state": "running"}], "notes": []}).encode()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (sent("../../evil/ranks.json", b"x"), "a file was refused"),
        (sent("/etc/ranks.json", b"x"), "a file was refused"),
        (sent("w/stacks/../rank_1.txt", b"x"), "a file was refused"),
        (sent("w/stacks/rank_1.py", b"x"), "a file was refused"),
        (sent("w/dumps/rank_1", b"") + sent("w/dumps/rank_1/rank_2", b"x"), "a file was refused"),
        (sent("v/ranks.json", b'{"unhang-live": 1}') + "@unhang note no list\n", "no list"),
        (sent("w/dumps/rank_1", b"x").replace("eQB5", "eQB4"), "a file came damaged: rank_1"),
        ("@unhang begin w/dumps/rank_1\n@unhang data %%%\n@unhang end 0\n", "a file came damaged: rank_1"),
        (sent("w/dumps/rank_1", bytes(1 << 21)), "a file is too large: rank_1"),
        ("@unhang begin w/dumps/rank_1\n", "a file arrived incomplete: rank_1"),
        ("@unhang note \x1b[2J\n", "\\x1b[2J"),
    ],
)
def test_what_a_node_sends_is_believed_in_nothing(
    text: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LARGEST", 1 << 20)
    place, out = sending(tmp_path, "n", text + sent("w/ranks.json", RANKS) + "@unhang done\n"), tmp_path / "out"
    (job,) = live.collect([place], out, progress.silent)
    files = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    assert files - {"w/n/dumps/rank_1", "v/n/ranks.json"} == {"w/n/ranks.json", "w/nodes.json"}
    assert note in json.loads((job.folder / "nodes.json").read_text())["notes"][0]
    assert {path.name for path in tmp_path.iterdir()} == {"n", "out"}


def test_a_rank_without_a_process_is_gone_where_all_nodes_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(*more: live.Place) -> dict[str, object]:
        live.collect([one, *more], tmp_path / f"out{len(more)}", progress.silent)
        document: dict[str, object] = json.loads((tmp_path / f"out{len(more)}/w/nodes.json").read_text())
        return document

    one = sending(tmp_path, "n", sent("w/ranks.json", RANKS) + "@unhang done\n")
    other = sending(tmp_path, "m", f"@unhang note {OTHERS}\n@unhang done\n")
    gone = {"unhang-live": 1, "size": 2, "ranks": [{"rank": 1, "state": "gone"}], "notes": []}
    assert (noted(), noted(other)) == (gone, gone)
    monkeypatch.setattr(live, "APART_S", 0.0)
    monkeypatch.setattr(live, "_LIMIT_S", 0.5)
    late, failed = other._replace(name="late", command=("sleep", "600")), other._replace(name="x", command=("false",))
    notes = ["late: not everything arrived within 0 s", "x: not every node has answered (0 have): it said nothing"]
    found = noted(other, late, failed)
    assert (found["ranks"], sorted(found["notes"])) == ([], notes)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("said", "why", "hint"),
    [
        ("ModuleNotFoundError: No module named 'ray'", "has a rank", "name the Python of the job's own environment, "),
        ("ConnectionError: refused", "has a rank", "start it as the job's user"),
        (f"@unhang note {OTHERS}\n@unhang done\n", "is a rank of that job", "name one of these with --master"),
    ],
)
def test_why_nothing_came_is_in_the_message(said: str, why: str, hint: str, tmp_path: Path) -> None:
    places = [sending(tmp_path, "a", said), live.Place("b", ("printf", "no route"))]
    with pytest.raises(UnhangError) as caught:
        live.collect(places, tmp_path / "out", progress.silent)
    head, _, notes = caught.value.message.partition(f"{why}: ")
    assert (caught.value.code, head[:26]) == ("no-ranks", "no process was found that ")
    first = f"a: {OTHERS}" if OTHERS in said else f"a: not every node has answered (0 have): {said}"
    assert {*notes.split("; ")} == {first, "b: not every node has answered (0 have): no route"}
    assert str(caught.value.hint).startswith(hint)


def test_jobs_that_were_not_asked_for_are_named(hung: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert main(["diagnose", "--live", "--master", "no:1", "--keep", str(kept)]) == 2
    told = capsys.readouterr().err
    assert re.search(r"a rank of that job: this node: its ranks are of other jobs: (.*, )?hung_1", told)
    assert not kept.exists(), "nothing is in it"


def test_a_job_left_out_that_has_ended_has_no_ranks_to_count(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"rank": 0, "pid": 7, "state": "gone"}
    text = sent("w/ranks.json", RANKS) + sent("v/ranks.json", json.dumps({"unhang-live": 1, "ranks": [row]}).encode())
    place = sending(tmp_path, "n", f"{text}@unhang done\n")._replace(is_all=False)
    monkeypatch.setattr(live, "here", lambda _: [place])
    main(["diagnose", "--live"])
    err = capsys.readouterr().err
    assert "took the job w, with 1 rank\n" in err
    assert "left out another job, whose ranks have all ended; for that: unhang diagnose --live --master v\n" in err


def test_ctrl_c_ends_what_runs(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    began = time.monotonic()
    Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            live.collect([live.Place("m", ("sleep", "600"))] * 3, tmp_path / "out", progress.silent)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("asked", "words", "message"),
    [
        (live.slurm, "--x", "not the number of a job: --x"),
        (live.slurm, "77", "Slurm's job 77 has no nodes that could be asked: it is PENDING"),
        (live.kubectl, "-n x", "not a selector of pods: -n x"),
        (live.kubectl, "a=b -A", "kubectl has failed: The server refused"),  # each of its tries is no reason
        (live.kubectl, "a=b", "kubectl is not on PATH"),
    ],
)
def test_why_no_node_is_asked(
    asked: Callable[[str], object], words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "squeue", "#!/bin/sh\necho 77 2 PENDING\n")
    if "failed" in message:
        tried = 'echo \'E1125 12:00:00.1 9 memcache.go:265] "Unhandled Error" err="refused"\' >&2\n'
        program(tmp_path / "bin", "kubectl", f"#!/bin/sh\n{tried * 5}echo 'The server refused' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UnhangError) as caught:
        asked(words)
    assert (caught.value.code, caught.value.message) == ("no-nodes", message)
