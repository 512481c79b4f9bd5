"""SAME ROOMS, FAKE CLOCK: what would have happened to this trace under that scheduler?"""

from dpbalance.simulate.engine import run
from dpbalance.simulate.record import AnalystRecord, Fate, PipelineRecord, RoundRecord, Run
from dpbalance.simulate.trace import Trace, read_trace, trace_from_json, trace_to_json, write_trace
from dpbalance.simulate.workload import Workload, workload

__all__ = [
    "AnalystRecord",
    "Fate",
    "PipelineRecord",
    "RoundRecord",
    "Run",
    "Trace",
    "Workload",
    "read_trace",
    "run",
    "trace_from_json",
    "trace_to_json",
    "workload",
    "write_trace",
]
