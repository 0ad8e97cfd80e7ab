"""What GitHub's runner takes as a command in the lines of a log, as its ActionCommand parses them."""

import re

# The first is taken at the start of a line only, behind any white space that .NET knows; the second anywhere in it.
_SECOND, _FIRST = re.compile(r"##\[([^\]\s;]+)[^\]]*\]"), re.compile(r"::([^:\s]+)( [^\n]*?)?::(.*)", re.DOTALL)


def commands(text: str) -> list[str]:
    """Return each line that is a command, without those between `::stop-commands::TOKEN` and `::TOKEN::`."""
    taken, token = [], ""
    for line in re.split(r"\r\n|\r|\n", text):
        found = _FIRST.match(line.lstrip()) or _SECOND.search(line)
        if token:
            token = "" if found and found[1] == token else token
        elif found and found[1] == "stop-commands":
            token = found[3]
        elif found or line.lstrip().startswith("::") or "##vso[" in line:
            taken.append(line)
    return [*taken, *([f"{token} has no end"] if token else [])]
