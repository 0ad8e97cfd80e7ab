"""What is written to an unknown shape: the rewrite whose token a person names, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import cli
from unhang.shapes import catalog

MTP, WARMUP, SFT, EXPERTS = "mtp-cp-deadlock", "expert-dp-warmup", "sft-packed-seq-broadcast", "empty-expert-hang"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PARALLEL_STATE, BATCH = "megatron/core/parallel_state.py", "megatron/training/utils.py"
GATE = "        if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():"
SETTER, HEAD = (
    "    _set_global_memory_buffer()\n",
    "def get_batch_on_this_tp_rank(data_iterator, mtp_on_this_rank: bool = False):\n",
)
# A3, and the edits of H7: a checker that read the code could not see through them.
SEMANTIC = {
    "a raise on some ranks": (MTP, ENGINE, GATE, f"        if self.rank % 2:\n            raise ValueError\n{GATE}"),
    "an exit of some ranks": (MTP, ENGINE, GATE, f"        if self.rank:\n            raise SystemExit\n{GATE}"),
    "a group destroyed": (WARMUP, PARALLEL_STATE, SETTER, f"    destroy(_EXPERT_DATA_PARALLEL_GROUP)\n{SETTER}"),
    "an opaque call": (SFT, BATCH, HEAD, f"{HEAD}    switch(get_args())\n"),
    "a name made local": (SFT, BATCH, "    return batch\n", "    return batch\n    del int\n"),
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack_targets(
        tmp_path_factory.mktemp("release") / "site", ("verl", "0.7.1"), ("megatron-core", "0.17.1")
    )


@pytest.fixture
def site(release: Path, tmp_path: Path) -> Path:
    """A copy, with an edit far from the rewrite."""
    folder = Path(shutil.copytree(release, tmp_path / "site"))
    edit(folder, ENGINE, "        output = {}\n", "        output = dict()\n")
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_bytes().decode()
    before, middle, after = text.rpartition(old)
    assert middle
    (folder / file).write_bytes((before + new + after).encode())


def result(*words: str | Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a command about one function, and what it says of it."""
    ran = cli.unhang(*words, "--output-format", "json", env=variables)
    (found,) = ran.json["results"]
    return ran.code, found


@pytest.mark.parametrize("name", SEMANTIC)
def test_a_semantic_edit_is_never_written_without_a_token(name: str, release: Path, tmp_path: Path) -> None:
    fix, file, old, new = SEMANTIC[name]
    site = Path(shutil.copytree(release, tmp_path / "site"))
    edit(site, file, old, new)
    before, chosen = cli.tree(site), ("--target", site, "--fix", fix)
    for command in ("check",), ("apply",), ("apply", "--accept", "0" * 16 + "-1-" + "1" * 16):
        ran = cli.unhang(*command, *chosen, "--output-format", "json")
        (found,) = (row for row in ran.json["results"] if row["file"] == file)
        assert (ran.code, found["verdict"], found["accepted"]) == (1, "drifted", False)
    assert cli.unhang("diff", *chosen).out == ""
    assert cli.tree(site) == before


def test_from_the_diff_to_the_token_to_the_file_and_back(site: Path, tmp_path: Path) -> None:
    before, chosen = cli.tree(site), ("--target", site, "--fix", MTP)
    ran = cli.unhang("diff", "--unknown", "--target", site)
    (line,) = (line for line in ran.out.splitlines() if line.startswith("# to write it"))
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", ran.out))
    assert (ran.code, ran.out.count("+++"), "blocked" in ran.err) == (1, 1, False), "not what apply writes anyway"
    assert line == f"# to write it, run: unhang apply --target {site} --fix {MTP} --accept {token}"
    shape, _, planned = token.split("-")
    assert token == f"{shape}-{catalog.generation()}-{planned}"
    patched = Path(shutil.copytree(site, tmp_path / "patched"))
    subprocess.run(["git", "apply", "-p1"], cwd=patched, input=ran.out.encode("latin-1"), check=True)

    assert result("check", *chosen)[1]["shape"] == shape
    code, found = result("check", *chosen, "--accept", token)
    assert (code, found["code"], found["hint"]) == (
        1,
        "unknown-shape",
        f"unhang apply --target {site} --fix {MTP} --accept {token}",
    )
    assert result("apply", "--dry-run", *chosen, "--accept", token)[1]["code"] == "accepted"
    assert cli.tree(site) == before
    code, found = result("apply", *chosen, "--require", MTP, UNHANG_ACCEPT=f"{token},{'0' * 16}-1-{'1' * 16}")
    assert (code, found["verdict"], found["code"], found["accepted"], found["changed"]) == (
        0, "drifted", "accepted", True, True,
    )  # fmt: skip
    assert (site / ENGINE).read_bytes() == (patched / ENGINE).read_bytes()

    receipt = json.loads((site / ".unhang/receipt.json").read_text())
    (fixed,) = receipt["files"][0]["fixes"]
    day = fixed["date"]
    assert (fixed["before"], fixed["after"], fixed["generation"], fixed["verified"]) == (
        shape,
        planned,
        catalog.generation(),
        False,
    )
    code, found = result("check", *chosen, "--require", MTP)
    assert (code, found["code"], found["accepted"], found["shape"]) == (1, "accepted", False, planned)
    assert found["detail"] == f"accepted by a person on {day}"
    named = f"unhang check --target {site} --fix {MTP} --require {MTP} --accept {token}"
    assert f"`{named}`" in found["hint"]
    code, found = result(*named.split()[1:])
    assert (code, found["accepted"], found["hint"]) == (0, True, "")
    assert cli.unhang("diff", "--unknown", *chosen).code == 1
    assert cli.unhang("diff", "--unknown", *chosen, "--accept", token).code == 0
    assert cli.unhang("apply", *chosen).code == 1, "nothing was written, and the token is not named"
    again = cli.unhang("apply", *chosen, "--accept", token)
    assert (again.code, "the end state was there already" in again.err) == (0, True)

    # without a receipt, as in an image, only the token tells; a reinstall is seen
    assert result("check", "--target", patched, "--fix", MTP)[1]["code"] == "unknown-shape"
    code, found = result("check", "--target", patched, "--fix", MTP, "--accept", token)
    assert (code, found["code"], found["detail"]) == (0, "accepted", "accepted by a person")

    # as an unhang wrote it from before the tokens
    del fixed["date"], fixed["generation"]
    (site / ".unhang/receipt.json").write_text(json.dumps(receipt))
    assert result("check", *chosen)[1]["code"] == "unverified"
    assert result("check", *chosen, "--accept", token)[1]["code"] == "accepted"
    assert cli.unhang("revert", *chosen).code == 0
    assert cli.tree(site) == before


def test_a_token_for_another_shape_result_or_generation_writes_nothing_and_is_told(site: Path) -> None:
    chosen = ("--target", site, "--fix", MTP)
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", cli.unhang("diff", "--unknown", *chosen).out))
    shape, generation, planned = token.split("-")
    before, other = cli.tree(site), "0" * 16
    for wrong in f"{other}-{generation}-{planned}", f"{shape}-{generation}-{other}", f"{shape}-9-{planned}":
        ran = cli.unhang("apply", *chosen, "--accept", wrong)
        assert ran.code == 1
        assert f"warning: nothing is accepted by the token {wrong}: " in ran.err
    for malformed in "yes", token[1:], f"{shape}-0-{planned}", f"{shape}-{generation}-{shape}", f"{token} ":
        ran = cli.unhang("apply", *chosen, "--accept", malformed)
        assert (ran.code, f"error[bad-token]: --accept: {malformed!r} is not a token" in ran.err) == (2, True)
    ran = cli.unhang("apply", *chosen, env={"UNHANG_ACCEPT": "yes"})
    assert (ran.code, "error[bad-token]: UNHANG_ACCEPT: 'yes' is not a token" in ran.err) == (2, True)
    assert cli.tree(site) == before


def test_overlays_and_wheels_take_tokens_too(site: Path, tmp_path: Path) -> None:
    chosen = ("--target", site, "--fix", MTP)
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", cli.unhang("diff", "--unknown", *chosen).out))
    overlay, wheels, accept = tmp_path / "overlay", tmp_path / "wheels", ("--accept", token)
    assert cli.unhang("overlay", overlay, *chosen).code == 1
    assert result("overlay", overlay, *chosen, *accept)[1]["code"] == "accepted"
    code, found = result("overlay", overlay, "--check", *chosen)
    assert (code, found["code"]) == (1, "unknown-shape")
    assert found["hint"].endswith(f"`unhang diff --target {site} --unknown --fix {MTP}`")
    code, found = result("overlay", overlay, "--check", *chosen, *accept)
    assert (code, found["detail"]) == (0, f"in the overlay {overlay}; accepted by a person")

    source = wheel_of(site, "verl-0.7.1")
    ran = cli.unhang("wheel", source, "-o", wheels)
    assert (ran.code, wheels.exists()) == (1, False)
    assert f"unpack the wheel into a folder DIR, then unhang diff --unknown --fix {MTP} --target DIR" in ran.err
    wrong = f"{'0' * 16}-1-{'1' * 16}"
    ran = cli.unhang("wheel", source, "-o", wheels, "--require", MTP, *accept, "--accept", wrong)
    assert (ran.code, ran.err.count("nothing is accepted by the token")) == (0, 1)
    (built,) = wheels.iterdir()
    shutil.unpack_archive(built, tmp_path / "installed", "zip")
    assert result("check", "--target", tmp_path / "installed", "--fix", MTP, *accept)[0] == 0


def wheel_of(site: Path, name: str) -> Path:
    """Make a wheel of what a folder has of a release."""
    record = site / f"{name}.dist-info/RECORD"
    kept = [row for row in record.read_text().splitlines() if (site / row.partition(",")[0]).is_file()]
    record.write_text("\n".join(row.partition(",")[0] + ",," for row in kept) + "\n")
    for other in site.iterdir():
        if not other.name.startswith("verl"):
            shutil.rmtree(other)
    made = shutil.make_archive(str(site.parent / "made"), "zip", site)
    return Path(shutil.move(made, site.parent / f"{name}-py3-none-any.whl"))
