"""`recalld ping [--url URL]`: whether a server answers, for health checks. Exit code 0: it does, 1: it does not."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .link import DEFAULT_URL, Failed, Link, Refused


def main(argv: Sequence[str]) -> int:
    """Run the words behind `ping`; return the exit code."""
    parser = argparse.ArgumentParser(prog="recalld ping", description="Ask a running server whether it answers.")
    parser.add_argument(
        "--url",
        default=os.environ.get("RECALLD_URL", DEFAULT_URL),
        metavar="URL",
        help="redis://[[user]:password@]host[:port], rediss:// over TLS (default: $RECALLD_URL, which no list of"
        f" processes shows, else {DEFAULT_URL})",
    )
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="give up after so long (3)")
    options = parser.parse_args(argv)
    try:
        link = Link(options.url, options.timeout)
        link("PING")
        link.close()
    except Refused as error:
        if not error.reply.startswith("NOAUTH"):
            print(error, file=sys.stderr)
            return 1
        # Whoever asks for a password is alive; a health check needs none.
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"no answer: {error}", file=sys.stderr)
        return 1
    print("PONG")
    return 0
