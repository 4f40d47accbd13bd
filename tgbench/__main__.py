"""`python -m tgbench`: the command line."""

from tgbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
