"""The distribution: one import name, its data and command, its dependencies, and an editable install."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import unhang
from support import cli

REPOSITORY = Path(__file__).parent.parent


def loaded(code: str) -> set[str]:
    """Return the modules that a process has loaded once it has run this code, which calls `main`."""
    code = f"import sys; from unhang.cli.main import main\ntry: {code}\nfinally: print(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    return set(done.stdout.splitlines()[-1].split())


def test_nothing_slow_is_imported_by_check(tmp_path: Path) -> None:
    found = loaded(f"main(['check', '--target', {str(cli.unpack(tmp_path, ('verl', '0.7.1')))!r}])")
    slow = {"libcst", "git", "filelock", "packaging", "ast", "importlib.metadata", "inspect", "subprocess", "difflib"}
    assert not found & {*slow, "unhang.cli.error_codes"}
    assert "unhang.cli.check_command" in found


def test_help_imports_no_command() -> None:
    found = loaded("main(['--help'])")
    assert "unhang.cli.main" in found
    assert not found & {"json", "hashlib", "difflib"}
    assert [name for name in found if name.endswith("_command")] == []


def test_tests_run_against_the_installed_package() -> None:
    assert Path(unhang.__file__).parent != REPOSITORY / "src" / "unhang"


@pytest.fixture
def distribution() -> metadata.Distribution:
    """Return the metadata of the installed wheel, even if the checkout has an egg-info."""
    found = list(Path(unhang.__file__).parent.parent.glob("unhang-*.dist-info"))
    if not found:
        pytest.skip("unhang is installed in editable mode here, not from a wheel")
    return metadata.Distribution.at(found[0])


def test_the_wheel_has_one_import_name_and_all_its_data(distribution: metadata.Distribution) -> None:
    files = [str(file) for file in distribution.files or []]
    tops = {file.split("/")[0] for file in files}
    assert {top for top in tops if not top.startswith("..") and ".dist-info" not in top} == {"unhang"}
    for name in (
        "py.typed",
        "cli/error_codes.md",
        "cli/help.md",
        "cli/words.md",
        "draft/templates/tests.txt",
        "compat/schemas/facts.json",
        "compat/schemas/manifest.json",
        "compat/schemas/pack.json",
        "compat/schemas/upstream.json",
        "compat/data/mtp-cp-deadlock.json",
        "compat/releases.json",
        "compat/swept.json",
        "patches/mtp-cp-deadlock/drawing.json",
        "upstreams/verl.json",
        "patches/mtp-cp-deadlock/page.md",
        "tell/picture.css",
    ):
        assert f"unhang/{name}" in files
    assert "unhang/prove/fixes/mtp_cp_deadlock.py" in files
    for name in ("compat/sweep/", "compat/schemas/wheels", "compat/wheels.json"):
        assert not [file for file in files if file.startswith(f"unhang/{name}")], "only a checkout has it"
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert [(script.name, script.value) for script in distribution.entry_points] == [("unhang", "unhang.__main__:run")]


def test_the_run_time_dependencies_are_few_and_not_pinned(distribution: metadata.Distribution) -> None:
    required = [line for line in distribution.requires or [] if "extra ==" not in line]
    assert sorted(line.split(">=")[0] for line in required) == ["libcst", "packaging"]
    assert not [line for line in required if "==" in line or "<" in line]


def test_each_link_of_the_readme_is_absolute_and_leads_to_a_file(distribution: metadata.Distribution) -> None:
    files = []
    for mark, link in re.findall(r"(!?)\[[^]]*\]\(([^)]*)\)", distribution.read_text("METADATA") or ""):
        kind = "raw" if mark else "blob"
        found = re.fullmatch(rf"https://github\.com/[\w-]+/unhang/{kind}/v{unhang.__version__}/([^#]+)(#.+)?", link)
        assert found, link
        files.append(REPOSITORY / found[1])
    assert (len(files) > 10, [file for file in files if not file.is_file()]) == (True, [])
    assert distribution.metadata["Description-Content-Type"] == "text/markdown"


@pytest.mark.slow
def test_an_editable_install_behaves_like_the_wheel(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-input", "-e", str(REPOSITORY)], check=True)
    site = cli.unpack(tmp_path / "site", ("verl", "0.7.1"))
    check = ["check", "--target", str(site), "--output-format", "json"]
    editable = subprocess.run([venv / "bin" / "unhang", *check], capture_output=True, text=True, check=False, cwd="/")
    installed = cli.installed(*check)
    assert editable.returncode == installed.code == 1
    assert json.loads(editable.stdout) == installed.json
    where = "import unhang; print(unhang.__file__)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, cwd="/").stdout.strip()
    assert Path(found) == REPOSITORY / "src" / "unhang" / "__init__.py"
