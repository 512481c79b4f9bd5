"""WHO CARRIES IT OUT: plans that spend no more than was granted, agents that hold to them, and engines."""

from dpbalance.execution.agent import Agent, write_block
from dpbalance.execution.dispatch import Desk, Job
from dpbalance.execution.local import LocalRunner
from dpbalance.execution.models import ModelSpec
from dpbalance.execution.plan import DevicePlan, Granted, RunPlan, TrainingSpec, device_plans, plan_run
from dpbalance.execution.runner import Runner, Standing
from dpbalance.execution.signature import plan_signer

__all__ = [
    "Agent",
    "Desk",
    "DevicePlan",
    "Granted",
    "Job",
    "LocalRunner",
    "ModelSpec",
    "RunPlan",
    "Runner",
    "Standing",
    "TrainingSpec",
    "device_plans",
    "plan_run",
    "plan_signer",
    "write_block",
]
