"""Where the project's files lie, for tests in folders of any depth."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
GOLDEN, DATA = TESTS / "golden", ROOT / "data"
