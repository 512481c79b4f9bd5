"""COMMANDS: what can be asked of DPBalance from a terminal?"""

from dpbalance.cli import audit, execution, ledger, replay, reproduce, simulate  # each adds its command to the app
from dpbalance.cli.app import main

__all__ = ["audit", "execution", "ledger", "main", "replay", "reproduce", "simulate"]
