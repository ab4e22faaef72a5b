"""What a scorer leaves for the next one, over NATS: one entry of a bucket, or an object if large.

An object costs four requests where an entry costs one, and most jobs are small. A job whose scores
became too many for an entry leaves an empty one: then the object counts.
"""

from __future__ import annotations

from typing import Any, TypeVar

import nats.js.errors
from nats.aio.client import Client
from nats.js.api import KeyValueConfig, ObjectStoreConfig
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from stragd.config import Exchange as Settings

MAX_STATE = 64 << 20
MAX_ENTRY = 512 << 10
"""Below the 1 MiB that NATS takes."""
STATE_SECONDS = 86400.0
"""How long what a scorer left is kept."""
REQUEST_SECONDS = 2.0

Bucket = TypeVar("Bucket")


def context(client: Client, settings: Settings) -> JetStreamContext:
    """JetStream where the settings say that it is."""
    domain: dict[str, Any] = {"domain": settings.domain} if settings.domain else {}
    return client.jetstream(timeout=REQUEST_SECONDS, **domain)


async def key_value(
    stream: JetStreamContext, name: str, ttl: float, settings: Settings
) -> KeyValue:
    """A bucket, made where there is none."""
    try:
        return await stream.key_value(name)
    except nats.js.errors.NotFoundError:
        config = KeyValueConfig(bucket=name, ttl=ttl, replicas=settings.replicas)
        return await stream.create_key_value(config)


class Scores:
    """Of all jobs of a cluster. The methods raise what NATS does."""

    def __init__(self, entries: KeyValue, objects: ObjectStore) -> None:
        self._entries, self._objects = entries, objects

    @classmethod
    async def open(cls, stream: JetStreamContext, settings: Settings) -> Scores:
        """Open both, or make them."""
        name = f"stragd-{settings.cluster}-scores"
        try:
            objects = await stream.object_store(name)
        except nats.js.errors.NotFoundError:
            store = ObjectStoreConfig(ttl=STATE_SECONDS, replicas=settings.replicas)
            objects = await stream.create_object_store(name, store)
        return cls(await key_value(stream, name, STATE_SECONDS, settings), objects)

    async def put(self, job: int, state: bytes) -> None:
        """The last one counts."""
        if len(state) <= MAX_ENTRY:
            await self._entries.put(f"{job:016x}", state)
            return
        await self._objects.put(f"{job:016x}", state)
        await self._entries.put(f"{job:016x}", b"")

    async def get(self, job: int) -> bytes:
        """What was put, empty where nothing was."""
        key = f"{job:016x}"
        try:
            entry = (await self._entries.get(key)).value
            if entry:
                return entry
            if ((await self._objects.get_info(key)).size or 0) > MAX_STATE:
                return b""
            return (await self._objects.get(key)).data or b""
        except nats.js.errors.NotFoundError:
            return b""
