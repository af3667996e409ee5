"""`make demo`: a server with EMBEDDER local that has read recalld's own documentation, and five questions to it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from ..client import Memory, NewRecord

DOCS = Path(__file__).resolve().parent.parent
QUESTIONS = (
    "How much can be lost in a crash or a power cut?",
    "Why did my record not show up among the hits?",
    "How is the final score of a hit computed?",
    "How do I move a memory from one server to another?",
    "Can I ask what was true about a person last year?",
)
# Of characters: some hundred words, which is what the model reads.
_PASSAGE = 600


def passages(path: Path) -> Iterator[tuple[str, str]]:
    """(heading, text) of the paragraphs of a Markdown file, code left out, short neighbours joined."""
    heading, held = path.stem, ""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        block = " ".join(block.split())
        if block.startswith("#") or len(held) + len(block) > _PASSAGE:
            if held:
                yield heading, held
            held = ""
        if block.startswith("#"):
            heading = block.lstrip("# ")
        elif block and not block.startswith("|"):
            held = f"{held} {block}".strip()
    if held:
        yield heading, held


def _started(folder: str) -> tuple[subprocess.Popen[str], int]:
    """A server on a free port, its append-only file in `folder`, and the port."""
    words = ["--port", "0", "--bind", "127.0.0.1", "--dir", folder, "--embedder-timeout-ms", "60000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "recalld.server", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        ready = re.search(r"Ready to accept connections tcp on .*:(\d+)", line)
        if ready:
            return process, int(ready[1])
    raise SystemExit(f"the server did not start:\n{said}")


def main() -> int:
    files = sorted([DOCS / "README.md", *(DOCS / "docs").glob("*.md")])
    files = [path for path in files if path.exists()]
    if not files:
        raise SystemExit("the demo reads the documentation of the repository: run `make demo` there")
    with tempfile.TemporaryDirectory() as folder:
        process, port = _started(folder)
        try:
            memory = Memory(f"redis://127.0.0.1:{port}", "docs")
            memory.create(embedder="local")
            records: list[NewRecord] = [
                {"text": f"{heading}: {text}", "meta": {"file": path.name, "heading": heading}}
                for path in files
                for heading, text in passages(path)
            ]
            print(f"Reading {len(files)} files into the memory 'docs' on port {port} ..", flush=True)
            began = time.perf_counter()
            for at in range(0, len(records), 64):
                memory.add_many(records[at : at + 64])
            took = time.perf_counter() - began
            print(f"{len(records)} passages, embedded here in {took:.1f} s. No vector came from a client.\n")
            for question in QUESTIONS:
                began = time.perf_counter()
                hit = memory.query(question, top_k=1, with_meta=True, weights=(0.35, 0.5, 0, 0))[0]
                took = (time.perf_counter() - began) * 1e3
                print(f"? {question}    ({took:.0f} ms)")
                about = hit.meta or {}
                print(f"  {about.get('file')}, {about.get('heading')}:")
                text = (hit.text or "").removeprefix(f"{about.get('heading')}: ")
                text = textwrap.fill(text[:300], 110, initial_indent="  | ", subsequent_indent="  | ")
                print(f"{text}\n")
        finally:
            process.terminate()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
