"""Fuzz the reading of bodies for some seconds: `python -m tests.fuzz --seconds 60`.

The last line says how many inputs were tried and how many crashed; the exit status is 1 if any did, or if
nothing could be tried. Each crash is saved in tests/data/crashes, where every test run tries it again, and
the search goes on for the time that is left. Needs atheris, which is made for Linux on x86-64 only.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CRASHES = Path(__file__).parent.parent / "data" / "crashes"

_EXECUTED = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_PROGRESS = re.compile(rb"^#(\d+)\s", re.MULTILINE)
_MAX_LENGTH = 16_384
_DICTIONARY = """\
"{\\"messages\\":["
"{\\"role\\":\\"user\\",\\"content\\":"
"\\"tool_result\\""
"\\"function_call_output\\""
"\\"system\\":"
"\\"input\\":"
"\\"inputs\\":"
"\\"prompt\\":"
"\\"tools\\":"
"\\"cache_salt\\":"
"\\"documents\\":"
"\\"type\\":\\"text\\",\\"text\\":"
"\\\\ud83d"
"[[["
"]]]"
"""


def fuzz(seconds: int) -> tuple[int, int]:
    """Search for so many seconds. Returns how many inputs were tried and how many crashed."""
    from tests.fuzz.target import seeds

    CRASHES.mkdir(exist_ok=True)
    executions = crashes = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        dictionary = Path(folder, "dictionary")
        dictionary.write_text(_DICTIONARY)
        while (left := int(end - time.monotonic())) > 0:
            command = [
                *(sys.executable, "-m", "tests.fuzz", "--worker", "-print_final_stats=1"),
                *(f"-max_total_time={left}", f"-max_len={_MAX_LENGTH}", "-timeout=10"),
                *(f"-artifact_prefix={CRASHES}/", f"-dict={dictionary}", str(corpus)),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            counts = _EXECUTED.findall(done.stdout) or _PROGRESS.findall(done.stdout)
            executions += int(counts[-1]) if counts else 0
            if done.returncode:
                crashes += 1
                sys.stdout.write(done.stdout.decode(errors="replace")[-4000:] + "\n")
                if not counts:
                    break
    return executions, crashes


def work() -> None:
    """Be the process that searches: hand over to libFuzzer, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["extproc"]):
        from tests.fuzz.target import check
    atheris.Setup([sys.argv[0], *sys.argv[2:]], check)
    atheris.Fuzz()


def main() -> None:
    """Run as a command."""
    if sys.argv[1:2] == ["--worker"]:
        work()
        return
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the reading of bodies.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to search (default: 60)")
    executions, crashes = fuzz(parser.parse_args().seconds)
    print(f"{executions} executions, {crashes} crashes")
    sys.exit(crashes > 0 or executions == 0)


if __name__ == "__main__":
    main()
