"""A client of c10d's TCPStore, the key-value server inside a PyTorch job: three requests of it.

The daemon's Python has no torch, and a client of one torch cannot talk to the server of another:
before 2.1 the requests have other numbers and a connection does not begin with VALIDATE. So the
wire is spoken here. Keys carry the "/" that torch's own client puts before them.

Up to 2.3 the server is one thread that blocks in the middle of a request or an answer, and the job
with it. So every request is one write that fits the kernel's buffer, answers on their way fit our
receive buffer, nothing is ever waited for (WAIT, GET of a missing key), and VALIDATE is only sent
to a server that is known to understand it: an old one would take it for a key of a gigabyte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_VALUE = 48 << 10
"""Bytes of a value, so that a request, or an answer that nobody reads, fits a socket's buffer."""
MAX_REPLIES = 96 << 10
"""Bytes of the answers that are asked for at once."""
SOCKET_BYTES = 128 << 10
CONNECT_SECONDS = 5.0
PROBE_SECONDS = 2.0
ABSENT = b"\xffstragd: no such key"
"""What ``read`` gives for a key that is not there."""
_MAGIC = struct.pack("<I", 0x3C85F7CE)
_SIZE, _SIGNED = struct.Struct("<Q"), struct.Struct("<q")


class Dialect(Enum):
    """Numbers of the requests: SET, COMPARE_SET, ADD."""

    OLD = (0, 1, 3)  # up to 2.0
    NEW = (1, 2, 4)  # since 2.1


class StoreError(OSError):
    """The store is not there, or does not answer as one."""


@dataclass(frozen=True)
class Request:
    """One request; ``reply`` says what comes back."""

    kind: int  # place in the dialect
    body: bytes
    reply: str  # "", "value", "number"


def put(key: str, value: bytes) -> Request:
    """Write a value, without an answer."""
    _checked(value)
    return Request(0, _text(key) + _sized(value), "")


def swap(key: str, old: bytes, new: bytes) -> Request:
    """Write ``new`` where ``old`` is (b"": nothing or b""); the answer is what is there then.

    Where there is nothing and ``old`` is not empty, the answer is ``old``.
    """
    _checked(new)
    return Request(1, _text(key) + _sized(old) + _sized(new), "value")


def read(key: str) -> Request:
    """The value, or ABSENT. GET would wait for the key, or (old servers) end the connection."""
    return swap(key, ABSENT, ABSENT)


def add(key: str, amount: int) -> Request:
    """Count; the answer is the sum, 0 is just a look."""
    return Request(2, _text(key) + _SIGNED.pack(amount), "number")


def _checked(value: bytes) -> None:
    if len(value) > MAX_VALUE:
        raise ValueError(f"a value of {len(value)} bytes; a store takes at most {MAX_VALUE}")


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _text(key: str) -> bytes:
    return _sized(b"/" + key.encode())


class TCPStoreClient:
    """One connection; requests of several tasks go one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: Dialect
    ) -> None:
        self.dialect = dialect
        self._reader, self._writer = reader, writer
        self._lock = asyncio.Lock()

    @classmethod
    async def connect(
        cls, host: str, port: int, dialect: Dialect | None, seconds: float
    ) -> TCPStoreClient:
        """Connect; ``dialect`` None asks the server. Raises StoreError with the reason."""
        if dialect is None:
            dialect = await _dialect(host, port, seconds)
        reader, writer = await _open(host, port)
        client = cls(reader, writer, dialect)
        try:
            if dialect is Dialect.NEW:
                # In one segment with nothing else: a part of it is refused.
                writer.write(b"\0" + _MAGIC)
            await client.ask([read("stragd")], seconds)  # whether it answers at all
        except BaseException:
            client.close()
            raise
        return client

    async def ask(self, requests: Sequence[Request], seconds: float) -> list[bytes | int]:
        """Send requests; the answers of those that have one, in order.

        Raises StoreError, also for a silence of ``seconds``; the connection is useless then.
        """
        async with self._lock:
            try:
                return await asyncio.wait_for(self._ask(requests), seconds)
            except StoreError:
                self.close()
                raise
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                self.close()
                text = str(error) or "no answer in time"
                raise StoreError(f"{type(error).__name__}: {text}") from None
            except BaseException:  # answers that nobody took would be taken for the next ones
                self.close()
                raise

    async def _ask(self, requests: Sequence[Request]) -> list[bytes | int]:
        frames = b""  # one write, one wake-up of the server, for all that fits a buffer
        for request in requests:
            frame = bytes([self.dialect.value[request.kind]]) + request.body
            if frames and len(frames) + len(frame) > SOCKET_BYTES // 2:
                await self._send(frames)
                frames = b""
            frames += frame
        await self._send(frames)
        answers: list[bytes | int] = []
        for request in requests:
            if request.reply == "number":
                answers.append(_SIGNED.unpack(await self._reader.readexactly(8))[0])
            elif request.reply == "value":
                (size,) = _SIZE.unpack(await self._reader.readexactly(8))
                if size > MAX_VALUE:
                    raise StoreError(f"a value of {size} bytes, more than stragd ever writes")
                answers.append(await self._reader.readexactly(size))
        return answers

    async def _send(self, frames: bytes) -> None:
        self._writer.write(frames)
        await self._writer.drain()

    def close(self) -> None:
        """Drop the connection."""
        self._writer.close()


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=SOCKET_BYTES), CONNECT_SECONDS
        )
    except (OSError, asyncio.TimeoutError) as error:
        text = str(error) or "no answer in time"
        raise StoreError(f"{type(error).__name__}: {text}") from None
    end = writer.get_extra_info("socket")
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    writer.transport.set_write_buffer_limits(0)  # drain() waits until the kernel has it all
    return reader, writer


async def _dialect(host: str, port: int, seconds: float) -> Dialect:
    """What a server speaks, by a request that harms neither: GETNUMKEYS in its old number.

    An old server answers it, a new one (2.1 to 2.3, or without libuv) hangs up, since the first
    request was not VALIDATE.
    """
    reader, writer = await _open(host, port)
    try:
        writer.write(b"\x06")
        await asyncio.wait_for(reader.readexactly(8), min(seconds, PROBE_SECONDS))
    except asyncio.IncompleteReadError:
        return Dialect.NEW
    except asyncio.TimeoutError:
        raise StoreError(
            "it is not clear which protocol its server speaks, and the job's torch/version.py "
            "cannot be read: run stragd as the job's user, or use exchange.kind nats"
        ) from None
    except OSError as error:
        raise StoreError(str(error)) from None
    finally:
        writer.close()
    return Dialect.OLD
