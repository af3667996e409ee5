"""Importing this module fills the command table."""

from . import (  # noqa: F401
    audit_commands,
    connection_commands,
    content_ids,
    dump_commands,
    embed_commands,
    entity_commands,
    fact_commands,
    inference_commands,
    introspection_commands,
    keys_commands,
    memory_commands,
    persistence_commands,
    pubsub_commands,
    query_commands,
    recall_commands,
    record_commands,
    transaction_commands,
)
