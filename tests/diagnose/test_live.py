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
from collections.abc import Iterator, Mapping, Sequence
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
def test_pods_are_asked_and_those_that_do_not_run_are_named(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(hung, "kubectl", KUBECTL)
    main(["diagnose", "--live", "--kubectl", "job=x -n team -c main"])
    said, notes = capsys.readouterr()
    assert "pod a-1: the pod is Failed OOMKilled" in notes
    assert said


@pytest.mark.slow
def test_the_nodes_of_a_ray_cluster_are_asked_each_by_a_task_that_takes_no_cpu(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_ray(tmp_path / "env")
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    # other tests' jobs may run on this machine, and the one with most ranks would be diagnosed
    words = ["--ray", "ray://head:10001", "--python", "env/bin/python", "--master", "hung:1", "--keep", str(kept)]
    main(["diagnose", "--live", *words])
    said, notes = capsys.readouterr()
    assert "Ray says that this node is gone" in notes
    assert "its process is stopped" in said
    assert list(kept.glob("hung_1/*/stacks/rank_5.txt"))


@pytest.mark.parametrize("place", ["ray", *(pytest.param(it, marks=pytest.mark.slow) for it in ("here", "slurm"))])
def test_no_python_that_is_started_imports_from_a_working_directory_or_pythonpath(
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
    assert job.ranks == 2
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_this_node_s_stacks_are_taken_twice(hung: Path, tmp_path: Path) -> None:
    """Other jobs may run on this machine."""
    jobs = live.collect(live.here(), tmp_path / "out", progress.silent)
    (job,) = [one for one in jobs if one.folder.name == "hung_1"]
    stacks = (job.folder / "this_node/stacks/rank_5.txt").read_text()
    assert [line for line in (":7)", ":8)") if line in stacks] == [":7)", ":8)"]
    assert job.ranks == 2, "the third has no process"


def sent(name: str, data: bytes, *, checksum: int | None = None) -> str:
    checksum = zlib.crc32(data) if checksum is None else checksum
    body = base64.b64encode(zlib.compress(data)).decode()
    return f"@unhang begin {name}\n@unhang data {body}\n@unhang end {checksum:08x}\n"


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
        (sent("w/dumps/rank_1", b"x", checksum=1), "a file came damaged: rank_1"),
        ("@unhang begin w/dumps/rank_1\n@unhang data %%%\n@unhang end 0\n", "a file came damaged: rank_1"),
        (sent("w/dumps/rank_1", bytes(1 << 21)), "a file is too large: rank_1"),
        ("@unhang begin w/dumps/rank_1\n", "a file arrived incomplete: rank_1"),
        ("@unhang note \x1b[2J\n", "\\x1b[2J"),
        ("no protocol at all\n", "not every node has answered (0 have): no protocol at all"),
    ],
)
def test_what_a_node_sends_is_believed_in_nothing(
    text: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LARGEST", 1 << 20)
    (tmp_path / "sent").write_text(
        text if text.startswith("no ") else text + sent("w/ranks.json", RANKS) + "@unhang done\n"
    )
    place = live.Place("n", ("cat", str(tmp_path / "sent")))
    out = tmp_path / "out"
    with pytest.raises(UnhangError) if text.startswith("no ") else progress.shown():
        (job,) = live.collect([place], out, progress.silent)
        files = sorted(file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file())
        assert {*files} - {"w/n/dumps/rank_1", "v/n/ranks.json"} == {"w/n/ranks.json", "w/nodes.json"}
        assert note in json.loads((job.folder / "nodes.json").read_text())["notes"][0]
    assert {path.name for path in tmp_path.iterdir()} <= {"sent", "out"}


def test_a_rank_without_a_process_is_gone_where_all_nodes_have_answered(tmp_path: Path) -> None:
    (tmp_path / "sent").write_text(sent("w/ranks.json", RANKS) + "@unhang done\n")
    place = live.Place("n", ("cat", str(tmp_path / "sent")))
    live.collect([place], tmp_path / "out", progress.silent)
    rows = json.loads((tmp_path / "out/w/nodes.json").read_text())["ranks"]
    assert rows == [{"rank": 1, "state": "gone"}]
    (tmp_path / "none").write_text("@unhang note its ranks are of other jobs: 10.0.0.1:29500\n@unhang done\n")
    live.collect(
        [place, place._replace(name="m", command=("cat", str(tmp_path / "none")))], tmp_path / "both", progress.silent
    )
    assert json.loads((tmp_path / "both/w/nodes.json").read_text()) == {
        "unhang-live": 1, "size": 2, "ranks": [{"rank": 1, "state": "gone"}], "notes": [],
    }  # fmt: skip
    live.collect([place, place._replace(name="m", command=("false",))], tmp_path / "more", progress.silent)
    assert json.loads((tmp_path / "more/w/nodes.json").read_text())["ranks"] == []


def test_a_node_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "APART_S", 0.0)
    monkeypatch.setattr(live, "_LIMIT_S", 0.2)
    (tmp_path / "sent").write_text(sent("w/ranks.json", RANKS) + "@unhang done\n")
    places = [live.Place("n", ("cat", str(tmp_path / "sent"))), live.Place("m", ("sleep", "600"))]
    live.collect(places, tmp_path / "out", progress.silent)
    assert "m: not everything arrived within 0 s" in json.loads((tmp_path / "out/w/nodes.json").read_text())["notes"]


def test_why_nothing_came_is_in_the_message(tmp_path: Path) -> None:
    for said, hint in (
        ("ModuleNotFoundError: No module named 'ray'", "name the Python of the job's own environment, which has Ray, "),
        ("ConnectionError: refused", "start it as the job's user"),
    ):
        with pytest.raises(UnhangError) as caught:
            live.collect([live.Place("Ray", ("printf", said))], tmp_path / "out", progress.silent)
        assert caught.value.code == "no-ranks"
        assert caught.value.message.endswith(f" has a rank: Ray: not every node has answered (0 have): {said}")
        assert str(caught.value.hint).startswith(hint)


def test_all_that_went_wrong_is_in_the_message_and_other_jobs_by_their_addresses(
    tmp_path: Path, hung: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sent").write_text("@unhang note its ranks are of other jobs: 10.0.0.1:29500\n@unhang done\n")
    places = [live.Place("a", ("cat", str(tmp_path / "sent"))), live.Place("b", ("printf", "no route"))]
    with pytest.raises(UnhangError) as caught:
        live.collect(places, tmp_path / "out", progress.silent)
    assert caught.value.message.startswith("no process was found that is a rank of that job: ")
    assert {*caught.value.message.removeprefix("no process was found that is a rank of that job: ").split("; ")} == {
        "a: its ranks are of other jobs: 10.0.0.1:29500",
        "b: not every node has answered (0 have): no route",
    }
    assert "--master" in str(caught.value.hint)
    kept = tmp_path / "kept"
    assert main(["diagnose", "--live", "--master", "no:1", "--keep", str(kept)]) == 2
    assert re.search(
        r"a rank of that job: this node: its ranks are of other jobs: (.*, )?hung_1", capsys.readouterr().err
    )
    assert not kept.exists(), "nothing is in it"


def test_a_job_left_out_that_has_ended_has_no_ranks_to_count(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"rank": 0, "pid": 7, "state": "gone"}
    text = sent("w/ranks.json", RANKS) + sent("v/ranks.json", json.dumps({"unhang-live": 1, "ranks": [row]}).encode())
    (tmp_path / "sent").write_text(f"{text}@unhang done\n")
    monkeypatch.setattr(live, "here", lambda _: [live.Place("n", ("cat", str(tmp_path / "sent")), is_all=False)])
    main(["diagnose", "--live"])
    err = capsys.readouterr().err
    assert "took the job w, with 1 rank\n" in err
    assert "left out another job, whose ranks have all ended; for that: unhang diagnose --live --master v\n" in err


def test_what_kubectl_has_tried_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 'echo \'E1125 12:00:00.1 9 memcache.go:265] "Unhandled Error" err="refused"\' >&2\n' * 5
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for last, why in ("echo 'The server refused' >&2\n", "The server refused"), ("", "E1125 12:00:00.1 9 memcache.go"):
        program(tmp_path / "bin", "kubectl", f"#!/bin/sh\n{tries}{last}exit 1\n")
        with pytest.raises(UnhangError) as caught:
            live.kubectl("job=x")
        assert caught.value.message.startswith(f"kubectl has failed: {why}")
        assert caught.value.message.count("refused") == 1


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
    ("words", "code", "message"),
    [
        (["--slurm", "--x"], "no-nodes", "not the number of a job: --x"),
        (["--slurm", "77"], "no-nodes", "Slurm's job 77 has no nodes that could be asked: it is PENDING"),
        (["--kubectl", "-n x"], "no-nodes", "not a selector of pods: -n x"),
        (["--kubectl", "a=b -A"], "no-nodes", "kubectl is not on PATH"),
    ],
)
def test_why_no_node_is_asked(
    words: Sequence[str], code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "squeue", "#!/bin/sh\necho 77 2 PENDING\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UnhangError) as caught:
        {"--slurm": live.slurm, "--kubectl": live.kubectl}[words[0]](words[1])
    assert (caught.value.code, caught.value.message) == (code, message)
