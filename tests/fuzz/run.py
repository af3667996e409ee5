"""Fuzz, guided by coverage: `python tests/fuzz/run.py TARGET|all [-max_total_time=60 and other options of libFuzzer]`.

libFuzzer counts whole seconds, and one more than it is told; `-box=1` ends each target once a second is over.

New inputs are kept in `build/fuzz/TARGET`, not in the corpus: what belongs there is chosen by hand (a crash that was
fixed, an input that reaches what no other does). A crash leaves its input in the folder where this runs.

`all` takes the targets one after another, each in a process of its own that is forked from this one: making the
product's code count what it runs takes some seconds, and is done once.
"""

from __future__ import annotations

import os
import sys
import time

import atheris

HERE = os.path.dirname(os.path.abspath(__file__))

with atheris.instrument_imports(include=["recalld"]):
    sys.path.insert(0, HERE)
    import targets


def fuzz(name: str, options: list[str]) -> None:
    """Ends the process."""
    found = os.path.join("build", "fuzz", name)
    os.makedirs(found, exist_ok=True)
    words = os.path.join(HERE, f"{name}.dict")
    if os.path.exists(words):
        options = [*options, f"-dict={words}"]
    folders = [found, os.path.join(HERE, "corpus", name)]
    work = targets.TARGETS[name]
    for option in [option for option in options if option.startswith("-box=")]:
        options.remove(option)
        work = boxed(work, float(option.removeprefix("-box=")))
    atheris.Setup([sys.argv[0], "-rss_limit_mb=2048", "-timeout=20", *options, *folders], work)
    atheris.Fuzz()


def boxed(work: targets.Target, seconds: float) -> targets.Target:
    """The same until time is up: then the process ends in good order."""
    end = time.monotonic() + seconds

    def work_in_time(data: bytes) -> None:
        if time.monotonic() >= end:
            os._exit(0)
        work(data)

    return work_in_time


def main() -> int:
    names, options = sys.argv[1:2], sys.argv[2:]
    if names == ["all"]:
        for name in targets.TARGETS:
            print(f"-- {name}", flush=True)
            child = os.fork()
            if not child:
                fuzz(name, options)
            if os.waitpid(child, 0)[1]:
                return 1
        return 0
    if not names or names[0] not in targets.TARGETS:
        print(f"Which one? all, {', '.join(targets.TARGETS)}", file=sys.stderr)
        return 2
    fuzz(names[0], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
