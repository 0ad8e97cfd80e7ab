"""What is written to an unknown shape: the rewrite whose token a person names, and nothing else."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import cli
from unhang.compat.sweep import trees
from unhang.records import Token
from unhang.shapes import catalog

MTP, WARMUP, SFT, EXPERTS = "mtp-cp-deadlock", "expert-dp-warmup", "sft-packed-seq-broadcast", "empty-expert-hang"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
BATCHES, ACTOR = "fsdp-dynamic-bsz", "verl/workers/actor/dp_actor.py"
HELPER = "verl/utils/seqlen_balancing.py"
PARALLEL_STATE, BATCH = "megatron/core/parallel_state.py", "megatron/training/utils.py"
GATE = "        if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():"
FORWARD = "megatron/core/transformer/moe/experts.py"
COUNTS = "tokens_per_expert: list[int] = tokens_per_expert.tolist()"
SETTER, HEAD = (
    "    _set_global_memory_buffer()\n",
    "def get_batch_on_this_tp_rank(data_iterator, mtp_on_this_rank: bool = False):\n",
)
# A3, and the edits of H7: a checker that read the code could not see through them. Each group is in one environment.
SEMANTIC = {
    "a raise, a group destroyed, and an opaque call": [
        (MTP, ENGINE, GATE, f"        if self.rank % 2:\n            raise ValueError\n{GATE}"),
        (WARMUP, PARALLEL_STATE, SETTER, f"    destroy(_EXPERT_DATA_PARALLEL_GROUP)\n{SETTER}"),
        (SFT, BATCH, HEAD, f"{HEAD}    switch(get_args())\n"),
    ],
    "an exit of some ranks, and a name made local": [
        (MTP, ENGINE, GATE, f"        if self.rank:\n            raise SystemExit\n{GATE}"),
        (SFT, BATCH, "    return batch\n", "    return batch\n    del int\n"),
    ],
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
    ran = cli.called(*words, "--output-format", "json", env=variables)
    (found,) = ran.json["results"]
    return ran.code, found


@pytest.mark.slow
@pytest.mark.parametrize("name", SEMANTIC)
def test_a_semantic_edit_is_never_written_without_a_token(name: str, release: Path, tmp_path: Path) -> None:
    site = Path(shutil.copytree(release, tmp_path / "site"))
    for _, *edited in SEMANTIC[name]:
        edit(site, *edited)
    files = {(fix, file) for fix, file, *_ in SEMANTIC[name]}
    before, chosen = cli.tree(site), ("--target", str(site), *(word for fix, _ in files for word in ("--fix", fix)))
    for command in ("check",), ("apply",), ("apply", "--accept", "0" * 16 + "-1-" + "1" * 16):
        ran = cli.called(*command, *chosen, "--output-format", "json")
        rows = [row for row in ran.json["results"] if (row["fix"], row["file"]) in files]
        assert (ran.code, len(rows)) == (1, len(files))
        assert {(row["verdict"], row["accepted"]) for row in rows} == {("drifted", False)}
    assert cli.called("diff", *chosen).out == ""
    assert cli.tree(site) == before


def test_from_the_diff_to_the_token_to_the_file_and_back(site: Path, tmp_path: Path) -> None:
    before, chosen = cli.tree(site), ("--target", site, "--fix", MTP)
    ran = cli.called("diff", "--unknown", "--target", site)
    (line,) = (line for line in ran.out.splitlines() if line.startswith("# to write it"))
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", ran.out))
    assert (ran.code, ran.out.count("+++"), "blocked" in ran.err) == (1, 1, False), "not what apply writes anyway"
    assert line == f"# to write it, run: unhang apply --target {site} --fix {MTP} --accept {token}"
    shape, _, mixed = token.split("-")
    planned = Token(shape, catalog.generation(), mixed).mixed().result
    assert token == str(Token(shape, catalog.generation(), planned))
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
    assert cli.called("diff", "--unknown", *chosen).code == 1
    assert cli.called("diff", "--unknown", *chosen, "--accept", token).code == 0
    assert cli.called("apply", *chosen).code == 1, "nothing was written, and the token is not named"
    again = cli.called("apply", *chosen, "--accept", token)
    assert f": later checks need UNHANG_ACCEPT='{token}', or --accept\n" in again.err
    assert (again.code, "nothing was changed\n" in again.err) == (0, True)

    # without a receipt, as in an image, only the token tells; a reinstall is seen
    assert result("check", "--target", patched, "--fix", MTP)[1]["code"] == "unknown-shape"
    code, found = result("check", "--target", patched, "--fix", MTP, "--accept", token)
    assert (code, found["code"], found["detail"]) == (0, "accepted", "accepted by a person")
    for made_up in f"{'0' * 16}{token[16:]}", f"{token[:-16]}{found['shape']}":
        ran = cli.called("check", "--target", patched, "--fix", MTP, "--require", MTP, "--accept", made_up)
        assert (ran.code, f"nothing is accepted by the token {made_up}" in ran.err) == (1, True), "no part alone"

    assert cli.called("revert", *chosen).code == 0
    assert cli.tree(site) == before


@pytest.mark.torch
@pytest.mark.slow
def test_what_a_run_shows_is_in_the_token_the_receipt_and_check_and_settles_nothing(tmp_path: Path) -> None:
    site = Path(shutil.copytree(trees.unpacked("megatron-core", "0.17.1"), tmp_path / "site"))
    chosen = ("--target", site, "--fix", EXPERTS)
    edit(site, FORWARD, COUNTS, COUNTS.replace(".tolist", ".cpu().tolist"))
    before = cli.called("diff", "--unknown", *chosen, "--output-format", "json").json
    ran = cli.called("diff", "--unknown", "--run", *chosen, "--output-format", "json")
    (unasked,), (row,) = before["functions"], ran.json["functions"]
    assert (ran.code, before["diff"], unasked["shows"], unasked["after"]) == (1, ran.json["diff"], "not-run", "not-run")
    token, shape = row["token"], row["shape"]
    assert (row["shows"], row["after"], row["settings"] > 50, row["file"]) == (
        "defect", "no-defect", True, FORWARD,
    )  # fmt: skip
    assert re.fullmatch(f"{unasked['token']}-[0-9a-f]{{8}}", token)
    text = cli.called("diff", "--run", *chosen)
    assert f"shows a defect of {row['function']}, and no defect with the fix, in {row['settings']}" in text.out
    assert f"--accept {token}" in text.out
    assert cli.called("apply", *chosen, "--accept", f"{token[:-1]}{'0' if token[-1] != '0' else '1'}").code == 2, (
        "forged"
    )
    for named, seen in (unasked["token"], {}), (token, {"seen_right": True}):
        assert cli.called("apply", *chosen, "--accept", named).code == 0
        (fixed,) = json.loads((site / ".unhang/receipt.json").read_text())["files"][0]["fixes"]
        assert {key: value for key, value in fixed.items() if key == "seen_right"} == seen
        code, found = result("check", *chosen)
        assert (code, found["code"], "seen right by `diff --unknown --run`" in found["detail"]) == (
            1,
            "accepted",
            bool(seen),
        )
        assert [result("check", *chosen, "--accept", either)[0] for either in (unasked["token"], token)] == [0, 0]
        if seen:
            rewritten = cli.called("diff", "--run", *chosen, "--output-format", "json").json["functions"]
            assert [(it["shows"], it["after"], it["token"]) for it in rewritten] == [("no-defect", "not-run", None)]
        assert cli.called("revert", *chosen).code == 0
    assert result("check", *chosen)[1]["shape"] == shape


def test_a_token_for_another_shape_result_or_generation_writes_nothing_and_is_told(site: Path) -> None:
    chosen = ("--target", site, "--fix", MTP)
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", cli.called("diff", "--unknown", *chosen).out))
    shape, generation, planned = token.split("-")
    before, other = cli.tree(site), "0" * 16
    itself = f"{shape}-{generation}-{shape}"  # only where upstream's own fix seems to be there
    for wrong in f"{other}-{generation}-{planned}", f"{shape}-{generation}-{other}", f"{shape}-9-{planned}", itself:
        ran = cli.called("apply", *chosen, "--accept", wrong)
        assert ran.code == 1
        assert f"warning: nothing is accepted by the token {wrong}: " in ran.err
    for malformed in "yes", token[1:], f"{shape}-0-{planned}", f"{token} ":
        ran = cli.called("apply", *chosen, "--accept", malformed)
        assert (ran.code, f"error[bad-token]: --accept: {malformed!r} is not a token" in ran.err) == (2, True)
    ran = cli.called("apply", *chosen, env={"UNHANG_ACCEPT": "yes"})
    assert (ran.code, "error[bad-token]: UNHANG_ACCEPT: 'yes' is not a token" in ran.err) == (2, True)
    assert cli.tree(site) == before


def test_upstreams_own_fix_in_an_unknown_shape_is_settled_by_its_token(tmp_path: Path) -> None:
    """In a checkout of what may come after the matrix; nothing is written."""
    shutil.rmtree(cli.unpack_targets(tmp_path, ("verl", "0.8.0")) / "verl-0.8.0.dist-info")
    (tmp_path / "verl/version/version").write_text("99.0\n")
    define = "    def forward_backward_batch("
    edit(tmp_path, ENGINE, define, f"    @torch.no_grad()\n{define}")
    before, chosen = cli.tree(tmp_path), ("--source", tmp_path, "--fix", MTP)
    code, found = result("check", *chosen)
    assert (code, found["verdict"], found["code"]) == (1, "unlisted", "newer-than-matrix")
    assert "upstream's own fix seems to be there, but no RECORD confirms it" in found["detail"]
    (look,) = re.findall(r"`(unhang diff [^`]*)`", found["hint"])
    assert cli.called("apply", *chosen).code == 1

    ran = cli.called(*look.split()[1:])
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", ran.out))
    assert token == str(Token(found["shape"], catalog.generation(), found["shape"]))
    *about, settle = ran.out.splitlines()
    assert (ran.code, [line[:2] for line in about]) == (1, ["# "] * 2), "no diff: nothing is rewritten"
    assert str(tmp_path / ENGINE) in about[0]
    assert "blocked" not in ran.err
    assert settle == f"# to settle it, run: unhang check --source {tmp_path} --fix {MTP} --accept {token}"
    code, found = result(*settle.partition("unhang ")[2].split())
    assert (code, found["verdict"], found["code"], found["accepted"]) == (0, "drifted", "accepted", True)
    for command in ("check",), ("apply",), ("apply", "--dry-run"), ("overlay", tmp_path / "overlay"):
        assert cli.called(*command, *chosen, "--require", MTP, "--accept", token).code == 0, command
    assert cli.called("diff", "--unknown", *chosen, "--accept", token).out == ""
    shutil.rmtree(tmp_path / "overlay")
    assert cli.tree(tmp_path) == before


@pytest.mark.slow
def test_overlays_and_wheels_take_tokens_too(site: Path, tmp_path: Path) -> None:
    chosen = ("--target", site, "--fix", MTP)
    (token,) = set(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", cli.called("diff", "--unknown", *chosen).out))
    overlay, wheels, accept = tmp_path / "overlay", tmp_path / "wheels", ("--accept", token)
    assert cli.called("overlay", overlay, *chosen).code == 1
    assert result("overlay", overlay, *chosen, *accept)[1]["code"] == "accepted"
    code, found = result("overlay", overlay, "--check", *chosen)
    assert (code, found["code"]) == (1, "unknown-shape")
    assert found["hint"].endswith(f"`unhang diff --target {site} --unknown --fix {MTP}`")
    code, found = result("overlay", overlay, "--check", *chosen, *accept)
    assert (code, found["detail"]) == (0, f"in the overlay {overlay}; accepted by a person")

    source = wheel_of(site, "verl-0.7.1")
    ran = cli.called("wheel", source, "-o", wheels)
    assert (ran.code, wheels.exists()) == (1, False)
    assert f"unpack the wheel into a folder DIR, then unhang diff --unknown --fix {MTP} --target DIR" in ran.err
    wrong = f"{'0' * 16}-1-{'1' * 16}"
    ran = cli.called("wheel", source, "-o", wheels, "--require", MTP, *accept, "--accept", wrong)
    assert (ran.code, ran.err.count("nothing is accepted by the token")) == (0, 1)
    (built,) = wheels.iterdir()
    shutil.unpack_archive(built, tmp_path / "installed", "zip")
    assert result("check", "--target", tmp_path / "installed", "--fix", MTP, *accept)[0] == 0


def tokens_of(site: Path) -> list[str]:
    ran = cli.called_with_all("diff", "--unknown", "--target", site, "--fix", BATCHES)
    found = dict.fromkeys(re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", ran.out))
    assert (ran.code, len(found)) == (1, 4)
    near = f"depends on rearrange_micro_batches in {HELPER}: a shape nobody has verified; closest known shape: c7e86c97"
    assert ran.out.count(near) == ran.out.count("`print(micro_batches)` was added") == 4
    assert ran.out.count("# fsdp-dynamic-bsz: the rewrite assumes: any backend; all FSDP ranks are torch.") == 4
    assert ran.out.count(f", beside this shape of rearrange_micro_batches in {HELPER}; to accept what follows: ") == 4
    return [word for token in found for word in ("--accept", token)]


def test_a_token_covers_the_function_that_the_target_depends_on(release: Path, tmp_path: Path) -> None:
    site = Path(shutil.copytree(release, tmp_path / "site"))
    wrong, wrong_again = "    micro_bsz_idx = get_seqlen", "    print(micro_batches)\n    micro_bsz_idx = get_seqlen"
    chosen = ("--target", site, "--fix", BATCHES, "--require", BATCHES)
    edit(site, HELPER, wrong, wrong_again)
    before = cli.tree(site)
    assert cli.called_with_all("apply", *chosen).code == 1
    tokens = tokens_of(site)
    for few in tokens[2:], [*tokens[:2], "--accept", f"{'0' * 16}-{tokens[3].partition('-')[2]}"]:
        assert cli.called_with_all("apply", *chosen, *few).code == 1, "whole or not at all"
    assert cli.tree(site) == before

    overlay, wheels = tmp_path / "overlay", tmp_path / "wheels"
    assert cli.called_with_all("overlay", overlay, *chosen, *tokens).code == 0
    assert [cli.called_with_all("overlay", overlay, "--check", *chosen, *words).code for words in ([], tokens)] == [
        1,
        0,
    ]
    source = wheel_of(Path(shutil.copytree(site, tmp_path / "copy/site")), "verl-0.7.1")
    assert cli.called_with_all("wheel", source, "-o", wheels, "--fix", BATCHES, "--require", BATCHES, *tokens).code == 0

    ran = cli.called_with_all("apply", *chosen, *tokens, "--output-format", "json")
    assert ran.code == 0
    shown = {(row["verdict"], row["code"], row["accepted"], row["assumes"]) for row in ran.json["results"]}
    assumes = "any backend; all FSDP ranks are torch.distributed's default group"
    assert shown == {("drifted", "accepted", True, assumes)}
    receipt = json.loads((site / ".unhang/receipt.json").read_text())
    fixed = [one for file in receipt["files"] for one in file["fixes"]]
    assert {(len(one["beside"]), one["verified"]) for one in fixed} == {(16, False)}
    assert len({one["beside"] for one in fixed}) == 1
    ran = cli.called_with_all("check", *chosen)
    assert (ran.code, ran.out.count("accepted by a person on 20")) == (1, 1)
    assert cli.called_with_all("check", *chosen, *tokens).code == 0
    assert cli.called_with_all("apply", *chosen, *tokens).code == 0

    for file, old, new, why in (
        (HELPER, "print(micro_batches)", "print(micro_batches, 1)", "accepted by a person on "),
        (ACTOR, "world = torch.distributed.group.WORLD", "world = None", "our rewrite is in it, but the function has"),
    ):
        kept = (site / file).read_bytes()
        edit(site, file, old, new)
        ran = cli.called_with_all("check", *chosen, *tokens)
        assert (ran.code, why in ran.out) == (1, True), "another edit of either"
        assert f"nothing is accepted by the token {tokens[1 if file == HELPER else 3]}: " in ran.err
        (site / file).write_bytes(kept)
    # beside the helper of the release, the rewrite needs no token
    edit(site, HELPER, wrong_again, wrong)
    code, out, _ = cli.called_with_all("check", *chosen)
    assert (code, "  applied  " in out) == (0, True)
    # edited once more, and without a receipt, nothing tells that it was accepted
    edit(site, HELPER, wrong, wrong_again)
    shutil.rmtree(site / ".unhang")
    ran = cli.called_with_all("check", *chosen)
    assert (ran.code, "our rewrite is in place, but it depends on rearrange_micro_batches" in ran.out) == (1, True)
    assert cli.called_with_all("check", *chosen, *tokens).code == 0


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
