"""What upstream's code finds in the child process, and what becomes of a child that does not answer."""

from pathlib import Path

import pytest

from unhang.compat import endstates
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.endstate import Source

FORWARD = """
class TEGroupedMLP:
    def forward(self, permuted_local_hidden_states, tokens_per_expert):
        import os, resource, socket
        {body}
"""


def problems(body: str) -> str:
    source = Source(FORWARD.format(body=body), "TEGroupedMLP.forward")
    return "\n".join(sandbox.run("empty-expert-hang", source, None).problems)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise NameError(sorted(os.environ))", "NameError: ['HOME', 'LC_ALL', 'PATH', 'TMPDIR']"),
        ("raise NameError(os.environ['HOME'] == os.getcwd() and os.listdir())", "NameError: []"),
        ("open('file', 'w').write('x' * 100000)\n        raise NameError('written')", ""),
        ("raise NameError(resource.getrlimit(resource.RLIMIT_AS))", f"NameError: {(sandbox.MEMORY,) * 2}"),
        ("print('{}'); raise NameError('as ever')", "NameError: as ever"),
    ],
)
def test_the_child_has_no_tokens_no_home_and_limits(body: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert told in problems(body)
    assert "written" not in problems(body)


def test_the_child_has_no_network() -> None:
    if not sandbox.without_network():
        pytest.skip("this system permits no unshare")
    found = problems("raise NameError([name for _, name in socket.if_nameindex()])")
    assert "NameError: ['lo']" in found


def test_a_child_that_ends_or_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sandbox.SandboxError, match="the child ended with 7"):
        problems("os._exit(7)")
    monkeypatch.setattr(sandbox, "WALL_S", 1)
    with pytest.raises(sandbox.SandboxError, match="no answer within 1 s"):
        problems("import time; time.sleep(60)")


def test_a_fix_without_end_state_has_none_but_a_broken_import_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endstates, "__path__", [*endstates.__path__, str(tmp_path)])
    assert sandbox.end_state("no-such-fix", "f") is None
    assert sandbox.end_state("empty-expert-hang", "f") is None, "it has none of this function"
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        sandbox.end_state("broken", "f")
