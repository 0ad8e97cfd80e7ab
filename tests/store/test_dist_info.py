"""RECORD keeps every byte that does not have to change."""

import base64
import csv
import hashlib
import io

import pytest

from unhang.store import dist_info

OLD, NEW = b"old\n", b"new bytes\n"


def line(path: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{path},{algorithm}={digest},{len(data)}"


# What does not change


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"a.py,sha256=AAAA,3\nd.dist-info/RECORD,,\n",
        b"a.py,sha256=AAAA,3\r\nb.py,sha256=B,1\nlast.py,sha256=C,1",
        b'"unclosed,sha256=AAAA,3\nc.py,,\n',
        b"\xef\xbb\xbfa.py,sha256=AAAA,3\n",
        b"caf\xe9.py,sha256=AAAA,3\n",
    ],
)
def test_an_unlisted_file_changes_nothing(content: bytes) -> None:
    assert dist_info.update(content, {"x.py": NEW}) == content
    assert dist_info.row(content, "x.py") is None
    assert dist_info.restore(content, "x.py", "x.py,sha256=AAAA,3") == content


@pytest.mark.parametrize(
    "row", ["x.py,,", "x.py", '"x.py","",""', line("p/x.py", OLD), line("x.pyi", OLD), line("../x.py", OLD)]
)
def test_a_row_without_hash_or_of_another_file_stays(row: str) -> None:
    assert dist_info.update(f"{row}\n".encode(), {"x.py": NEW}) == f"{row}\n".encode()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.py", "a/../../x.py"])
def test_a_path_that_leaves_site_packages_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        dist_info.update(f"{line(path, OLD)}\n".encode(), {path: NEW})


def test_a_row_of_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a row of"):
        dist_info.restore(f"{line('x.py', OLD)}\n".encode(), "x.py", "../../evil.py,,")


# What must


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", ""])
@pytest.mark.parametrize("lead", ["", "\ufeff"])
def test_only_hash_and_size_change(end: str, lead: str) -> None:
    rest = f"{line('b.py', OLD)}\r\nd.dist-info/RECORD,,{end}"
    first, last = f"{lead}%s\n{rest}", f"{lead}a.py,,\r\n%s{end}"
    for text in (first, last):
        before, after = ((text % line("x.py", data)).encode() for data in (OLD, NEW))
        assert dist_info.update(before, {"x.py": NEW}) == after
        assert dist_info.restore(after, "x.py", line("x.py", OLD)) == before


@pytest.mark.parametrize("path", ["a,b.py", 'say "x".py', "two\nlines.py", "ünï.py", " x.py", "caf\udce9.py"])
def test_quoting_is_that_of_csv(path: str) -> None:
    def table(data: bytes) -> bytes:
        out = io.StringIO()
        rows = [["a.py", "", ""], [path, *line("", data).split(",")[1:]], ["z.py", "sha256=Z", "1"]]
        csv.writer(out).writerows(rows)
        return out.getvalue().encode("utf-8", "surrogateescape")

    assert dist_info.update(table(OLD), {path: NEW}) == table(NEW)
    row = dist_info.row(table(OLD), path)
    assert row is not None
    assert dist_info.restore(table(NEW), path, row) == table(OLD)


@pytest.mark.parametrize("lead", ["", "\ufeff"])
def test_a_row_of_ours_over_an_edit_has_its_path_in_quotes(lead: str) -> None:
    other, end = line("y.py", OLD), "\r\nd.dist-info/RECORD,,"
    before, after = (f"{lead}{row}\n{other}{end}".encode() for row in (line("x.py", OLD), '"x.py"' + line("", OLD)))
    assert dist_info.quoted(before, "x.py") == after
    assert dist_info.quoted(after, "x.py") == after
    assert dist_info.quoted(before, "z.py") == before
    assert next(csv.reader(after.decode().removeprefix(lead).splitlines())) == line("x.py", OLD).split(",")
    assert dist_info.update(after, {"x.py": OLD}) == after
    assert dist_info.restore(after, "x.py", line("x.py", OLD)) == before


def test_unneeded_quotes_stay() -> None:
    before, after = (('"' + line("x.py", data).replace(",", '","') + '"\n').encode() for data in (OLD, NEW))
    assert dist_info.update(before, {"x.py": NEW}) == after


@pytest.mark.parametrize(("before", "after"), [("sha512", "sha512"), ("sha384", "sha384"), ("nonesuch", "sha256")])
def test_the_installers_hash_is_kept(before: str, after: str) -> None:
    row = line("x.py", OLD, before) if before in hashlib.algorithms_guaranteed else f"x.py,{before}=AAAA,4"
    assert dist_info.update(f"{row}\n".encode(), {"x.py": NEW}) == f"{line('x.py', NEW, after)}\n".encode()


@pytest.mark.parametrize(
    "rows",
    [["x.py,sha256=wrong,999"], ["x.py,sha256=AAAA,"], ["x.py,sha256=AAAA"], ["x.py,md5=1,1,more"],
     [line("x.py", OLD), "x.py,sha256=other,7"]],
)  # fmt: skip
def test_an_odd_row_or_two_are_restored(rows: list[str]) -> None:
    before = ("a.py,,\n" + "\nb.py,,\n".join(rows) + "\r\n").encode()
    after = dist_info.update(before, {"x.py": NEW})
    assert after != before
    assert after.count(line("x.py", NEW).encode()) == len(rows) or len(rows) == 1
    assert dist_info.row(before, "x.py") == "\n".join(rows)
    assert dist_info.restore(after, "x.py", "\n".join(rows)) == before


def test_a_row_without_its_hash_and_a_record_without_rows() -> None:
    record = b'\xef\xbb\xbfa.py,sha256=A,1\r\n"b,.pyc",sha256=B,2\nc.pyc\nd.pyc,,\n'
    assert dist_info.unhashed(record, "b,.pyc") == record.replace(b"sha256=B,2", b",")
    for path in "c.pyc", "d.pyc", "e.pyc":
        assert dist_info.unhashed(record, path) == record
    assert dist_info.without(record, ["a.py", "b,.pyc", "e.pyc"]) == b"\xef\xbb\xbfc.pyc\nd.pyc,,\n"
    assert dist_info.without(record, []) == record
