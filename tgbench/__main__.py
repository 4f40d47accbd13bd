"""`python -m tgbench`: the command line."""

import sys

if __name__ == "__main__":
    try:
        from tgbench.commands.cli import main
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(main())
