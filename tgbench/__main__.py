"""`python -m tgbench`: the command line."""

from tgbench.commands.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
