"""The layout of the repository: each module has a test module of its name, in the folder that mirrors its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
# Each folder of modules, and the folders that may have their tests.
FOLDERS = {"src/unhang": ["tests"], "codemods": ["tests/fixes", "tests/codemods"], "compat": ["tests/compat"]}
# The modules that another test module covers.
COVERED_BY = {
    "src/unhang/__init__.py": "test_package.py",
    "src/unhang/__main__.py": "test_package.py",
    "src/unhang/cli/apply_command.py": "cli/test_commands.py",
    "src/unhang/cli/arguments.py": "cli/test_bad_input.py",
    "src/unhang/cli/check_command.py": "cli/test_commands.py",
    "src/unhang/cli/diff_command.py": "cli/test_commands.py",
    "src/unhang/cli/explain_command.py": "cli/test_commands.py",
    "src/unhang/cli/list_command.py": "cli/test_commands.py",
    "src/unhang/cli/main.py": "cli/test_bad_input.py",
    "src/unhang/cli/matrix_command.py": "judge/test_matrix.py",
    "src/unhang/cli/requests.py": "cli/test_commands.py",
    "src/unhang/cli/revert_command.py": "cli/test_commands.py",
    "src/unhang/cli/scope.py": "cli/test_commands.py",
    "src/unhang/deliver/wheel_report.py": "deliver/test_wheel.py",
    "src/unhang/errors.py": "cli/test_bad_input.py",
    "src/unhang/find/answers.py": "find/test_locate.py",
    "src/unhang/find/metadata.py": "find/test_locate.py",
    "src/unhang/find/notices.py": "find/test_locate.py",
    "src/unhang/find/probe.py": "find/test_locate.py",
    "src/unhang/judge/decide.py": "judge/test_matrix.py",
    "src/unhang/judge/findings.py": "judge/test_matrix.py",
    "src/unhang/judge/observe.py": "judge/test_matrix.py",
    "src/unhang/prove/answers.py": "cli/test_prove_command.py",
    "src/unhang/prove/cases.py": "cli/test_prove_command.py",
    "src/unhang/prove/child.py": "cli/test_prove_command.py",
    "src/unhang/prove/fixes/empty_expert_hang/moe_layer.py": "prove/fixes/test_empty_expert_hang.py",
    "src/unhang/prove/fixes/empty_expert_hang/transformer_engine.py": "prove/fixes/test_empty_expert_hang.py",
    "src/unhang/prove/fixes/expert_dp_warmup.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/mtp_cp_deadlock.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/sft_packed_seq_broadcast/__init__.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/sft_packed_seq_broadcast/batches.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/sft_packed_seq_broadcast/cases.py": "proofs/test_proofs.py",
    "src/unhang/prove/host.py": "cli/test_prove_command.py",
    "src/unhang/prove/ranks/async_work.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/calls.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/groups.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/megatron.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/operations.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/outputs.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/places.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/player.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/processor_time.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/recorder.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/shims.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/stacks.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/ranks/torch_functions.py": "prove/ranks/test_gloo.py",
    "src/unhang/prove/sides.py": "cli/test_prove_command.py",
    "src/unhang/records.py": "find/test_locate.py",
    "src/unhang/rewrite/diff.py": "cli/test_commands.py",
    "src/unhang/rewrite/one_file.py": "cli/test_commands.py",
    "src/unhang/rewrite/plan.py": "cli/test_commands.py",
    "src/unhang/shapes/catalog.py": "shapes/test_shape.py",
    "src/unhang/store/apply.py": "store/test_transaction.py",
    "src/unhang/store/disk.py": "store/test_transaction.py",
    "src/unhang/store/git_exclude.py": "store/test_transaction.py",
    "src/unhang/store/history.py": "store/test_transaction.py",
    "src/unhang/store/journal.py": "store/test_transaction.py",
    "src/unhang/store/lock.py": "store/test_transaction.py",
    "src/unhang/store/state.py": "store/test_transaction.py",
    "src/unhang/store/survey.py": "store/test_transaction.py",
    "src/unhang/store/tidy.py": "store/test_transaction.py",
    "src/unhang/tell/matrix_text.py": "judge/test_matrix.py",
    "src/unhang/tell/report.py": "cli/test_commands.py",
    "src/unhang/tell/version_ranges.py": "judge/test_matrix.py",
    "codemods/base.py": "fixes/test_patches.py",
    "codemods/splice.py": "fixes/test_patches.py",
}


def modules() -> Iterator[tuple[str, bool]]:
    """Yield each module that has code, and whether it has a test module of its name."""
    for folder, mirrors in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_bytes()).body):
                place = (path.parent if path.stem == "__init__" else path.with_suffix("")).relative_to(
                    REPOSITORY / folder
                )
                tests = [
                    REPOSITORY / mirror / place.with_name(f"test_{place.name}.py") for mirror in mirrors if place.name
                ]
                yield str(path.relative_to(REPOSITORY)), any(test.is_file() for test in tests)


def test_each_module_has_a_test_module() -> None:
    missing = {module for module, has_test in modules() if not has_test}
    without, stale = sorted(missing - COVERED_BY.keys()), sorted(COVERED_BY.keys() - missing)
    assert not without, "\n".join(["add a test module of its name, or a row to COVERED_BY:", *without])
    assert not stale, "\n".join(["remove these rows, the module is gone or has its test module:", *stale])


def test_the_test_modules_of_the_table_exist() -> None:
    assert [test for test in COVERED_BY.values() if not (REPOSITORY / "tests" / test).is_file()] == []


def test_no_module_repeats_the_name_of_its_folder() -> None:
    assert [module for module, _ in modules() if Path(module).stem == Path(module).parent.name] == []
