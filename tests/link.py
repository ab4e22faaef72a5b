"""A TCP connection that can be cut: a forwarder on loopback between a node and its server."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Link:
    """Forwards to a port of ``host``; while it is cut, bytes wait on both sides, nobody is told."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._to = (host, port)
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._up_only = False
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()

    def cut(self, down_only: bool = False) -> None:
        """Let nothing through, or nothing from the server."""

        def close() -> None:
            self._up_only = down_only
            self._open.clear()

        self._loop.call_soon_threadsafe(close)

    def mend(self) -> None:
        """Let all of it through."""
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        """End, with every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        rest = asyncio.all_tasks(self._loop)
        for task in rest:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            await asyncio.gather(
                self._pump(reader, far_writer, True), self._pump(far_reader, writer, False)
            )
        writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (up and self._up_only):
                    await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
