"""The start-up hook of an overlay, in processes that have it on PYTHONPATH."""

import shutil
import sys
from pathlib import Path

import pytest

from support import environments, overlays
from support.overlays import LOOK, MODULE, STATE, job

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import startup


def test_it_has_its_own_modules_only_and_the_first_of_two_overlays_wins(site: Path, overlay: Path) -> None:
    ran = job("import megatron.core.utils as m, megatron.core as c; print(m.__file__, c.__file__)", overlay, site)
    assert ran.out.split() == [str(site / "megatron/core/utils.py"), str(site / "megatron/core/__init__.py")]
    second = Path(shutil.copytree(overlay, overlay.with_name("second")))
    assert job(LOOK, overlay, second, site).out.startswith(str(overlay))
    assert job(LOOK, second, overlay, site).out.startswith(str(second))


def test_it_imports_nothing_until_a_module_is_imported(site: Path, overlay: Path) -> None:
    with_it = job("import sys; print(*sys.modules)", overlay, site).out.split()
    without = job("import sys; print(*sys.modules)", site).out.split()
    assert set(with_it) - set(without) <= {"sitecustomize"}


def test_a_hidden_sitecustomize_runs_and_is_the_one_in_sys_modules(site: Path, overlay: Path, tmp_path: Path) -> None:
    theirs = environments.write(tmp_path / "theirs", {"sitecustomize.py": "print('ran once', __name__)\nmark = 7\n"})
    ran = job(f"import sitecustomize as s; print(s.mark, s.__file__); {LOOK}", overlay, theirs, site)
    assert ran.out.splitlines()[:2] == ["ran once sitecustomize", f"7 {theirs / 'sitecustomize.py'}"]
    assert ran.out.splitlines()[2].startswith(str(overlay))
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    ran = job(LOOK, overlay, theirs, site)
    assert "Error in sitecustomize" in ran.err
    assert "ValueError: theirs" in ran.err
    assert ran.out.startswith(str(overlay))


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_options_of_python_that_disable_it(option: str, site: Path, overlay: Path) -> None:
    code = f"import sys; sys.path.append({str(site)!r}); {LOOK}"
    assert job(code, overlay, options=(option,)).out.split() == [str(site / STATE)]
    assert job(code, overlay).out.startswith(str(overlay))


def test_a_removed_overlay_is_a_clear_import_error(site: Path, overlay: Path) -> None:
    ran = job(f"import shutil; shutil.rmtree({str(overlay)!r}); import {MODULE}", overlay, site)
    assert f"ImportError: unhang overlay: '{overlay}/.unhang-overlay/" in ran.err


def test_its_bytecode_is_there_from_the_start_and_stays_right_in_a_copy(site: Path, overlay: Path) -> None:
    (cached,) = overlay.glob("__pycache__/*")
    copy = overlay.with_name("copy")
    shutil.copytree(overlay, copy, copy_function=shutil.copyfile)  # without the times
    ran = job("pass", copy, options=("-v",))
    assert f"# code object from '{copy / '__pycache__' / cached.name}'" in ran.err
    hook = copy / "sitecustomize.py"
    hook.write_bytes(hook.read_bytes() + b"print('edited')\n")
    assert job("pass", copy).out == "edited\n"


@pytest.mark.slow
def test_a_start_takes_less_than_two_milliseconds_more(site: Path, overlay: Path, tmp_path: Path) -> None:
    took = startup.measure(overlay, sys.executable, 40, tmp_path / "copies")
    least, median, *_ = startup.added(took, startup.COMPILED)
    assert min(least, median) < 2, "on an idle machine a fifth of it: docs/overlay.md"
    least, median, *_ = startup.added(took, startup.UNCOMPILED)
    assert min(least, median) < 4, "on an idle machine less than half of it: docs/overlay.md"


def test_the_bytecode_of_an_older_hook_is_not_used(site: Path, overlay: Path) -> None:
    writing = {"PYTHONDONTWRITEBYTECODE": ""}
    for version in "0.16.1", "0.17.1":
        overlays.put(site, version)
        overlays.make(overlay, site)
        for _ in range(2):
            assert job(LOOK, overlay, site, env=writing).out.startswith(str(overlay))
        assert len(list(overlay.rglob("parallel_state.*.pyc"))) == 1
        assert len(list(overlay.glob("__pycache__/sitecustomize.*.pyc"))) == 1


def test_a_line_end_in_a_folders_name_is_shown_escaped(site: Path, overlay: Path) -> None:
    """In the log of a job, too."""
    folder = overlay.rename(overlay.with_name("over\nlay"))
    ran = job(f"import shutil; shutil.rmtree({str(folder)!r}); import {MODULE}", folder, site)
    assert "over\\nlay/.unhang-overlay/" in ran.err
    assert "\nlay/.unhang-overlay/" not in ran.err
