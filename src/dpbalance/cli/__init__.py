"""COMMANDS: what can be asked of DPBalance from a terminal?"""

from dpbalance.cli.app import main

__all__ = ["main"]
