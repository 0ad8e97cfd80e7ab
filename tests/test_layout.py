"""The layout of the repository: each module has a test module of its name, in the folder that mirrors its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
# Each folder of modules, and the folders that may have their tests.
FOLDERS = {"src/unhang": ["tests"], "codemods": ["tests/codemods"], "compat": ["tests/compat"]}
# Where each fix has a module or a package of its name. The fix's own test module covers it.
OF_FIXES = ["codemods", "src/unhang/prove/fixes"]
# The modules that another test module covers.
COVERED_BY = {
    "src/unhang/__init__.py": "test_package.py",
    "src/unhang/__main__.py": "test_package.py",
    "src/unhang/cli/help.py": "cli/test_arguments.py",
    "src/unhang/cli/revert_command.py": "store/test_revert.py",
    "src/unhang/deliver/wheel_report.py": "cli/test_wheel_command.py",
    "src/unhang/deliver/work.py": "cli/test_wheel_command.py",
    "src/unhang/diagnose/causes.py": "diagnose/test_statements.py",
    "src/unhang/diagnose/evidence.py": "diagnose/test_report.py",
    "src/unhang/diagnose/phrases.py": "diagnose/test_statements.py",
    "src/unhang/cli/sweep_command.py": "cli/test_pack_new.py",
    "src/unhang/deliver/releases.py": "cli/test_pack_new.py",
    "src/unhang/draft/facts.py": "cli/test_pack_new.py",
    "src/unhang/draft/kinds.py": "cli/test_new_command.py",
    "src/unhang/draft/modules.py": "cli/test_new_command.py",
    "src/unhang/draft/pack_texts.py": "cli/test_pack_new.py",
    "src/unhang/draft/skeleton.py": "cli/test_new_command.py",
    "src/unhang/errors.py": "cli/test_bad_input.py",
    "src/unhang/find/editable.py": "find/test_reading.py",
    "src/unhang/find/overlays.py": "cli/test_overlay_command.py",
    "src/unhang/judge/recorded.py": "cli/test_pack_new.py",
    "src/unhang/judge/overlaid.py": "cli/test_overlay_command.py",
    "src/unhang/plugins/pack_modules.py": "plugins/test_packs.py",
    "src/unhang/prove/line.py": "prove/test_answers.py",
    "src/unhang/prove/table.py": "prove/test_answers.py",
    "src/unhang/prove/ranks/around.py": "prove/fixes/test_infer_metric_rank0.py",
    "src/unhang/prove/ranks/files.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/megatron.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/megatron_fsdp.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/moe_layer.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/routers.py": "proofs/test_proofs.py",
    "src/unhang/prove/ranks/shims.py": "upstream/test_runner.py",
    "src/unhang/prove/ranks/verl_lora.py": "proofs/test_proofs.py",
    "src/unhang/pins/values.py": "pins/test_files.py",
    "src/unhang/tell/advice.py": "cli/test_check_lock.py",
    "src/unhang/tell/upgrade_text.py": "cli/test_matrix_command.py",
    "src/unhang/records.py": "cli/test_requests.py",
    "src/unhang/plugins/templates.py": "plugins/test_parameters.py",
    "src/unhang/shapes/facts.py": "shapes/test_catalog.py",
    "src/unhang/store/rehearsal.py": "whole/test_owners.py",
    "src/unhang/prove/conditions.py": "prove/test_scene.py",
    "src/unhang/store/steps.py": "store/test_recovery.py",
    "src/unhang/survey/apply.py": "cli/test_apply_command.py",
    "src/unhang/job/documents.py": "job/test_read.py",
    "src/unhang/job/kinds.py": "job/test_read.py",
    "src/unhang/job/launch.py": "job/test_read.py",
    "src/unhang/job/settings.py": "job/test_condition.py",
    "src/unhang/job/source.py": "job/test_lookup.py",
    "src/unhang/job/words.py": "job/test_shell.py",
    "src/unhang/survey/jobs.py": "whole/test_job.py",
    "src/unhang/survey/others.py": "whole/test_job.py",
    "codemods/edit.py": "codemods/test_splice.py",
    "compat/sweep/by_fix.py": "compat/sweep/test_generate.py",
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
                yield str(path.relative_to(REPOSITORY)), of_a_fix(path) or any(test.is_file() for test in tests)


def of_a_fix(path: Path) -> bool:
    """Return whether a module belongs to a fix that has a test module."""
    for folder in OF_FIXES:
        if path.is_relative_to(REPOSITORY / folder):
            name = path.relative_to(REPOSITORY / folder).parts[0].removesuffix(".py")
            return (REPOSITORY / "tests" / "fixes" / f"test_{name}.py").is_file()
    return False


def test_each_module_has_a_test_module() -> None:
    missing = {module for module, has_test in modules() if not has_test}
    without, stale = sorted(missing - COVERED_BY.keys()), sorted(COVERED_BY.keys() - missing)
    assert not without, "\n".join(["add a test module of its name, or a row to COVERED_BY:", *without])
    assert not stale, "\n".join(["remove these rows, the module is gone or has its test module:", *stale])
    assert [test for test in COVERED_BY.values() if not (REPOSITORY / "tests" / test).is_file()] == []


def test_no_module_repeats_the_name_of_its_folder() -> None:
    assert [module for module, _ in modules() if Path(module).stem == Path(module).parent.name] == []
