"""`python -m unhang`: the same as the command `unhang`."""

from unhang.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
