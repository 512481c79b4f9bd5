"""SAME ROOMS, FAKE CLOCK: what would have happened to this trace under that scheduler?"""

from dpbalance.simulate.engine import run
from dpbalance.simulate.record import AnalystRecord, Fate, PipelineRecord, RoundRecord, Run
from dpbalance.simulate.sweep import Cell, Results, cells, sweep
from dpbalance.simulate.trace import Trace, read_trace, trace_from_json, trace_to_json, write_trace
from dpbalance.simulate.workload import Workload, workload

__all__ = [
    "AnalystRecord",
    "Cell",
    "Fate",
    "PipelineRecord",
    "Results",
    "RoundRecord",
    "Run",
    "Trace",
    "Workload",
    "cells",
    "read_trace",
    "run",
    "sweep",
    "trace_from_json",
    "trace_to_json",
    "workload",
    "write_trace",
]
