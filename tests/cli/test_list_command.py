"""`unhang list`."""

from support import cli
from unhang.shapes import catalog


def test_words_narrow_it_to_the_fixes_whose_symptom_has_all_of_them() -> None:
    lines = cli.called("list", "hangs", "reduce_loss").out.splitlines()
    assert [line.split()[0] for line in lines if line] == ["mtp-cp-deadlock", "cure", "cure:"]
    ran = cli.called("list", "reduce_loss", "no-such-word")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[unknown-fix]: no fix has 'reduce_loss no-such-word' in its symptom\n")


def test_each_fix_has_two_lines_and_the_last_line_says_what_the_grades_mean() -> None:
    ran = cli.called("list")
    assert ran.code == 0
    *lines, blank, grades = ran.out.splitlines()
    assert (blank, grades) == ("", catalog.GRADES)
    for fix, title, affects in zip(catalog.fixes().values(), lines[::2], lines[1::2], strict=True):
        assert title == f"{fix.id:<25} {fix.title}"
        assert affects.split()[0] == fix.grade
        assert f"  {fix.effect}; affects " in affects
        assert {target.upstream for target in fix.targets} >= {
            part.split()[0] for part in affects.split("affects ")[1].split("; ")
        }
    assert "affects megatron-core 0.10.0 to 0.19.2, and 339 nightlies; ms-swift 4.0.0 to 4.6.0" in "\n".join(lines)
