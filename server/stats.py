"""What the server counts, for INFO: totals since the start or CONFIG RESETSTAT, and rates over the last second."""

from __future__ import annotations

import os
from collections import Counter


class Stats:
    """Plain attributes, since the loop adds to some of them with every command."""

    __slots__ = (
        "_sampled",
        "changes",
        "commands",
        "connections",
        "denied",
        "error_codes",
        "evicted_keys",
        "evicted_records",
        "hits",
        "input_bytes",
        "input_bytes_per_s",
        "misses",
        "ops_per_s",
        "output_bytes",
        "output_bytes_per_s",
        "output_cut_offs",
        "query_cut_offs",
        "rejected_connections",
        "run_id",
    )

    def __init__(self) -> None:
        self.changes = 0  # entries applied since the start
        self.denied = dict.fromkeys(("auth", "command", "key", "channel"), 0)  # what ACL LOG was told, since the start
        self.run_id = os.urandom(20).hex()  # tells one life of the server from the next
        self.reset()

    def reset(self) -> None:
        """Start anew, as CONFIG RESETSTAT does."""
        self.commands = 0
        self.connections = 0
        self.rejected_connections = 0
        self.query_cut_offs = 0  # clients cut off at client-query-buffer-limit,
        self.output_cut_offs = 0  # at client-output-buffer-limit
        self.hits = 0  # keys that commands found,
        self.misses = 0  # and that they did not
        self.evicted_keys = 0
        self.evicted_records = 0
        self.input_bytes = 0
        self.output_bytes = 0
        self.error_codes: Counter[str] = Counter()  # ERR, WRONGPASS, ...: every error reply under its code
        self.ops_per_s = 0.0
        self.input_bytes_per_s = 0.0
        self.output_bytes_per_s = 0.0
        self._sampled: tuple[int, int, int, int] | None = None

    @property
    def errors(self) -> int:
        """Error replies of all codes."""
        return self.error_codes.total()

    def sample(self, now: int) -> None:
        """Take the rates since the last sample; `now` in unix milliseconds. The server's cron calls it each second."""
        if self._sampled is not None:
            then, commands, input_bytes, output_bytes = self._sampled
            elapsed_s = (now - then) / 1000
            if elapsed_s > 0:
                self.ops_per_s = (self.commands - commands) / elapsed_s
                self.input_bytes_per_s = (self.input_bytes - input_bytes) / elapsed_s
                self.output_bytes_per_s = (self.output_bytes - output_bytes) / elapsed_s
        self._sampled = (now, self.commands, self.input_bytes, self.output_bytes)
