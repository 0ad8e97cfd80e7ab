"""The lines on which the tables of a TOML file begin."""

from unhang.pins import toml


def test_the_line_below_each_header() -> None:
    text = "version = 1\n[[package]]\nname = 'a'\n [[ package ]] # b\nname = 'b'\n[[package.wheels]]\n"
    assert toml.lines(text, "package", len(toml.parsed(text)["package"])) == [3, 5]


def test_where_a_text_looks_like_a_header_no_line_is_claimed() -> None:
    text = "[[package]]\nname = '''\n[[package]]\n'''\n"
    assert toml.lines(text, "package", len(toml.parsed(text)["package"])) == [1]
