"""Where the project's files lie, for tests in folders of any depth."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
GOLDEN, DATA = TESTS / "golden", ROOT / "data"

# For processes that need a few modules: `tgbench` without its front page, which loads them all.
ALONE = f"""
import sys, types
sys.modules["tgbench"] = types.ModuleType("tgbench")
sys.modules["tgbench"].__path__ = [{str(ROOT / "tgbench")!r}]
"""
