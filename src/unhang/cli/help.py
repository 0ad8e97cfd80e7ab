"""What `--help` says about each command. The options are in arguments.py."""

from __future__ import annotations

from typing import NamedTuple

EXITS = (
    "exit codes: 0 the end state is reached, 1 it is not, 2 wrong usage or failure (nothing was changed), 130 Ctrl-C"
)
_READ_EXITS = "exit codes: 0 success, 2 wrong usage or failure, 130 Ctrl-C"
_MATRIX_EXITS = "exit codes: 0 success; 1 with --against-index, if the matrix lacks a release; 2 wrong usage or failure"
_PROVE_EXITS = (
    "exit codes: 0 the patched code passes, and what is installed does not need it; 1 what is installed fails at this "
    "topology, or the patched code does; 2 something could not be shown (no torch, no proof, a version that no proof "
    "knows), or wrong usage; 130 Ctrl-C"
)
_DIAGNOSE_EXITS = (
    "exit codes: 0 it is a known hang, 1 it is not known to be one, 2 nothing could be read, or wrong usage, 130 Ctrl-C"
)
_NEW_EXITS = (
    "exit codes: 0 all changes of the diff are in the fix, 1 some are left to you, 2 wrong usage or failure (nothing "
    "was written), 130 Ctrl-C"
)


class Page(NamedTuple):
    """The help of one command."""

    summary: str
    """Its line in the list of commands."""
    description: str
    """One paragraph."""
    examples: tuple[str, ...]
    """Command lines, which a comment may end."""
    exits: str = EXITS


TOP = Page(
    "",
    "Finds Megatron-LM, megatron-core, verl and ms-swift, reports which known hangs each would run into, and "
    "rewrites them.",
    (
        "unhang check                      # what this environment needs",
        "unhang apply --dry-run            # what apply would do",
        "unhang apply",
        "unhang COMMAND --help             # the options and examples of a command",
    ),
)

PAGES = {
    "check": Page(
        "what is needed here",
        "Reports each fix on each installation that the environment would import: needed, applied, fixed-upstream, "
        "not-affected, drifted or unlisted. It only reads files and imports none of them. The digest that it prints "
        "is the same on nodes that have the same code.",
        (
            "unhang check",
            "unhang check --python /opt/venv/bin/python --require mtp-cp-deadlock",
            "unhang check --source Megatron-LM --script pretrain_gpt.py",
        ),
    ),
    "apply": Page(
        "bring every needed fix into place",
        "Rewrites the functions that `unhang check` reports as needed. It plans and compiles all files of a root in "
        "memory first, then writes all of them or none, and keeps the original bytes for `unhang revert`. A second "
        "run changes nothing.",
        (
            "unhang apply",
            "unhang apply --dry-run",
            "unhang apply --require mtp-cp-deadlock   # fail unless it is in place",
        ),
    ),
    "diff": Page(
        "print on stdout what apply would change",
        "Prints a unified diff of what `unhang apply` would write, and writes nothing. Everything else goes to stderr. "
        "With --unknown it is the diff of the rewrites that `apply` does not write, because nobody has verified the "
        "function's shape; a line above each says how to accept it. With --run, it also says what each of these "
        "functions does: they run, as they are and rewritten, on stand-ins in a child process with limits.",
        (
            "unhang diff | less",
            "unhang diff --source Megatron-LM --fix expert-dp-warmup > warmup.patch",
            "unhang diff --unknown --run",
        ),
    ),
    "revert": Page(
        "restore the original bytes",
        "Restores the files that `unhang apply` changed to their original bytes, and removes the receipt. An edit "
        "elsewhere in a file stays. A file with a rewritten function that you edited is left alone, unless --force is "
        "given. Nothing is undone in a release that was installed since.",
        ("unhang revert", "unhang revert --fix empty-expert-hang       # only this fix"),
    ),
    "overlay": Page(
        "write the rewritten modules into a folder of their own, for PYTHONPATH",
        "Writes the rewritten modules into a folder and leaves the installation as it is. It is for installations "
        "that cannot be written: a job that has the folder on PYTHONPATH imports the rewritten modules.",
        (
            "unhang overlay /shared/me/overlay",
            "unhang overlay overlay/ --python /opt/venv/bin/python --fix mtp-cp-deadlock",
        ),
    ),
    "wheel": Page(
        "download wheels, and write patched ones",
        "Downloads wheels with pip, or takes local ones, and writes a patched wheel for each that needs a fix. Its "
        "version ends with +unhang.N. Wheels that need nothing are not written.",
        (
            "unhang wheel megatron-core==0.17.1 verl==0.7.1 -o wheels/",
            "unhang wheel verl-0.7.1-py3-none-any.whl -o wheels/",
            "unhang wheel -r requirements.txt --require-hashes -o wheels/",
        ),
    ),
    "prove": Page(
        "show each hang on a CPU, and that the patched code does not have it",
        "Runs what is installed, untouched and patched, on this machine's CPU: a small job with real ranks (gloo), a "
        "large one by recording each rank and playing the recordings against each other. Needs torch in the "
        "environment, and changes nothing there. Without sizes, each proof runs its own small cases.",
        (
            "unhang prove",
            "unhang prove --fix mtp-cp-deadlock --cp 2",
            "unhang prove --tp 4 --pp 8 --ep 16 --world-size 1024",
            "unhang prove --case schedule",
        ),
        _PROVE_EXITS,
    ),
    "diagnose": Page(
        "which known hang this is, and the command that cures it",
        "Reads what a hung job has left: dumps of PyTorch's flight recorder, stacks of py-spy, logs with the lines of "
        "the watchdog; of all ranks or of some. It says which known hang that is and which ranks show it, or how the "
        "ranks disagree, or what to capture. Then it looks whether the fix is needed in the environment. With --live, "
        "it collects all this from a job that hangs now.",
        (
            "unhang diagnose dumps/ stacks/ train.log.gz",
            "unhang diagnose /tmp/nccl_trace_rank_* --python /opt/venv/bin/python",
            "unhang diagnose --live --slurm 4711 --html hang.html",
            "unhang diagnose --capture                   # what to set, and what to run",
        ),
        _DIAGNOSE_EXITS,
    ),
    "list": Page(
        "the fixes",
        "Prints each fix: its id, what is wrong, its grade (cure or safeguard), and the releases that it affects. Of "
        "words, only the fixes whose symptom, stacks or log lines have all of them.",
        ("unhang list", "unhang list reduce-scatter MoE", "unhang explain mtp-cp-deadlock    # more about one of them"),
        _READ_EXITS,
    ),
    "explain": Page(
        "symptom, cause, evidence and cost of a fix; cause and cure of an error",
        "Prints the page of a fix: how the defect shows, where it is in the code, what the rewrite changes, what it "
        "costs, what it does not cure, and which releases need it. In place of the id, a word of the symptom will do, "
        "such as a function in the stacks. Of an error code, such as not-writable, it prints the cause and the cure.",
        ("unhang explain mtp-cp-deadlock", "unhang explain reduce_loss_in_tracker", "unhang explain not-writable"),
        _READ_EXITS,
    ),
    "matrix": Page(
        "which release of an upstream needs which fix",
        "Prints what is on record for every release, pre-release and nightly. It looks at no installation.",
        (
            "unhang matrix",
            "unhang matrix --upstream megatron-core --version '~=0.17'",
            "unhang matrix --output-format markdown > matrix.md",
        ),
        _MATRIX_EXITS,
    ),
    "new": Page(
        "begin a fix of your own, from a diff or a commit",
        "Applies a diff to a release in memory, finds the functions that it changes, and writes the five parts of a "
        "fix that changes them the same way: manifest and page, codemod, end state, proof and tests, with a TODO "
        "wherever a person must write. Title, authors and links are the commit's. It names each change that no codemod "
        "can make, such as one outside of a function. The codemod has lines of the release in it: it is for your "
        "folder, not to be shared. Needs unidiff: pip install 'unhang[new]'.",
        (
            "unhang new my-fix --upstream verl==0.7.1 --from-patch change.diff",
            "unhang new my-fix --upstream a.whl --from-commit verl 1a2b3c4 -o unhang",
            "unhang new my-fix --upstream a.whl --from-patch 0001.patch --kind values",
        ),
        _NEW_EXITS,
    ),
    "completion": Page(
        "print a script that completes commands and options in a shell",
        "Prints the completion script for a shell. It needs shtab: pip install 'unhang[completion]'. The script is "
        "static, so print it again after an upgrade of unhang.",
        (
            'eval "$(unhang completion bash)"            # in ~/.bashrc',
            "unhang completion zsh > ~/.zfunc/_unhang    # a folder of $fpath",
        ),
        _READ_EXITS,
    ),
}
