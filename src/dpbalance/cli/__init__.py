"""COMMANDS: what can be asked of DPBalance from a terminal?"""

from dpbalance.cli import (  # each adds its command to the app
    asking,
    audit,
    execution,
    ledger,
    replay,
    reproduce,
    serving,
    simulate,
)
from dpbalance.cli.app import main

__all__ = ["asking", "audit", "execution", "ledger", "main", "replay", "reproduce", "serving", "simulate"]
