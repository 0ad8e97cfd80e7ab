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
    "src/unhang/cli/help.py": "cli/test_arguments.py",
    "src/unhang/deliver/wheel_report.py": "cli/test_wheel_command.py",
    "src/unhang/deliver/work.py": "cli/test_wheel_command.py",
    "src/unhang/errors.py": "cli/test_bad_input.py",
    "src/unhang/find/overlays.py": "cli/test_overlay_command.py",
    "src/unhang/judge/overlaid.py": "cli/test_overlay_command.py",
    "src/unhang/prove/fixes/empty_expert_hang/moe_layer.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/empty_expert_hang/transformer_engine.py": "prove/fixes/test_empty_expert_hang.py",
    "src/unhang/prove/fixes/sft_packed_seq_broadcast/batches.py": "proofs/test_proofs.py",
    "src/unhang/prove/fixes/sft_packed_seq_broadcast/cases.py": "prove/fixes/test_sft_packed_seq_broadcast.py",
    "src/unhang/prove/ranks/calls.py": "prove/ranks/test_recorder.py",
    "src/unhang/prove/ranks/megatron.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/shims.py": "upstream/test_runner.py",
    "src/unhang/records.py": "cli/test_requests.py",
    "src/unhang/store/steps.py": "store/test_recovery.py",
    "codemods/edit.py": "codemods/test_splice.py",
    "codemods/expert_dp_warmup/backends.py": "fixes/test_expert_dp_warmup.py",
    "codemods/expert_dp_warmup/megatron_core.py": "fixes/test_expert_dp_warmup.py",
    "codemods/expert_dp_warmup/ms_swift.py": "fixes/test_expert_dp_warmup.py",
    "codemods/sft_packed_seq_broadcast/arms.py": "fixes/test_sft_packed_seq_broadcast.py",
    "codemods/sft_packed_seq_broadcast/halves.py": "fixes/test_sft_packed_seq_broadcast.py",
    "codemods/sft_packed_seq_broadcast/trailing.py": "fixes/test_sft_packed_seq_broadcast.py",
    "compat/endstates/endstate.py": "compat/endstates/test_compare.py",
    "compat/endstates/expert_dp_warmup.py": "compat/endstates/test_released.py",
    "compat/endstates/mtp_cp_deadlock.py": "compat/endstates/test_released.py",
    "compat/endstates/sft_packed_seq_broadcast.py": "compat/endstates/test_released.py",
    "compat/sweep/sources.py": "compat/sweep/test_rules.py",
}


def modules() -> Iterator[tuple[str, bool]]:
    """Yield each module that has code, and whether it has a test module of its name."""
    for folder, mirrors in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_bytes()).body):
                place = (path.parent if path.stem == "__init__" else path.with_suffix("")).relative_to(
                    REPOSITORY / folder
                )
                tests = (REPOSITORY / mirror / place.parent / f"test_{place.name}.py" for mirror in mirrors)
                yield str(path.relative_to(REPOSITORY)), any(test.is_file() for test in tests)


def test_each_module_has_a_test_module() -> None:
    missing = {module for module, has_test in modules() if not has_test}
    without, stale = sorted(missing - COVERED_BY.keys()), sorted(COVERED_BY.keys() - missing)
    assert not without, "\n".join(["add a test module of its name, or a row to COVERED_BY:", *without])
    assert not stale, "\n".join(["remove these rows, the module is gone or has its test module:", *stale])
    assert [test for test in COVERED_BY.values() if not (REPOSITORY / "tests" / test).is_file()] == []


def test_no_module_repeats_the_name_of_its_folder() -> None:
    assert [module for module, _ in modules() if Path(module).stem == Path(module).parent.name] == []
