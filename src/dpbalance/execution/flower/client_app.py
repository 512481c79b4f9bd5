"""How does a device answer through Flower? Its agent does; this only carries the bytes to its socket and back."""

from __future__ import annotations

import os
import socket

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

ANSWER_SECONDS = 60.0

app = ClientApp()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which device is behind this node?"""
    told = ConfigRecord({"device": str(context.node_config["device"])})
    return Message(content=RecordDict({"courier": told}), reply_to=message)


@app.train()
def carry(message: Message, context: Context) -> Message:
    """One message to the agent, one answer back; without an answer there is an empty one."""
    asked = bytes(message.content["courier"]["bytes"])
    folder = str(context.node_config["agent"])
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as speaking:
            speaking.settimeout(ANSWER_SECONDS)
            speaking.connect(f"/proc/self/fd/{handle}/agent.sock")  # a long path cannot be the name of a socket
            speaking.sendall(asked)
            speaking.shutdown(socket.SHUT_WR)
            parts = []
            while part := speaking.recv(1 << 16):
                parts.append(part)
    except OSError as problem:
        told = ConfigRecord({"bytes": b"", "note": str(problem)})
    else:
        told = ConfigRecord({"bytes": b"".join(parts), "note": ""})
    finally:
        os.close(handle)
    return Message(content=RecordDict({"courier": told}), reply_to=message)
