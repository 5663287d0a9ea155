"""What runs in the engine's pods: reads the model as a loader does, every byte once, and then is a simulated
engine.

    engine.py MODEL OPTIONS...    options are those of `extproc simulate`
"""

import json
import os
import sys
import time

BLOCK = 16 << 20


def load(model: str) -> int:
    """Read each file of a directory to its end, one after the other. Returns the bytes."""
    block = bytearray(BLOCK)
    total = 0
    for directory, _, names in os.walk(model):
        for name in sorted(names):
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while count := file.readinto(block):
                    total += count
    return total


def main(model: str, *options: str) -> None:
    """Say what was read and how long that took, and be the engine."""
    began = time.monotonic()
    total = load(model)
    print(json.dumps({"event": "loaded", "bytes": total, "seconds": time.monotonic() - began}), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "extproc", "simulate", *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
