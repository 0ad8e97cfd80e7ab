"""The examples of docs/slurm.md with a stand-in for srun, those of docs/ray.md on a Ray cluster of several nodes."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import cli, environments, packed, pages
from unhang import fleet
from unhang.errors import UnhangError
from unhang.fleet import Seen
from unhang.plugins import packs

DOCS = Path(__file__).parent.parent / "docs"
VERL = ("verl", "0.7.1")
SRUN = """\
#!/bin/sh
# a stand-in for srun: runs the command once for each node, in its environment; exits with the highest code
while [ "${1#--}" != "$1" ]; do shift; done
highest=0 task=0
for node in $NODES; do
    VIRTUAL_ENV="$node" PATH="$node/bin:$PATH" "$@" >"$node.log" 2>&1
    code=$?
    sed "s/^/$task: /" "$node.log"
    [ "$code" -le "$highest" ] || highest=$code
    task=$((task + 1))
done
exit "$highest"
"""


# ---- Slurm


class Nodes(NamedTuple):
    """Two nodes, each an environment, and the stand-in for srun."""

    folder: Path
    prefixes: list[Path]

    def run(self, script: str) -> cli.Ran:
        """Run a batch script on the first node."""
        first = self.prefixes[0]
        path = os.pathsep.join([str(first / "bin"), str(self.folder / "slurm"), os.environ["PATH"]])
        env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(first), "NODES": " ".join(map(str, self.prefixes))}
        env.pop("PYTHONPATH", None)
        command = ["sh", "-c", script]
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, check=False)
        return cli.Ran(done.returncode, done.stdout, done.stderr)

    def patch(self, number: int) -> None:
        """Apply the fixes on one node."""
        assert cli.installed("apply", "--python", self.prefixes[number] / "bin" / "python").code == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    prefixes = []
    for name in "first", "second":
        env = environments.make_env(tmp_path / name)
        cli.unpack_targets(env.site, VERL)
        command = env.prefix / "bin" / "unhang"
        # the same unhang for all nodes; $VIRTUAL_ENV names the node's environment
        command.write_text(f"#!{sys.executable}\nfrom unhang.cli.main import run\nraise SystemExit(run())\n")
        command.chmod(0o755)
        prefixes.append(env.prefix)
    srun = tmp_path / "slurm" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return Nodes(tmp_path, prefixes)


@pytest.mark.slow
@pytest.mark.parametrize("patched", [0, 1])
def test_slurm_stops_where_half_of_the_nodes_are_patched_and_passes_where_all_are(nodes: Nodes, patched: int) -> None:
    nodes.patch(patched)
    ran = nodes.run(pages.example(DOCS / "slurm.md", "slurm") + "echo training")
    assert (ran.code, "training" in ran.out) == (1, False), ran
    other = f"{1 - patched}: required fix not in place: fused-head-no-gradient is needed on verl 0.7.1"
    assert next(line for line in ran.out.splitlines() if "required fix" in line).startswith(other)
    (line,) = [line for line in ran.out.splitlines() if "unexpected code" in line]
    assert line.startswith("1: unexpected code: the code has digest ")
    nodes.patch(1 - patched)
    ran = nodes.run(pages.example(DOCS / "slurm.md", "slurm") + "echo training")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "training"), ran
    assert [line for line in ran.out.splitlines() if "nothing left to do" in line][1].startswith("1: ")
    shutil.rmtree(next(nodes.prefixes[0].glob("lib/*/site-packages/verl")))
    ran = nodes.run(pages.example(DOCS / "slurm.md", "slurm") + "echo training")
    assert (ran.code, "training" in ran.out) == (1, False)
    assert "is not a digest" in ran.out


@pytest.mark.slow
def test_slurm_patches_nodes_that_have_their_own_copies(nodes: Nodes) -> None:
    script = pages.example(DOCS / "slurm.md", "apply") + pages.example(DOCS / "slurm.md", "slurm") + "echo training"
    ran = nodes.run(script)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "training"), ran
    assert [line[0] for line in ran.out.splitlines() if re.search(r"patched \d+ files", line)] == ["0", "1"]


# ---- the report on the nodes


def test_nodes_that_differ_have_a_line_each() -> None:
    same = Seen("1", ())
    assert fleet.disagreement({"a": same, "b": same}) == []
    found: dict[str, Seen | str] = {"a": same, "b": Seen("2", ("x is needed",)), "c": same, "d": "gone"}
    assert fleet.disagreement(found)[1:] == [
        "  a: digest 1, on 2 of 4 nodes",
        "  b: digest 2, on 1 of 4 nodes",
        "    required fix not in place: x is needed",
        "  c: digest 1, on 2 of 4 nodes",
        "  d: gone",
    ]


@pytest.mark.parametrize("bad", [Seen("1", ("x is needed",)), "no answer"])
def test_nodes_that_agree_but_lack_a_fix_or_an_answer_have_lines(bad: Seen | str) -> None:
    assert len(fleet.disagreement({"a": bad, "b": bad})) > 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"require": ["mtp-cp-deadlock"]},
        {"fix": ["mtp-cp-deadlock"]},
        {"skip": ["mtp-cp-deadlock"]},
        {"skip": ["mtp-cp-deadlock"], "require": ["mtp-cp-deadlock"]},
        {"upstream": ["megatron-core"], "fix": ["empty-expert-hang"]},
        {"upstream": ["megatron-core"], "require": ["mtp-cp-deadlock"]},
        {"upstream": ["ms-swift"]},
    ],
)
def test_a_node_is_looked_at_as_check_does_with_the_same_words(options: dict[str, list[str]], two: Path) -> None:
    ran = cli.python("-c", f"from unhang.fleet import look; print(look({options}))", env={"PYTHONPATH": str(two)})
    words = [word for name, values in options.items() for value in values for word in (f"--{name}", value)]
    where = ("--python", sys.executable, "--output-format", "json")
    check = cli.installed("check", *where, *words, env={"PYTHONPATH": str(two)})
    if check.code == 2:
        assert ran.out.startswith(check.json["error"]["message"])
        return
    unmet = [line.removeprefix("required fix not in place: ") for line in check.err.splitlines() if "required" in line]
    seen = Seen(check.json["digest"], tuple(unmet))
    assert ran.out.strip() == str(seen)
    assert bool(unmet) is ("require" in options)


def test_a_node_whose_pack_has_no_fix_is_not_alike(two: Path, tmp_path: Path) -> None:
    shutil.rmtree(packed.pack(tmp_path / "acme") / "patches")
    env = {"PYTHONPATH": str(two), "UNHANG_PACKS": str(tmp_path / "acme")}
    ran = cli.python("-c", "from unhang.fleet import look; print(look({}))", env=env)
    assert "there is no fix of acme 1.2" in ran.out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with verl and megatron-core, for PYTHONPATH."""
    return cli.unpack_targets(tmp_path_factory.mktemp("two"), VERL, ("megatron-core", "0.16.1"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({}, "no-ray", "Ray is not started" if find_spec("ray") else "Ray is not installed here"),
        ({"require": "mtp-cp-deadlock", "upstream": ["verl"]}, "no-ray", "Ray is not "),
        *(({name: ["mtp"]}, "unknown-fix", "there is no fix 'mtp'") for name in ("require", "fix", "skip")),
        ({"fix": "mtp"}, "unknown-fix", "there is no fix 'mtp'"),
        ({"accept": "yes"}, "bad-token", "--accept: 'yes' is not a token"),
        ({"kind": "hang", "skip": ["mtp-cp-deadlock"]}, "no-ray", "Ray is not "),
        ({"kind": ["hung"]}, "unknown-kind", "there is no kind 'hung'"),
        ({"upstream": ["swift"]}, "unknown-upstream", "there is no upstream 'swift'"),
    ],
)
def test_before_any_node_is_asked(options: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(UnhangError) as caught:
        fleet.require_agreement(**options)
    assert (caught.value.code, message in caught.value.message) == (code, True)
    meant = "did you mean hang" if "kind" in code else "did you mean m"
    assert meant in str(caught.value.hint) or not code.startswith("unknown")


def test_the_variables_count_for_ray_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNHANG_REQUIRE", "mtp")
    with pytest.raises(UnhangError, match="UNHANG_REQUIRE: there is no fix 'mtp'"):
        fleet.require_agreement()
    with pytest.raises(UnhangError, match="Ray is not "):
        fleet.require_agreement(require="mtp-cp-deadlock")


# ---- Ray

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="ray is not installed: the check of a cluster's nodes is tested by nox -s fleet"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's warnings


class RayCluster(NamedTuple):
    """A local cluster. Each node has its own PYTHONPATH, with another copy of verl or none."""

    cluster: Any
    folders: dict[str, Path]
    ids: dict[str, str]

    def nodes(self, *names: str) -> list[str]:
        """Return the ids of these nodes."""
        return [self.ids[name] for name in names]

    def differ(self, *names: str, **options: Any) -> str:
        """Return the message of the error for these nodes."""
        with pytest.raises(UnhangError) as caught:
            fleet.require_agreement(require=["mtp-cp-deadlock"], nodes=self.nodes(*names), **options)
        assert caught.value.code == "nodes-differ"
        return caught.value.message


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray.cluster_utils import Cluster

    top = tmp_path_factory.mktemp("nodes")
    folders = {name: top / name for name in ("patched", "patched too", "bare", "without unhang", "without verl")}
    for name, folder in folders.items():
        folder.mkdir()
        if name != "without verl":
            cli.unpack(folder, VERL)
        if name.startswith("patched"):
            assert cli.installed("apply", "--target", folder).code == 0
    text = "raise ModuleNotFoundError(\"No module named 'unhang'\")\n"
    environments.write(folders["without unhang"], {"unhang/__init__.py": text})
    cluster = Cluster()
    ids = {}
    try:
        for name, folder in folders.items():
            options = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
            ids[name] = cluster.add_node(env_vars={"PYTHONPATH": str(folder)}, **options).node_id
        ray.init(address=cluster.address, log_to_driver=False)
        yield RayCluster(cluster, folders, ids)
    finally:
        ray.shutdown()
        cluster.shutdown()


@needs_ray
def test_ray_nodes_that_are_all_patched_agree(ray_cluster: RayCluster) -> None:
    nodes = ray_cluster.nodes("patched", "patched too")
    expected = cli.installed("check", "--target", ray_cluster.folders["patched"], "--output-format", "json").json[
        "digest"
    ]
    assert fleet.require_agreement(require=["mtp-cp-deadlock"], nodes=nodes) == expected


@needs_ray
def test_an_unpatched_ray_node_is_named_with_its_digest(ray_cluster: RayCluster) -> None:
    lines = ray_cluster.differ("patched", "patched too", "bare").splitlines()[1:]
    bare = ray_cluster.ids["bare"][:8]
    assert [line for line in lines if "on 1 of 3 nodes" in line] == [line for line in lines if f"(node {bare})" in line]
    assert sum("on 2 of 3 nodes" in line for line in lines) == 2
    assert f"mtp-cp-deadlock is needed on verl 0.7.1 in {ray_cluster.folders['bare']}" in "\n".join(lines)
    with pytest.raises(UnhangError, match="on 1 of 2 nodes"):
        fleet.require_agreement(nodes=ray_cluster.nodes("patched", "bare"))
    digest = fleet.require_agreement(nodes=ray_cluster.nodes("bare"), skip="mtp-cp-deadlock")
    folder = ray_cluster.folders["bare"]
    check = cli.installed("check", "--target", folder, "--skip", "mtp-cp-deadlock", "--output-format", "json")
    assert digest == check.json["digest"]


@needs_ray
def test_a_ray_node_that_cannot_answer_is_named(ray_cluster: RayCluster) -> None:
    message = ray_cluster.differ("patched", "without unhang", "without verl")
    unhang, verl = (ray_cluster.ids[name][:8] for name in ("without unhang", "without verl"))
    assert f"(node {unhang}): no answer: ModuleNotFoundError: No module named 'unhang'" in message
    assert f"(node {verl}): none of {', '.join(packs.upstreams())}" in message
    assert "no answer within 0 s" in ray_cluster.differ("patched", "bare", timeout_s=0)


@needs_ray
def test_by_default_all_alive_ray_nodes_are_asked_and_others_are_an_error(ray_cluster: RayCluster) -> None:
    with pytest.raises(UnhangError, match="the 5 nodes do not all have"):
        fleet.require_agreement()
    for nodes in ["0" * 56], []:
        with pytest.raises(UnhangError) as caught:
            fleet.require_agreement(nodes=nodes)
        assert caught.value.code == "no-nodes"


@needs_ray
def test_the_example_stops_a_job_on_this_cluster(ray_cluster: RayCluster, tmp_path: Path) -> None:
    script = tmp_path / "agree.py"
    script.write_text(pages.example(DOCS / "ray.md", "ray"))
    ran = cli.python(script, env={"RAY_ADDRESS": ray_cluster.cluster.address, "PYTHONPATH": ""})
    assert ran.code == 1
    assert "unhang.errors.UnhangError: the 5 nodes do not all have the code" in ran.err


@needs_ray
def test_the_runtime_environment_of_the_job_decides(ray_cluster: RayCluster, tmp_path: Path) -> None:
    code = f"""\
        import ray
        from unhang.fleet import require_agreement
        ray.init(address={ray_cluster.cluster.address!r}, log_to_driver=False,
                 runtime_env={{"env_vars": {{"PYTHONPATH": {str(ray_cluster.folders["patched"])!r}}}}})
        print(require_agreement(require=["mtp-cp-deadlock"]))
        """
    script = tmp_path / "agree.py"
    script.write_text(textwrap.dedent(code))
    ran = cli.python(script)
    assert (ran.code, len(ran.out.strip())) == (0, 16), ran.err[-2000:]


@needs_ray
def test_a_reused_ray_worker_sees_that_its_node_was_patched(ray_cluster: RayCluster) -> None:
    ray_cluster.differ("patched", "bare")
    assert cli.installed("apply", "--target", ray_cluster.folders["bare"]).code == 0
    try:
        assert (
            len(fleet.require_agreement(require=["mtp-cp-deadlock"], nodes=ray_cluster.nodes("patched", "bare"))) == 16
        )
    finally:
        assert cli.installed("revert", "--target", ray_cluster.folders["bare"]).code == 0
