"""`python -m unhang`: the same as the command `unhang`."""

from unhang.cli.main import run

if __name__ == "__main__":
    run()
