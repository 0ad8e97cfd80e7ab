"""From a request to an environment's installations, and what is said where there are none."""

import shutil
from pathlib import Path

import pytest

from support import cli
from unhang.cli.requests import selection
from unhang.errors import UnhangError
from unhang.records import Request
from unhang.survey.search import find, find_some

MTP = "mtp-cp-deadlock"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))


def test_if_none_of_the_named_upstreams_is_there_that_is_an_error_unless_it_is_allowed(site: Path) -> None:
    assert find(Request(target=str(site), upstreams=("verl",))).installations
    request = Request(target=str(site), upstreams=("ms-swift", "megatron-core"))
    with pytest.raises(UnhangError) as caught:
        find_some(request)
    assert caught.value.code == "no-upstream"
    assert f"none of ms-swift, megatron-core is installed in {site} (found by --target)" in caught.value.message
    assert find_some(request._replace(allow_none=True)).installations == ()


def test_a_copy_that_a_project_vendors_is_named(site: Path, tmp_path: Path) -> None:
    """With the command for it, which repeats what was asked for."""
    project, deep = tmp_path / "my project", "third_party/it"
    shutil.copytree(site, project / deep)
    (script := tmp_path / "job.py").touch()
    wanted = selection({"skip": [MTP]})
    for request, option in (
        (wanted._replace(source=str(project), script=str(script)), "--source"),
        (wanted._replace(target=str(project)), "--target"),
    ):
        with pytest.raises(UnhangError) as caught:
            find_some(request)
        more = f" --script {script}" if request.script else ""
        assert caught.value.hint == (
            f"below it there is a copy in {project / deep}; "
            f"run: unhang check {option} '{project / deep}'{more} --skip {MTP}"
        )
    with pytest.raises(UnhangError) as caught:
        find_some(wanted._replace(source=str(project), upstreams=("ms-swift",)))
    assert "--allow-none" in (caught.value.hint or ""), "what is there was not asked for"
    with pytest.raises(UnhangError) as caught:
        find_some(wanted._replace(source=str(project), upstreams=("ms-swift",), allow_none=None))
    assert "--source DIR" in (caught.value.hint or "")
    assert "--allow-none" not in (caught.value.hint or ""), "the command has no such option"
