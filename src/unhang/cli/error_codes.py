"""The cause and the cure of each error code: what ``unhang explain CODE`` prints, and the site's page of the codes."""

from __future__ import annotations

from typing import NamedTuple


class Explained(NamedTuple):
    """Why an error comes, and what to do. Both are Markdown."""

    cause: str
    cure: str


CODES = {
    "bad-journal": Explained(
        "`ROOT/.unhang/` has a journal, the plan of a run that was killed. This version cannot trust it: it is "
        "damaged, another version wrote it, or it names a file outside of its root. Nothing was changed.",
        "If another version of unhang wrote it, run `unhang apply` or `unhang revert` with that version. Else "
        "move the journal that the message names elsewhere, and run `unhang check`.",
    ),
    "bad-option": Explained(
        "Two options contradict each other, one is missing, or a value has the wrong form.",
        "Do what the hint says. `unhang COMMAND --help` has examples.",
    ),
    "bad-patch": Explained(
        "What `unhang new` was given is no unified diff, or a file does not parse before or after"
        " it, or is nested too deeply.",
        "Make the diff again with `git diff` or `git format-patch`, on a tree that Python can parse.",
    ),
    "bad-receipt": Explained(
        "The receipt in `ROOT/.unhang/` lists what unhang changed and keeps the original bytes. It is damaged, "
        "cannot be read, or names a fix or a file that this version does not know. Nothing was changed.",
        "If it cannot be read, run the command as a user who can. If another version wrote it, use that version. "
        "Else reinstall the patched packages, and move that folder elsewhere.",
    ),
    "bad-state": Explained(
        "Something in the place of `ROOT/.unhang/`, or in it, is not what unhang makes: a symlink, a pipe, a file with "
        "another name, or something of a user who may not write the root. Following it could write somewhere else, so "
        "nothing was changed.",
        "Find out who made it. Move it elsewhere, or run the command as its owner, or give it to the root's owner as "
        "the hint says. Then run the same command again.",
    ),
    "bad-token": Explained(
        "A value of `--accept` or UNHANG_ACCEPT is no token. A token is a shape, a generation and a "
        "result, and only the whole of it is one.",
        "Copy the whole token that `unhang diff --unknown` prints.",
    ),
    "bad-topology": Explained(
        "No job has the sizes that `unhang prove` was given: the world size is not a multiple of TP x PP x CP, or "
        "the experts do not divide a stage. Or the sizes came with `--case`.",
        "Give the sizes of the real job. The hint names a world size that fits, or the option to leave out.",
    ),
    "bad-version": Explained(
        "The value of `unhang matrix --version` is neither a version nor a PEP 440 specifier.",
        "Write a version such as 0.17.1, or a specifier such as '~=0.17'. Quote a specifier for the shell.",
    ),
    "bad-wheel": Explained(
        "The file is missing, is not named like a wheel, or is damaged; or its contents are not safe to unpack, "
        "such as a path that leads out of the wheel.",
        "Download the wheel again from its publisher, and give its path or a requirement such as verl==0.7.1.",
    ),
    "broken-install": Explained(
        "A folder of unhang's own installation is missing.",
        "Reinstall unhang.",
    ),
    "broken-interpreter": Explained(
        "The interpreter of the environment does not start, gives no answer in time, or its import system fails. It"
        " may be older than Python 3.8, or built for another machine.",
        "Run it by hand to see why. Name a working one with `--python PY`, or look at a folder with `--target DIR` "
        "or `--source DIR`.",
    ),
    "cannot-keep": Explained(
        "`unhang revert --fix` takes some fixes out of a file and writes the others again. One of these can no "
        "longer be written. Nothing was changed.",
        "Revert all fixes of that file with the command in the hint. Then apply those that you want to keep.",
    ),
    "cannot-recover": Explained(
        "An earlier run was killed halfway, and another program changed one of its files since. The run can neither"
        " be finished nor rolled back without destroying that change. Nothing was changed.",
        "Restore the file that the message names: its old bytes may be beside it, as the hint says. Or reinstall "
        "its package. Then run `unhang apply` or `unhang revert`.",
    ),
    "changed-underneath": Explained(
        "Another program changed a file after unhang had read it. Nothing was written.",
        "Run the same command again: it starts from what is there now. If it happens again, find the program.",
    ),
    "conflict-markers": Explained(
        "Git left conflict markers in a file of a checkout of unhang: two branches changed it.",
        "In `compat/`, take either side with `git checkout --theirs PATH`, and run `nox -s sweep -- --fix ID` for "
        "`compat/data/ID.json`, `nox -s sweep` for the files of all fixes. `nox -s pages` writes the generated pages "
        "anew. Settle all else by hand.",
    ),
    "disk-full": Explained(
        "The file system has no space or no inodes left, or a quota is used up. The files are as they were.",
        "Make room (see df, df -i and quota), then run the same command again.",
    ),
    "download-failed": Explained(
        "The wheel cannot be downloaded: the index cannot be reached, or refuses, or a hash differs.",
        "Check the network, and the index with `--index-url`. `-v` shows all that pip says. Or give the path of a "
        "wheel.",
    ),
    "edited": Explained(
        "A function was edited after unhang had patched it, or the file does not parse any more. `unhang revert` "
        "leaves such a file alone, because the original bytes would destroy the edit. An edit elsewhere in the file "
        "does not matter.",
        "Keep your version beside the original with the `--force` command in the hint; or undo your edit or "
        "reinstall the package, then run `unhang revert` again.",
    ),
    "fetch-failed": Explained(
        "`unhang matrix --against-index` could not download a wheel, or the download is damaged.",
        "Check the network, then run it again.",
    ),
    "fix-exists": Explained(
        "`unhang new` would write over something: a fix with this id exists, or one of its files does.",
        "Choose another id, move the files away, or write into another checkout with `--output DIR`.",
    ),
    "index-failed": Explained(
        "The package index did not answer `unhang matrix --against-index`, or does not have the project.",
        "Check the network, and UNHANG_INDEX and PIP_INDEX_URL, which choose the index. Then run it again.",
    ),
    "internal": Explained(
        "This is a bug in unhang. The message says what was left behind: mostly nothing.",
        "Run the command again with UNHANG_DEBUG=1, and report the traceback that it prints.",
    ),
    "interrupted": Explained(
        "An earlier run was killed halfway, or could not remove its temporary files. Its journal is still there, so"
        " some files may be old and others new.",
        "Run `unhang apply` or `unhang revert`. Each first finishes that run or rolls it back, and says which.",
    ),
    "io": Explained(
        "The operating system refused to read or write something. The message has its reason, and the path if there"
        " is one. A full or closed stdout is also reported so.",
        "Remove the reason: permissions, a missing file, a full disk. Then run the same command again.",
    ),
    "locked": Explained(
        "Another unhang has been writing to this root for longer than a run should take. Only one may.",
        "Wait for it to end. `fuser -v` on the lock, as in the hint, shows its process. The lock of a process that "
        "has died blocks nobody.",
    ),
    "newer-receipt": Explained(
        "A newer unhang patched this root, and this version cannot read its receipt. Nothing was changed.",
        "Use the version that the message names, or a later one.",
    ),
    "no-case": Explained(
        "No proof that can run here has a case with the words of `unhang prove --case` in its name.",
        "Run `unhang prove` without `--case` and read the names; docs/maintainers/proofs.md lists all of them.",
    ),
    "no-commit": Explained(
        "`unhang new --from-commit CLONE REV` did not get a commit: the folder is no clone, the clone has no such "
        "commit, or there is no git.",
        "Name the folder of a clone and a commit that `git -C CLONE show REV` shows, and fetch it first if need be.",
    ),
    "no-index-client": Explained(
        "`unhang matrix --against-index` reads the package index with pypi-simple, which is not installed.",
        "Run `pip install 'unhang[index]'` in the environment of unhang.",
    ),
    "no-interpreter": Explained(
        "What `--python`, VIRTUAL_ENV, CONDA_PREFIX or `.venv` names has no interpreter that can be run: it is "
        "missing, not executable, or a link to one that is gone. Or `unhang prove` was given only a folder, and "
        "needs one.",
        "Name a working interpreter with `--python PY`, or look at a folder with `--target DIR` or `--source DIR`.",
    ),
    "no-libcst": Explained(
        "LibCST, which rewrites the code, cannot be imported: it is missing, broken, or built for another Python. "
        "`unhang check` works without it.",
        "Reinstall unhang. Or run it from an environment of its own, and name the job's with `--python PY`.",
    ),
    "no-locks": Explained(
        "The file system has no file locks, so two runs could write at the same time. Some Lustre and NFS mounts "
        "are so.",
        "Mount it with locks (Lustre: -o flock), or patch a copy on a local disk, such as in the image's build.",
    ),
    "no-nodes": Explained(
        "`unhang.fleet.require_agreement` has no node to ask: the cluster has none, or one of `nodes=` is not alive. "
        "Or `unhang diagnose --live` learned of no node: squeue or kubectl failed, or knows of none.",
        "Compare the ids with NodeID of ray.nodes(). Run the command that the message names where it works.",
    ),
    "no-overlay": Explained(
        "The folder that `unhang overlay --check` was given has no overlay in it.",
        "Give the folder that `unhang overlay` has written, or write one there.",
    ),
    "no-pip": Explained(
        "Downloading a wheel needs pip or uv, and neither is installed.",
        "Install one of them, or give the path of a wheel.",
    ),
    "no-py-spy": Explained(
        "`unhang diagnose --capture` takes the stacks with py-spy, which is not on PATH.",
        "Run `pip install py-spy` on the node that hangs.",
    ),
    "no-ranks": Explained(
        "`unhang diagnose --capture` or `--live` found no rank: no process that it may look into has loaded torch and "
        "has a RANK in its environment.",
        "Run it on a node of the job, inside of its container, as the job's user or as root.",
    ),
    "no-ray": Explained(
        "Ray is not installed here, or not started: `unhang.fleet` starts no cluster of its own.",
        "Call `unhang.fleet.require_agreement` in the job's environment, after `ray.init()` with the cluster's "
        "address.",
    ),
    "no-script": Explained(
        "What `--script` names is not a file.",
        "Give the file that the job runs, such as pretrain_gpt.py, with its path.",
    ),
    "no-shtab": Explained(
        "The completion scripts are made by shtab, which is not installed.",
        "Run `pip install 'unhang[completion]'` in the environment of unhang.",
    ),
    "no-such-release": Explained(
        "No release in the matrix matches `unhang matrix --version`.",
        "The hint names the nearest releases; `unhang matrix` shows all of them.",
    ),
    "no-such-wheel": Explained(
        "The index has no wheel of this version for this platform, for any Python that was tried.",
        "Check that the version exists. Choose another wheel with `--platform` and `--python-version`.",
    ),
    "no-torch": Explained(
        "`unhang prove` runs the code, so it needs torch. The interpreter has none, or cannot import it.",
        "Name an interpreter that has torch: `--python PY`. A torch for the CPU will do.",
    ),
    "no-unidiff": Explained(
        "`unhang new` reads the diff with unidiff, which is not installed.",
        "Run `pip install 'unhang[new]'` in the environment of unhang.",
    ),
    "no-upstream": Explained(
        "The environment, folder or wheel has none of Megatron-LM, megatron-core, verl and ms-swift, or none of "
        "those that `--upstream` names. A package named verl or swift that is another project does not count.",
        "Name the job's environment with `--python PY`, its site-packages with `--target DIR`, or a checkout with "
        "`--source DIR`. If it may have none, pass `--allow-none`.",
    ),
    "nodes-differ": Explained(
        "The nodes of the Ray cluster have different code, lack a required fix, or did not answer in time. A job on"
        " them can hang.",
        "Install and patch all nodes alike: `unhang check` on each shows what it has. Or leave some out with `nodes=`.",
    ),
    "not-a-folder": Explained(
        "A path that must be a folder is missing, or is a file: of `--target`, `--source`, an environment variable,"
        " an output or an overlay.",
        "Give a folder. To patch a wheel, use `unhang wheel`.",
    ),
    "not-empty": Explained(
        "`unhang overlay` replaces what it once wrote, and nothing else. The folder has something else in it. So "
        "has that of `unhang diagnose --live --keep`, which mixes no two collections.",
        "Give an empty folder, or a new path.",
    ),
    "not-writable": Explained(
        "The files belong to another user, are on a read-only mount, or are protected by attributes or a security "
        "policy. Nothing was changed.",
        "Run the command as the owner, or where the environment can be written, such as in the image's build. Where"
        " that cannot be, write an overlay: `unhang overlay DIR`.",
    ),
    "nothing-read": Explained(
        "None of the files that `unhang diagnose` was given is a dump, a stack or a log that it can read. The "
        "warnings above say why, file by file.",
        "Give dumps of the flight recorder, stacks of py-spy, or logs. `unhang diagnose --capture` says how to get "
        "them.",
    ),
    "nothing-to-rewrite": Explained(
        "The diff changes no statement of a function in a way that a codemod could repeat. The message says why.",
        "Change the diff so that it edits functions of the upstream; what is outside of them is left to a person.",
    ),
    "patch-does-not-fit": Explained(
        "The release does not have the lines that the diff expects.",
        "Name the release that the diff was made for, or make the diff again on this one.",
    ),
    "py-spy-failed": Explained(
        "No stack of any rank could be taken. Mostly py-spy may not look into another process.",
        "Run it as root, or with the capability SYS_PTRACE (Docker: --cap-add SYS_PTRACE).",
    ),
    "stale-bytecode": Explained(
        "A fix is in the source, but an `import` runs other code: an unchecked-hash `.pyc` (PEP 552) that was compiled "
        "from another source. Python runs such a file without a look at the source. It is in `__pycache__` beside the "
        "source, or below PYTHONPYCACHEPREFIX.",
        "Run `unhang apply`, which deletes that file and leaves the source as it is. For an installation that cannot "
        "be written, run `unhang overlay DIR`. To compile bytecode that Python checks, use "
        "`python -m compileall --invalidation-mode checked-hash`.",
    ),
    "unknown-fix": Explained(
        "There is no fix, and for `unhang explain` no error code, with this name; or no symptom has these words.",
        "`unhang list` shows all fixes. The hint names the nearest one.",
    ),
    "unknown-upstream": Explained(
        "`unhang.fleet.require_agreement` was given an upstream that does not exist.",
        "Name megatron-core, megatron-lm, verl or ms-swift.",
    ),
    "unreadable": Explained(
        "A file or folder of the installation is there, but this user cannot read it; or it is no plain file, or far "
        "larger than it can be. Nothing was changed.",
        "Run the command as a user who can read it, or reinstall the package that it belongs to.",
    ),
    "vanished": Explained(
        "A file, or its folder, was there when unhang planned and was gone when it wrote: another program is "
        "changing this environment.",
        "When that program is done, run the same command again.",
    ),
    "write-failed": Explained(
        "The operating system could not write a file, for a reason that is neither space nor permission, such as an"
        " error of the disk or the network. The files are as they were.",
        "Check the disk, or the mount. Then run the same command again.",
    ),
    "wrong-digest": Explained(
        "A wheel that was downloaded is not the one that the index describes: its sha256 differs. It was not used.",
        "Look for a proxy or a mirror that changes downloads, then run it again.",
    ),
}
"""By the code, in alphabetical order."""
