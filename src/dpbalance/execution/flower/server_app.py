"""How does a worker reach devices through Flower? It asks at a socket; each ask becomes one message to one node.

An ask is a line of JSON, `{"device": .., "seconds": .., "length": n}` and n bytes; the answer is
`{"note": .., "length": n}` and n bytes. The app ends when it is asked for the device "" or when its time is over.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

POLL_SECONDS = 0.1
NODES_SECONDS = 30.0

app = ServerApp()


class Courier:
    """Messages to nodes, from any number of threads, one after the other through the grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._lock, self._nodes = grid, threading.Lock(), dict[str, int]()
        self._looking = threading.Lock()

    def ask(self, device: str, body: bytes, seconds: float) -> tuple[bytes, str]:
        """The answer of a device, or why there is none."""
        end = time.monotonic() + seconds
        node = self._node(device, min(seconds, NODES_SECONDS))
        if node is None:
            return b"", f"no node says it is {device}"
        told = RecordDict({"courier": ConfigRecord({"bytes": body})})
        reply = self._carried(Message(content=told, dst_node_id=node, message_type="train", ttl=seconds), end)
        if reply is None or not reply.has_content():
            return b"", "the node is lost" if reply is None else str(reply.error.reason)
        record = reply.content["courier"]
        return bytes(record["bytes"]), str(record["note"])

    def _node(self, device: str, seconds: float) -> int | None:
        """The node that says it is this device; whoever looks first asks all nodes that are not known, at once."""
        end = time.monotonic() + seconds
        while device not in self._nodes and time.monotonic() < end:
            with self._looking:
                if device not in self._nodes:
                    self._look(min(end, time.monotonic() + NODES_SECONDS / 2))
            time.sleep(POLL_SECONDS)
        return self._nodes.get(device)

    def _look(self, end: float) -> None:
        with self._lock:
            known = set(self._nodes.values())
            unknown = [each for each in self._grid.get_node_ids() if each not in known]
            ttl = max(1.0, end - time.monotonic())
            asked = [Message(content=RecordDict(), dst_node_id=each, message_type="query", ttl=ttl) for each in unknown]
            names = {name for name in self._grid.push_messages(asked) if name} if asked else set()
        while names and time.monotonic() < end:
            with self._lock:
                replies = list(self._grid.pull_messages(list(names)))
            for reply in replies:
                names.discard(reply.metadata.reply_to_message_id)
                if reply.has_content():
                    self._nodes[str(reply.content["courier"]["device"])] = reply.metadata.src_node_id
            time.sleep(POLL_SECONDS)

    def _carried(self, message: Message, end: float) -> Message | None:
        with self._lock:
            (name,) = self._grid.push_messages([message])
        while name and time.monotonic() < end:
            with self._lock:
                replies = list(self._grid.pull_messages([name]))
            if replies:
                return replies[0]
            time.sleep(POLL_SECONDS)
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
                seconds = min(float(asked["seconds"]), end - time.monotonic())
                content, note = courier.ask(asked["device"], body, seconds)
            file.write(json.dumps({"note": note, "length": len(content)}).encode() + b"\n" + content)
            file.flush()
        except (OSError, ValueError, KeyError):
            return
