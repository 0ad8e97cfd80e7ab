"""The import path of the process that runs the command: our own environment's modules come first.

It begins with the folder of the program and those of PYTHONPATH, and a module of any name may lie there. Before it is
settled nothing may be imported that the interpreter has not loaded itself, not even ``__future__``.
"""

import os
import site
import sys

started_with: list[str] = []
"""The path as it was, which a job has; empty where this process is not the command's."""


def settle() -> None:
    """Put the folders of PYTHONPATH and of the user site last: unhang itself may be installed there.

    Leaves out the folder of the program, which a job does not have either.
    """
    started_with[:] = sys.path
    values = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    foreign = {*map(os.path.abspath, values), site.USER_SITE}
    sys.path.sort(key=foreign.__contains__)

    from unhang.find.probe import is_for_this_program

    program, here = started_with[0], os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if is_for_this_program(program) and program != here:
        sys.path.remove(program)
