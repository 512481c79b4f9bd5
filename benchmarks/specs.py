"""Which problem families are measured, at which sizes, against what? One function each, yielding results."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.sparse

import dpbalance
from benchmarks.grants import grants
from benchmarks.ledger import ledger
from benchmarks.measure import Result, milliseconds
from benchmarks.peers import packing_by_highs, scaled_rows, shares_by_cvxpy
from dpbalance.audit import Divisible, audit, explain, frontier
from dpbalance.clock import chance, stopwatch
from dpbalance.scheduler import alpha_fair, packing
from dpbalance.simulate import run, workload, write_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from instances import large_shares_instance, packing_instance

BETAS = (0.2, 0.5, 1.0, 2.2, 5.0, 20.0)


def shares() -> Iterator[Result]:
    """Step 1 against cvxpy + Clarabel at every beta; both are given a sparse matrix."""
    for analysts, blocks, bar, times, peer_times in ((60, 2_000, 25.0, 9, 5), (400, 12_000, 50.0, 5, 1)):
        instance = large_shares_instance(chance(1), analysts, blocks)
        sparse = {**instance, "gamma": scipy.sparse.csc_array(instance["gamma"])}
        for beta in BETAS:
            solution = alpha_fair.solve(**sparse, beta=beta)
            ours = milliseconds(lambda i=sparse, b=beta: alpha_fair.solve(**i, beta=b), times=times)
            dense = milliseconds(lambda i=instance, b=beta: alpha_fair.solve(**i, beta=b), times=times)
            unit = float(np.exp(solution.log_welfare))
            rows, found = scaled_rows(instance, unit), []
            theirs = milliseconds(
                lambda r=rows, b=beta, u=unit, f=found: f.append(shares_by_cvxpy(r, b, u)), times=peer_times, warm=0
            )
            yield Result(
                family="shares",
                case=f"{analysts} analysts x {blocks} blocks, beta {beta:g}",
                phases_ms={"dpbalance": ours, "dpbalance, dense input": dense, "cvxpy+clarabel": theirs},
                figure=theirs / ours,
                unit="times faster",
                bar=bar,
                notes={"gap": solution.gap, "peer_log_w_behind": solution.log_welfare - found[-1]},
            )


def packings() -> Iterator[Result]:
    """Step 2 against HiGHS: medians over instances of one shape."""
    for pipelines, rows, kind, bar in (
        (25, 2, "paper", 20.0),
        (25, 10, "many_rows", 20.0),
        (25, 50, "many_rows", 20.0),
        (100, 2, "paper", None),
    ):
        instances = [packing_instance(chance(seed), kind, pipelines, rows) for seed in range(15)]
        ours = [milliseconds(lambda i=i: packing.solve(**i), times=5) for i in instances]
        without_caps = [{key: value for key, value in i.items() if key != "upper"} for i in instances]
        theirs = [milliseconds(lambda i=i: packing_by_highs(i), times=1, warm=0) for i in without_caps]
        for instance, plain in zip(instances, without_caps, strict=True):
            answer, (count, value) = packing.solve(**instance), packing_by_highs(plain)
            assert len(answer.served) == count
            assert abs(answer.value - value) <= 1e-6 * value
        yield Result(
            family="packing",
            case=f"{pipelines} pipelines, {rows} rows",
            phases_ms={"dpbalance": statistics.median(ours), "highs": statistics.median(theirs)},
            figure=statistics.median(theirs) / statistics.median(ours),
            unit="times faster",
            bar=bar,
            notes={"slowest_ms": max(ours), "instances": len(instances)},
        )


def rounds() -> Iterator[Result]:
    """A whole decision, warm, against a limit and against reading the demands once."""
    sizes = (
        ("paper round: 150 pipelines x 2,000 blocks", {}, 5.0, 60.0, 50),
        ("1,500 pipelines x 2,000 blocks, 60 analysts", {"analysts": 60}, None, None, 15),
        (
            "10,000 pipelines x 100,000 blocks, 400 analysts",
            {"analysts": 400, "devices": 1000, "windows": 100},
            1000.0,
            25.0,
            3,
        ),
    )
    for case, shape, limit, floors, times in sizes:
        round_ = dpbalance.paper_round(seed=1, **shape)
        scheduler = dpbalance.scheduler("dpbalance", beta=2.2)
        block, cost = np.array(round_.block), np.array(round_.cost[:, 0])
        decide = milliseconds(lambda s=scheduler, r=round_: s.decide(r), times=times)
        read = milliseconds(lambda b=block, c=cost: (b.sum(), c.sum()), times=times)
        allocation = scheduler.decide(round_)
        check = milliseconds(allocation.check, times=1, warm=0)
        proof = allocation.check()
        phases = {"decide": decide, "read the demands once": read, "check": check}
        notes = {
            "demands": len(block),
            "gap": proof.gap,
            "violation": proof.violation,
            "served": len(allocation.served),
        }
        yield Result(
            family="round",
            case=case,
            phases_ms=phases,
            figure=decide,
            unit="ms",
            bar=limit,
            at_least=False,
            notes=notes,
        )
        # 12 bytes a demand at 19 GB/s is what the machine of the first measurements needed; ours is measured beside it
        floor = len(block) * 12 / 19e9 * 1e3
        yield Result(
            family="round / floor",
            case=case,
            phases_ms=phases,
            figure=decide / floor,
            unit="times the floor of 19 GB/s",
            bar=floors,
            at_least=False,
            notes={"floor_ms": floor, "times_reading_measured": decide / read},
        )


def baselines() -> Iterator[Result]:
    """The other schedulers on the same rounds."""
    for analysts in (6, 60):
        round_ = dpbalance.paper_round(seed=1, analysts=analysts)
        phases = {
            name: milliseconds(lambda s=dpbalance.scheduler(name), r=round_: s.decide(r), times=7)
            for name in ("dpbalance", "dpf", "dpk", "fcfs", "round-robin")
        }
        yield Result(
            family="schedulers",
            case=f"{25 * analysts} pipelines x 2,000 blocks",
            phases_ms=phases,
            figure=phases["dpbalance"] / min(phases["dpf"], phases["dpk"]),
            unit="times the faster of DPF and DPK",
        )


def runs() -> Iterator[Result]:
    """Whole runs: large traces in processes of their own, with their memory, and the paper's ten rounds, warm."""
    for case, shape, bar_ms, bar_mb in (
        ("5,000 pipelines on 50 to 100 blocks", {"blocks": 100, "pipelines_per_block": 98.0}, 2_000.0, 250.0),
        ("20,000 pipelines on 50 to 150 blocks", {"blocks": 150, "pipelines_per_block": 198.0}, 5_000.0, 512.0),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            write_trace(workload("dpack-mixed", blocks_at_start=50, **shape).trace(1), path)
            began = stopwatch()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.peak", "replay", str(path), "--scheduler=dpk", "--format=json"],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            taken, document = (stopwatch() - began) * 1e3, json.loads(done.stdout)
            notes = {"granted": document["count"]}
        phases = {"process": taken, "run alone": document["seconds"] * 1e3}
        case = f"DPK, {case}"
        yield Result(family="run", case=case, phases_ms=phases, figure=taken, unit="ms", bar=bar_ms, at_least=False)
        memory = int(done.stderr.split()[-1]) / 1024
        yield Result(
            family="memory",
            case=case,
            phases_ms=phases,
            figure=memory,
            unit="MB",
            bar=bar_mb,
            at_least=False,
            notes=notes,
        )
    for name in ("dpbalance", "dpf", "dpk", "fcfs"):
        trace, decider = workload("paper").trace(1), dpbalance.scheduler(name)
        taken = milliseconds(lambda t=trace, d=decider: run(t, d), times=5)
        case = f"{name}, ten rounds of the paper"
        yield Result(
            family="run", case=case, phases_ms={"run": taken}, figure=taken, unit="ms", bar=200.0, at_least=False
        )


def audits() -> Iterator[Result]:
    """The frontier over 50 betas and a whole audit of a round of the paper's size, warm."""
    decider = dpbalance.scheduler("dpbalance")
    decision = decider.decide(dpbalance.paper_round(seed=1))
    market = Divisible.of_allocation(decision)
    betas = np.linspace(0.0, 5.0, 50).tolist()
    for case, action, bar in (
        ("frontier of 50 betas, paper round", lambda: frontier(market, betas), 100.0),
        ("audit without lies, paper round", lambda: audit(decision), None),
        ("explain a denial, paper round", lambda: explain(decision, decision.denied[0].pipeline, decider.decide), None),
    ):
        taken = milliseconds(action)
        yield Result(
            family="audit", case=case, phases_ms={"ours": taken}, figure=taken, unit="ms", bar=bar, at_least=False
        )


def starts() -> Iterator[Result]:
    """Processes from nothing: help, the worked example with kernels on disk, and without them."""
    program = [sys.executable, "-m", "dpbalance"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "round.json"
        dpbalance.write_round(dpbalance.worked_example(), file)
        allocate = [*program, "allocate", str(file), "--format", "json"]
        for case, command, limit in (
            ("dpbalance --help", [*program, "--help"], 300.0),
            ("worked example", allocate, 1500.0),
        ):
            taken = milliseconds(lambda c=command: subprocess.run(c, check=True, capture_output=True), times=5)
            yield Result(
                family="start",
                case=case,
                phases_ms={"process": taken},
                figure=taken,
                unit="ms",
                bar=limit,
                at_least=False,
            )
        source = Path(dpbalance.__file__).parent
        shutil.copytree(source, Path(folder) / "dpbalance", ignore=shutil.ignore_patterns("*.nbi", "*.nbc"))
        environment = {**os.environ, "PYTHONPATH": folder, "NUMBA_CACHE_DIR": str(Path(folder) / "cache")}
        began = stopwatch()
        first = subprocess.run(allocate, check=True, capture_output=True, text=True, env=environment)
        taken = (stopwatch() - began) * 1e3
        assert "compiling" in first.stderr
        yield Result(
            family="start",
            case="worked example, kernels not compiled yet",
            phases_ms={"process": taken},
            figure=taken,
            unit="ms",
            bar=45_000.0,
            at_least=False,
        )


FAMILIES: dict[str, Callable[[], Iterator[Result]]] = {
    "rounds": rounds,
    "packings": packings,
    "baselines": baselines,
    "runs": runs,
    "audits": audits,
    "starts": starts,
    "shares": shares,
    "grants": grants,
    "ledger": ledger,
}
