"""The text of INFO: what redis-cli --stat, client libraries and exporters read, and nothing that is not so.

A field of Redis stands here under Redis's name where the server really has what it tells. Times are seconds, sizes
bytes, unless the name says otherwise.
"""

from __future__ import annotations

import os
import platform
import resource
import struct
import sys
from asyncio import Future, sleep
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from ..protocol.reply import Verbatim
from .cli import version

if TYPE_CHECKING:
    from ..index.memory import Memory
    from .client import Client
    from .server import Server

#: What clients take the server for: they switch on it what they ask for.
REDIS_VERSION = "7.4.0"

Fields = dict[str, object]
Section = Callable[["Server", int], Fields]

#: By the word that asks for the section, in the order in which INFO shows them.
SECTIONS: dict[str, Section] = {}
TITLES = {"cpu": "CPU"}
EVERYTHING = frozenset({"all", "everything"})
DEFAULT = "default"
#: Shown only where they are asked for: a line for each command.
LONG = frozenset({"commandstats", "latencystats"})

# The section that is added up over all memories; counting the terms of a small one takes about 9 microseconds.
MEMORYDB = "memorydb"
_MEMORIES_AT_ONCE = 100

# avg_ttl is an estimate in Redis too; 100 000 deadlines are summed in about a millisecond.
_TTL_SAMPLE = 100_000


def build(server: Server, now: int, words: Iterable[str]) -> Verbatim | Future[Verbatim]:
    """The sections that `words` ask for, the default ones where there are no words; `now` in unix milliseconds.

    A future of them where there are many memories to add up, so that the loop can do other things in between.
    """
    server.observer.times.fold()
    wanted = {word.lower() for word in words} or {DEFAULT}
    if DEFAULT in wanted or wanted & EVERYTHING:
        shown = SECTIONS.keys() | {MEMORYDB}
        wanted |= shown if wanted & EVERYTHING else shown - LONG
    parts = [_text(name, section(server, now)) for name, section in SECTIONS.items() if name in wanted]
    if MEMORYDB not in wanted:
        return _joined(parts)
    server.keyspace.count(now)  # lets some of what is due go
    memories = list(server.keyspace.memories.values())
    if len(memories) <= _MEMORIES_AT_ONCE:
        return _joined([*parts, _text(MEMORYDB, _added_up(memories))])

    async def later() -> Verbatim:
        total: Counter[str] = Counter()
        for at in range(0, len(memories), _MEMORIES_AT_ONCE):
            total.update(_added_up(memories[at : at + _MEMORIES_AT_ONCE]))
            await sleep(0)
        return _joined([*parts, _text(MEMORYDB, total)])

    return server.loop.create_task(later())


def _joined(parts: Iterable[str]) -> Verbatim:
    return Verbatim("\r\n".join(parts))


def _text(name: str, fields: Mapping[str, object]) -> str:
    lines = [f"# {TITLES.get(name, name.capitalize())}", *(f"{field}:{value}" for field, value in fields.items())]
    return "".join(line + "\r\n" for line in lines)


def _section(section: Section) -> Section:
    SECTIONS[section.__name__.strip("_")] = section
    return section


@_section
def _server(server: Server, now: int) -> Fields:
    uptime_s = max(0, now - server.started_ms) // 1000
    return {
        "redis_version": REDIS_VERSION,
        "recalld_version": _version(),
        "redis_mode": "standalone",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": struct.calcsize("P") * 8,
        "python_version": platform.python_version(),
        "process_id": os.getpid(),
        "run_id": server.stats.run_id,
        "tcp_port": (server.ports or server.tls_ports or [("", 0)])[0][1],
        "server_time_usec": now * 1000,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86400,
        "hz": 10,
        "configured_hz": 10,
        "io_threads_active": 0,
        "executable": sys.executable,
        "config_file": server.config.path or "",
        **_listeners(server),
    }


def _listeners(server: Server) -> Fields:
    """Redis 7.2's lines, one per kind: name=tcp,bind=127.0.0.1,bind=::1,port=7171."""
    kinds = [(name, ports) for name, ports in (("tcp", server.ports), ("tls", server.tls_ports)) if ports]
    return {
        f"listener{number}": ",".join(
            [f"name={name}", *(f"bind={address}" for address, _ in ports), f"port={ports[0][1]}"]
        )
        for number, (name, ports) in enumerate(kinds)
    }


@_section
def _clients(server: Server, now: int) -> Fields:
    clients = server.clients.values()
    return {
        "connected_clients": len(clients),
        "cluster_connections": 0,
        "maxclients": server.config["maxclients"],
        "client_recent_max_input_buffer": max(
            (client.connection.parser.buffered_bytes for client in clients), default=0
        ),
        "client_recent_max_output_buffer": max((client.connection.unsent_bytes() for client in clients), default=0),
        "blocked_clients": server.blocked_clients(),
        "tracking_clients": 0,
        "clients_in_timeout_table": 0,
        "pubsub_clients": sum(1 for client in clients if client.channels or client.patterns),
        "watching_clients": sum(1 for client in clients if client.watched),
        "total_watched_keys": len(server.watchers),
    }


@_section
def _memory(server: Server, now: int) -> Fields:
    rss = resident_bytes()
    # Where there is a limit, what is compared with it.
    used = server.eviction.used() if server.eviction.limit else rss
    peak = max(used, peak_resident_bytes())
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    startup = server.startup_bytes
    return {
        "used_memory": used,
        "used_memory_human": _human(used),
        "used_memory_rss": rss,
        "used_memory_rss_human": _human(rss),
        "used_memory_peak": peak,
        "used_memory_peak_human": _human(peak),
        "used_memory_peak_perc": f"{100 * used / peak:.2f}%",
        "used_memory_overhead": startup,
        "used_memory_startup": startup,
        "used_memory_dataset": max(0, used - startup),
        "used_memory_dataset_perc": f"{100 * max(0, used - startup) / used:.2f}%",
        "total_system_memory": total,
        "total_system_memory_human": _human(total),
        "maxmemory": server.config["maxmemory"],
        "maxmemory_human": _human(server.config["maxmemory"]),
        "maxmemory_policy": server.config["maxmemory-policy"],
        "mem_fragmentation_ratio": f"{rss / used:.2f}",
        "mem_fragmentation_bytes": rss - used,
        "mem_clients_normal": sum(map(_buffered, server.clients.values())),
        "mem_clients_slaves": 0,
        "mem_aof_buffer": server.log.position - server.log.released,
        "mem_allocator": _allocator(),
        "used_memory_lua": 0,
        "used_memory_scripts": 0,
        "number_of_cached_scripts": 0,
        "number_of_functions": 0,
        "number_of_libraries": 0,
        "active_defrag_running": 0,
        "lazyfree_pending_objects": 0,
    }


def _buffered(client: Client) -> int:
    """The bytes of commands that are not whole yet or are queued, and of replies that are not read."""
    connection = client.connection
    queued = 0 if client.multi is None else client.multi.size
    size: int = connection.parser.buffered_bytes + queued + connection.unsent_bytes()
    return size


@_section
def _persistence(server: Server, now: int) -> Fields:
    log, rewriter = server.log, server.rewriter
    fields: Fields = {
        "loading": int(server.loading),
        "async_loading": 0,
        "rdb_changes_since_last_save": server.stats.changes,
        "rdb_bgsave_in_progress": 0,
        "rdb_last_save_time": server.started_ms // 1000,
        "rdb_saves": 0,
        "rdb_last_bgsave_status": "ok",
        "rdb_last_bgsave_time_sec": -1,
        "rdb_current_bgsave_time_sec": -1,
        "aof_enabled": int(log.keeps),
        "aof_rewrite_in_progress": int(rewriter is not None and rewriter.running),
        "aof_rewrite_scheduled": 0,
        "aof_last_rewrite_time_sec": -1,
        "aof_current_rewrite_time_sec": -1,
        "aof_last_bgrewrite_status": "ok",
        "aof_last_write_status": "ok" if log.failure is None else "err",
        "aof_rewrites": 0,
        "aof_rewrites_consecutive_failures": 0,
        "aof_pending_rewrite": 0,
        "rdb_last_cow_size": 0,
        "aof_last_cow_size": 0,
        "module_fork_in_progress": 0,
        "module_fork_last_cow_size": 0,
    }
    if rewriter is not None:
        # BGSAVE is a rewrite: whoever waits for the end of one looks at rdb_bgsave_in_progress.
        fields |= {
            "rdb_changes_since_last_save": server.stats.changes - rewriter.saved_changes,
            "rdb_bgsave_in_progress": int(rewriter.running),
            "rdb_current_bgsave_time_sec": rewriter.running_s,
            "rdb_last_bgsave_time_sec": rewriter.last_took_s,
            "aof_current_rewrite_time_sec": rewriter.running_s,
            "rdb_last_save_time": rewriter.last_save_s,
            "rdb_last_bgsave_status": "ok" if rewriter.last_ok else "err",
            "aof_last_bgrewrite_status": "ok" if rewriter.last_ok else "err",
            "aof_last_rewrite_time_sec": rewriter.last_took_s,
            "rdb_saves": rewriter.rewrites,
            "aof_rewrites": rewriter.rewrites,
            "aof_rewrites_consecutive_failures": rewriter.failures,
            "aof_current_size": rewriter.log.size,
            "aof_base_size": rewriter.log.base_size,
            "aof_buffer_length": log.position - log.released,
            "aof_pending_bytes": log.position - log.released,
        }
    return fields


@_section
def _stats(server: Server, now: int) -> Fields:
    stats = server.stats
    return {
        "total_connections_received": stats.connections,
        "total_commands_processed": stats.commands,
        "instantaneous_ops_per_sec": round(stats.ops_per_s),
        "total_net_input_bytes": stats.input_bytes,
        "total_net_output_bytes": stats.output_bytes,
        "instantaneous_input_kbps": f"{stats.input_bytes_per_s / 1024:.2f}",
        "instantaneous_output_kbps": f"{stats.output_bytes_per_s / 1024:.2f}",
        "rejected_connections": stats.rejected_connections,
        "expired_keys": server.keyspace.expired_keys,
        "expired_records": server.keyspace.expired_records,
        "evicted_keys": stats.evicted_keys,
        "evicted_clients": 0,
        "evicted_records": stats.evicted_records,
        "keyspace_hits": stats.hits,
        "keyspace_misses": stats.misses,
        "client_query_buffer_limit_disconnections": stats.query_cut_offs,
        "client_output_buffer_limit_disconnections": stats.output_cut_offs,
        "latest_fork_usec": 0,
        "total_forks": 0,
        "sync_full": 0,
        "sync_partial_ok": 0,
        "sync_partial_err": 0,
        "pubsub_channels": len(server.pubsub.channels),
        "pubsub_patterns": len(server.pubsub.patterns),
        "pubsubshard_channels": 0,
        "total_error_replies": stats.errors,
        "acl_access_denied_auth": stats.denied["auth"],
        "acl_access_denied_cmd": stats.denied["command"],
        "acl_access_denied_key": stats.denied["key"],
        "acl_access_denied_channel": stats.denied["channel"],
    }


@_section
def _replication(server: Server, now: int) -> Fields:
    return {
        "role": "master",
        "connected_slaves": 0,
        "master_failover_state": "no-failover",
        "master_replid": server.stats.run_id,
        "master_replid2": "0" * 40,
        "master_repl_offset": 0,
        "second_repl_offset": -1,
        "repl_backlog_active": 0,
        "repl_backlog_size": 0,
        "repl_backlog_first_byte_offset": 0,
        "repl_backlog_histlen": 0,
    }


@_section
def _cpu(server: Server, now: int) -> Fields:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    fields: Fields = {
        "used_cpu_sys": f"{own.ru_stime:.6f}",
        "used_cpu_user": f"{own.ru_utime:.6f}",
        "used_cpu_sys_children": f"{children.ru_stime:.6f}",
        "used_cpu_user_children": f"{children.ru_utime:.6f}",
    }
    if hasattr(resource, "RUSAGE_THREAD"):
        # The loop's own, which every command needs: near 1 a second, and the server is as busy as it can be.
        loop = resource.getrusage(resource.RUSAGE_THREAD)
        fields |= {
            "used_cpu_sys_main_thread": f"{loop.ru_stime:.6f}",
            "used_cpu_user_main_thread": f"{loop.ru_utime:.6f}",
        }
    return fields


@_section
def _modules(server: Server, now: int) -> Fields:
    return {}


@_section
def _commandstats(server: Server, now: int) -> Fields:
    times = server.observer.times
    return {
        f"cmdstat_{name}": (
            f"calls={each.calls},usec={each.total_ns // 1000},"
            f"usec_per_call={each.total_ns / 1000 / max(1, each.calls):.2f},"
            f"rejected_calls={times.rejected[name]},failed_calls={times.failed[name]}"
        )
        for name, each in times.stats()
    }


@_section
def _errorstats(server: Server, now: int) -> Fields:
    return {f"errorstat_{code}": f"count={count}" for code, count in sorted(server.stats.error_codes.items())}


@_section
def _latencystats(server: Server, now: int) -> Fields:
    percentiles = server.config["latency-tracking-info-percentiles"]
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{percent:g}={ns / 1000:.3f}"
            for percent, ns in zip(percentiles, each.percentiles_ns(percentiles), strict=True)
        )
        for name, each in server.observer.times.all()
        if each.tracked
    }


@_section
def _cluster(server: Server, now: int) -> Fields:
    return {"cluster_enabled": 0}


@_section
def _keyspace(server: Server, now: int) -> Fields:
    keyspace = server.keyspace
    keys = keyspace.count(now)
    if not keys:
        return {}
    deadlines = keyspace.deadlines
    sample = list(islice(deadlines.values(), _TTL_SAMPLE))
    avg_ttl = sum(sample) // len(sample) - now if sample else 0
    return {"db0": f"keys={keys},expires={len(deadlines) - len(keyspace.memories) + keys},avg_ttl={avg_ttl}"}


@_section
def _embedding(server: Server, now: int) -> Fields:
    return {**server.embedding.info(), "embed_pending": server.backfill.pending()}


@_section
def _audit(server: Server, now: int) -> Fields:
    return {"audit_entries": len(server.audit), "audit_dropped": server.audit.dropped}


def _added_up(memories: Sequence[Memory]) -> dict[str, int]:
    return {
        "memory_indexes": len(memories),
        "memory_records": sum(len(memory) for memory in memories),
        "memory_vectors": sum(memory.vector_count for memory in memories),
        "memory_terms": sum(memory.term_count() for memory in memories),
    }


def resident_bytes() -> int:
    """The memory that the process holds now; where the system does not say (macOS), the most it has held."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most memory that the process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kibibytes but on macOS


def _human(size: int) -> str:
    """Bytes as Redis shows them to people: 919.66K."""
    amount, unit = float(size), ""
    for larger in "KMGT":
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.2f}{unit}" if unit else f"{size}B"


@cache
def _allocator() -> str:
    """Whose malloc it is, unless somebody preloads another; asking reads the interpreter's file."""
    return platform.libc_ver()[0] or "libc"


@cache
def _version() -> str:
    return version()
