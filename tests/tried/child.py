"""Runs an original patch: ``python child.py MODULE ROOT CALL``. It ends with 1 where the patch raises.

The root is first on the import path, and all that the module imports of others is there or in the standard library.
"""

import importlib.util
import logging
import sys

if __name__ == "__main__":
    module_path, root, call = sys.argv[1:]
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO)
    sys.path[:0] = [root]
    spec = importlib.util.spec_from_file_location("original", module_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        eval(call, vars(module) | {"logging": logging, "root": root})
    except Exception as error:
        sys.exit(f"raises {type(error).__name__}: {error}")
