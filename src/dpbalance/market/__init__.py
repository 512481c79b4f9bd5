"""WHAT IS ON OFFER: blocks with what is left of them, and the frozen round a scheduler decides on."""

from dpbalance.market.block import Block
from dpbalance.market.files import read_round, round_from_json, round_to_json, write_round
from dpbalance.market.round import Round
from dpbalance.market.workloads import paper_round, worked_example

__all__ = [
    "Block",
    "Round",
    "paper_round",
    "read_round",
    "round_from_json",
    "round_to_json",
    "worked_example",
    "write_round",
]
