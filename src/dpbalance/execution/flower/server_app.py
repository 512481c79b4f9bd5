"""How does a worker reach devices through Flower? It asks at a socket; each ask becomes one message to one node.

An ask is a line of JSON, `{"device": .., "seconds": .., "length": n}` and n bytes; the answer is
`{"note": .., "length": n}` and n bytes. The app ends when it is asked for the device "" or when its time is over.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

POLL_SECONDS = 0.1
SCOUT_SECONDS = 0.5
NODES_SECONDS = 60.0
"""How long a node may take to say which device it is: the first message to a node has it unpack the app."""

app = ServerApp()


class Courier:
    """Messages to nodes, from any number of threads."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._lock, self._nodes = grid, threading.Lock(), dict[str, int]()

    def ask(self, device: str, body: bytes, seconds: float, end: float) -> tuple[bytes, str]:
        """The answer of a device, or why there is none; its time begins when its node is known."""
        known = min(end, time.monotonic() + NODES_SECONDS)
        while device not in self._nodes and time.monotonic() < known:
            time.sleep(POLL_SECONDS)
        node = self._nodes.get(device)
        if node is None:
            return b"", f"no node says it is {device}"
        told = RecordDict({"courier": ConfigRecord({"bytes": body})})
        message = Message(content=told, dst_node_id=node, message_type="train", ttl=seconds)
        reply = self._carried(message, min(seconds, max(0.0, end - time.monotonic())))
        if reply is None or not reply.has_content():
            return b"", "the node is lost" if reply is None else str(reply.error.reason)
        record = reply.content["courier"]
        return bytes(record["bytes"]), str(record["note"])

    def scout(self, ended: threading.Event) -> None:
        """Ask every node which device it is, once and again now and then until it says so; a newer node counts."""
        again: dict[int, float] = {}
        while not ended.is_set():
            for node in self._grid.get_node_ids():
                if time.monotonic() >= again.get(node, 0.0):
                    again[node] = time.monotonic() + NODES_SECONDS / 2
                    threading.Thread(target=self._who, args=(node, again), daemon=True).start()
            time.sleep(SCOUT_SECONDS)

    def _who(self, node: int, again: dict[int, float]) -> None:
        asked = Message(content=RecordDict(), dst_node_id=node, message_type="query", ttl=NODES_SECONDS)
        reply = self._carried(asked, NODES_SECONDS / 2)
        if reply is not None and reply.has_content():
            again[node] = float("inf")
            self._nodes[str(reply.content["courier"]["device"])] = node

    def _carried(self, message: Message, seconds: float) -> Message | None:
        """The reply. Pulling waits without end for the rest of a reply whose node died while it sent it, so it is
        left to a thread of its own, which ends with the process.
        """
        with self._lock:
            (name,) = self._grid.push_messages([message])
        box: queue.Queue[Message] = queue.Queue()
        end = time.monotonic() + seconds

        def pull() -> None:
            while name and time.monotonic() < end:
                for reply in self._grid.pull_messages([name]):
                    box.put(reply)
                    return
                time.sleep(POLL_SECONDS)

        threading.Thread(target=pull, daemon=True).start()
        try:
            return box.get(timeout=seconds)
        except queue.Empty:
            return None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Listen until told to end."""
    folder, _, name = str(context.run_config["gateway"]).rpartition("/")
    end = time.monotonic() + float(context.run_config["seconds"])
    courier = Courier(grid)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)
        listening.bind(f"/proc/self/fd/{handle}/{name}")
        os.umask(before)
        listening.listen(64)
        listening.settimeout(1.0)
        ended = threading.Event()
        threading.Thread(target=courier.scout, args=(ended,), daemon=True).start()
        while not ended.is_set() and time.monotonic() < end:
            try:
                speaking, _ = listening.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_serve, args=(courier, speaking, end, ended), daemon=True).start()
    os.close(handle)


def _serve(courier: Courier, speaking: socket.socket, end: float, ended: threading.Event) -> None:
    with speaking, speaking.makefile("rwb") as file:
        try:
            asked = json.loads(file.readline())
            body = file.read(asked["length"])
            if not asked["device"]:
                ended.set()
                content, note = b"", ""
            else:
                content, note = courier.ask(asked["device"], body, float(asked["seconds"]), end)
            file.write(json.dumps({"note": note, "length": len(content)}).encode() + b"\n" + content)
            file.flush()
        except (OSError, ValueError, KeyError):
            return
