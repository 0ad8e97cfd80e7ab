"""The command `unhang`, and `python -m unhang`."""

from unhang.find import own_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> "NoReturn":
    """Run the command, and leave with its exit code."""
    own_path.settle()
    from unhang.cli import main  # not before: a folder of PYTHONPATH may hold a module of any name

    main.run()


if __name__ == "__main__":
    run()
