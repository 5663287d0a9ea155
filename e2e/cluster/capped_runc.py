#!/usr/bin/env python3
"""runc for a machine that lacks capabilities: asks for no more than there are.

On a machine without, say, CAP_SYS_RESOURCE, `docker run --privileged` fails: runc is told to grant all
capabilities. This takes the missing ones out of what it is told, and negative OOM scores, which need that
same capability. Docker calls it in the place of runc; it needs nothing but the standard library.
"""

import json
import os
import sys

RUNC = "/usr/sbin/runc"


def capabilities() -> int:
    """The bounding set of this process, as a bit mask (proc(5))."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))


def names(mask: int) -> set[str]:
    """The names of the capabilities in the mask (linux/capability.h, in the order of their numbers)."""
    known = (
        "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE"
        " NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO"
        " SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME"
        " SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG"
        " WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
    )
    return {f"CAP_{name}" for bit, name in enumerate(known.split()) if mask >> bit & 1}


def cap(process: dict[str, object], granted: set[str]) -> None:
    """Take from a process' settings (OCI runtime specification) what this machine cannot grant."""
    sets = process.get("capabilities")
    if isinstance(sets, dict):
        for kind, wanted in sets.items():
            sets[kind] = [name for name in wanted if name in granted]
    score = process.get("oomScoreAdj")
    if isinstance(score, int) and score < 0:
        process["oomScoreAdj"] = 0


def rewrite(path: str, *, bundle: bool) -> None:
    """Cap the settings in the file: those of a container (`config.json`), or of one process in it."""
    with open(path) as file:
        settings = json.load(file)
    process = settings.get("process") if bundle else settings
    if isinstance(process, dict):
        cap(process, names(capabilities()))
    with open(path, "w") as file:
        json.dump(settings, file)


def argument(words: list[str], *options: str) -> str:
    """The value of the first of these options; empty if there is none."""
    for option in options:
        for index, word in enumerate(words):
            if word == option and index + 1 < len(words):
                return words[index + 1]
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
    return ""


def main(words: list[str]) -> None:
    """Rewrite what runc is about to read, then be runc."""
    if "create" in words or "run" in words:
        rewrite(os.path.join(argument(words, "--bundle", "-b") or ".", "config.json"), bundle=True)
    elif "exec" in words and (process := argument(words, "--process", "-p")):
        rewrite(process, bundle=False)
    os.execv(RUNC, [RUNC, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
