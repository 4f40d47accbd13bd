"""Run two commands at once: one is shown as it goes, the other when both have ended.

    python3 .ci/side_by_side.py 'make unit' 'make browser'

The last line stays that of the first command. Fails where one of them does.
"""

import subprocess
import sys
import tempfile


def main(shown: str, kept: str) -> int:
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(kept, shell=True, stdout=output, stderr=subprocess.STDOUT)
        status, last = run_but_for_the_last_line(shown)
        beside.wait()
        output.seek(0)
        tell(output.read() + last)
    return status or beside.returncode


def run_but_for_the_last_line(command: str) -> tuple[int, bytes]:
    last = b""
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        for line in running.stdout:
            tell(last)
            last = line
    return running.returncode, last


def tell(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
