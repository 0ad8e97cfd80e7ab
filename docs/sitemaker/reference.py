"""The reference, made from the parser and the schemas of compat/. Pure, but for reading schemas."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unhang.cli.arguments import whole
from unhang.cli.help import PAGES, TOP


def pages(schemas: Path) -> dict[str, str]:
    """Return the pages of the reference, by their place on the site; ``schemas`` is the folder of the schemas."""
    return {
        "reference/commands.md": commands(),
        "reference/schemas.md": schemas_page(schemas),
    }


def commands() -> str:
    """Return the page of all commands, as their parsers have them."""
    (subparsers,) = (action for action in whole()._actions if isinstance(action, argparse._SubParsersAction))
    lines = ["# Commands", "", TOP.description, ""]
    for name, parser in subparsers.choices.items():
        page = PAGES[name]
        lines += [f"## unhang {name}", "", page.description, "", "```text", parser.format_usage().strip(), "```", ""]
        for group in parser._action_groups:
            options = [_option(parser, action) for action in group._group_actions if not _is_untold(action)]
            if options:
                lines += [f"**{group.title}**", "", *options, ""]
        lines += [f"{page.exits[0].upper()}{page.exits[1:]}.", "", "```text", *page.examples, "```", ""]
    return "\n".join(lines)


def _is_untold(action: argparse.Action) -> bool:
    return action.dest == "help" or action.help == argparse.SUPPRESS


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the line of one option or argument."""
    formatter = parser._get_formatter()
    names = formatter._format_action_invocation(action)
    return f"- `{names}`: {formatter._expand_help(action) if action.help else ''}".rstrip(": ")


def schemas_page(folder: Path) -> str:
    """Return the page of the JSON schemas in a folder: a section each, and a row for each key."""
    lines = ["# Schemas of the data", "", "The JSON files of `compat/` and `patches/` are checked against these.", ""]
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {path.name}", "", f"{schema['title']}. {schema.get('description', '')}", ""]
        lines += ["| key | what it may be | meaning |", "|---|---|---|", *_keys(schema, ""), ""]
    return "\n".join(lines)


def _keys(schema: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a row for each key of a schema, then those inside of it: ``[]`` is an item of a list, ``*`` is any key."""
    for key, part in [*schema.get("properties", {}).items(), ("*", schema.get("additionalProperties"))]:
        if isinstance(part, dict):
            inner = f"{name}.{key}".lstrip(".")
            types, values = part.get("type", ()), part.get("enum", [part["const"]] if "const" in part else [])
            allowed = [f"`{json.dumps(value)}`" for value in values] or ([types] if isinstance(types, str) else types)
            yield f"| `{inner}` | {', '.join(allowed)} | {part.get('description', '')} |"
            yield from _keys(part, inner)
            yield from _keys(part.get("items", {}), f"{inner}[]")
