"""`python -m recalld.server` is `recalld`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
