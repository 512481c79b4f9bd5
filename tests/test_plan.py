"""Does a plan spend no more than was granted, as counted by accountants that are not ours, and is it tamper-proof?"""

from __future__ import annotations

import json
from functools import cache

import mpmath
import numpy as np
import pytest

from dpbalance.clock import FakeClock, SeededSecrets, SystemSecrets, chance
from dpbalance.errors import FileFormatError, InputError, OptionError, PlanRefused
from dpbalance.execution import DevicePlan, Granted, ModelSpec, TrainingSpec, device_plans, plan_run, plan_signer
from dpbalance.execution.form import canonical, parsed
from dpbalance.execution.plan import check_spend
from dpbalance.execution.signature import Envelope, opened

SOFTMAX = ModelSpec(kind="softmax", features=4, classes=3)
WHOLE_ORDERS = (2.0, 3.0, 4.0, 5.0, 8.0, 16.0, 32.0, 64.0)
PLANS = 1000


@cache
def exact(q: float, z: float, order: float) -> mpmath.mpf:
    """One step in 40 digits: a closed form without sampling, a binomial sum at whole orders, else an integral."""
    with mpmath.workdps(40):
        q_, z_, a = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)
        if q == 1:
            return a / (2 * z_**2)
        if order.is_integer():
            terms = (
                mpmath.binomial(int(order), i)
                * q_**i
                * (1 - q_) ** (int(order) - i)
                * mpmath.exp((i * i - i) / (2 * z_**2))
                for i in range(int(order) + 1)
            )
            return mpmath.log(mpmath.fsum(terms)) / (a - 1)

        def bend(x: mpmath.mpf) -> mpmath.mpf:
            r = q_ * mpmath.expm1((2 * x - 1) / (2 * z_**2))
            return mpmath.npdf(x, 0, z_) * ((1 + r) ** a - 1 - a * r)

        edges = [-30 * z_, 0, a, a + 30 * z_]
        return mpmath.log1p(mpmath.quad(bend, edges)) / (a - 1)


def exact_spend(plan: DevicePlan, at: int, order: float) -> mpmath.mpf:
    """What a record of one block loses, from nothing but the numbers an agent acts by."""
    block = plan.blocks[at]
    with mpmath.workdps(40):
        total = plan.training.steps * exact(block.sampling_rate, plan.noise / block.clip, order)
        if plan.loss_noise:
            total += mpmath.mpf(order) * (mpmath.mpf(block.loss_cap) / mpmath.mpf(plan.loss_noise)) ** 2 / 2
        return total * 10**9


def library_spend(plan: DevicePlan, at: int) -> list[float]:
    """The same by dp-accounting, in units."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    block = plan.blocks[at]
    gaussian = dp_accounting.GaussianDpEvent(plan.noise / block.clip)
    step = gaussian if block.sampling_rate == 1 else dp_accounting.PoissonSampledDpEvent(block.sampling_rate, gaussian)
    accountant = RdpAccountant(list(plan.orders)).compose(step, plan.training.steps)
    if plan.loss_noise:
        accountant.compose(dp_accounting.GaussianDpEvent(plan.loss_noise / block.loss_cap))
    return (np.asarray(accountant.rdp) * 1e9).tolist()


def random_plans(seed: int) -> tuple[DevicePlan, ...]:
    random = chance(seed)
    orders = np.sort(random.choice(WHOLE_ORDERS, size=int(random.integers(1, 5)), replace=False)).tolist()
    names = [f"d{at % 2}/w{at}" for at in range(int(random.integers(1, 5)))]
    charged = {
        name: tuple(int(10 ** random.uniform(6.5, 10)) for _ in orders) if seed % 3 else (10**9,) * len(orders)
        for name in names
    }
    training = TrainingSpec(
        rounds=int(random.integers(1, 50)),
        local_steps=int(random.integers(1, 10)),
        sampling_rate=float(random.choice([1.0, 0.5, 0.1, 0.01])),
        clip=float(10 ** random.uniform(-2, 2)),
        loss_share=0.1 if seed % 4 == 0 else 0.0,
    )
    return device_plans(
        Granted(grant=seed + 1, pipeline="p", analyst="a", orders=tuple(orders), charged=charged),
        SOFTMAX,
        training,
        sizes=dict.fromkeys(names, 100),
        device_of={name: name[:2] for name in names},
        rates={names[0]: float(10 ** random.uniform(-3, 0))},
    )


@pytest.mark.parametrize("part", range(4))
def test_no_plan_spends_more_than_was_granted_by_two_other_accountants(part: int) -> None:
    for seed in range(part * PLANS // 4, (part + 1) * PLANS // 4):
        for plan in random_plans(seed):
            for at, block in enumerate(plan.blocks):
                by_library = library_spend(plan, at)
                for place, order in enumerate(plan.orders):
                    assert exact_spend(plan, at, order) <= block.grant[place], (seed, block, order)
                    assert by_library[place] <= block.grant[place], (seed, block, order)


def test_fractional_orders_are_kept_too() -> None:
    for seed in range(12):
        random = chance(seed)
        orders = (1.5, 2.5, 8.0)
        granted = Granted(
            grant=1,
            pipeline="p",
            analyst="a",
            orders=orders,
            charged={"d/w": tuple(int(10 ** random.uniform(7, 10)) for _ in orders)},
        )
        training = TrainingSpec(rounds=int(random.integers(1, 100)), sampling_rate=float(random.uniform(0.01, 0.9)))
        (plan,) = device_plans(granted, SOFTMAX, training, sizes={"d/w": 10}, device_of={"d/w": "d"})
        for place, order in enumerate(orders):
            assert exact_spend(plan, 0, order) <= plan.blocks[0].grant[place]


def test_little_of_a_grant_is_wasted() -> None:
    for seed in range(0, 100, 3):
        for plan in random_plans(seed):
            for block in plan.blocks:
                most = max(spent / paid for spent, paid in zip(plan.spend(block), block.grant, strict=True))
                assert most > 0.999999


def test_a_larger_multiple_buys_less_noise() -> None:
    def noise(units: int) -> float:
        granted = Granted(grant=1, pipeline="p", analyst="a", orders=None, charged={"d/w": (units,)})
        return device_plans(granted, SOFTMAX, TrainingSpec(), sizes={"d/w": 10}, device_of={"d/w": "d"})[0].noise

    bought = [noise(multiple * 10**8) for multiple in (1, 2, 5, 20)]
    assert bought == sorted(bought, reverse=True)
    assert len(set(bought)) == 4


def test_one_scale_of_noise_serves_blocks_with_unequal_grants() -> None:
    granted = Granted(grant=1, pipeline="p", analyst="a", orders=None, charged={"d/a": (10**9,), "d/b": (10**7,)})
    (plan,) = device_plans(
        granted, SOFTMAX, TrainingSpec(), sizes={"d/a": 5, "d/b": 5}, device_of={"d/a": "d", "d/b": "d"}
    )
    rich, poor = plan.blocks
    assert rich.clip == pytest.approx(1.0)
    assert poor.clip == pytest.approx(0.1)


def test_a_block_without_a_declared_size_is_not_planned() -> None:
    granted = Granted(grant=1, pipeline="p", analyst="a", orders=None, charged={"d/a": (10**9,)})
    with pytest.raises(InputError, match="no declared size"):
        device_plans(granted, SOFTMAX, TrainingSpec(), sizes={}, device_of={"d/a": "d"})


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"sampling_rate": 1.5}, {"clip": float("nan")}, {"quorum": 0.0}])
def test_training_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        TrainingSpec(**wrong)  # type: ignore[arg-type]


def test_a_plan_that_spends_more_than_its_grant_is_seen() -> None:
    told = json.loads(canonical(random_plans(1)[0]))
    told["noise"] *= 0.999
    with pytest.raises(InputError, match="the plan spends"):
        check_spend(parsed(DevicePlan, json.dumps(told).encode(), "plan"))


def test_a_plan_reads_back_as_it_was_written_and_is_signed_whole() -> None:
    signer = plan_signer(None)
    granted = Granted(grant=3, pipeline="p", analyst="a", orders=None, charged={"d/a": (10**9,)})
    run = plan_run(
        granted,
        SOFTMAX,
        TrainingSpec(),
        signer,
        sizes={"d/a": 7},
        device_of={"d/a": "d"},
        clock=FakeClock(5.0),
    )
    (envelope,) = run.plans
    document = opened(envelope, signer.public)
    assert canonical(parsed(DevicePlan, document, "plan")) == document
    assert parsed(type(run), canonical(run), "run") == run
    for tampered in (
        Envelope(document=envelope.document.replace('"size":7', '"size":8'), signature=envelope.signature),
        Envelope(document=envelope.document, signature="00" * 64),
        Envelope(document=envelope.document, signature="no hexadecimal"),
    ):
        with pytest.raises(PlanRefused, match="not signed"):
            opened(tampered, signer.public)
    with pytest.raises(PlanRefused, match="not signed"):
        opened(envelope, plan_signer(None).public)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"a":1}', b'{"kind":NaN}', b'{"a":1,"a":2}'])
def test_a_document_that_is_no_plan_is_refused(text: bytes) -> None:
    with pytest.raises(FileFormatError):
        parsed(DevicePlan, text, "plan")


def test_noise_from_the_system_is_normal_and_uniform() -> None:
    secrets = SystemSecrets()
    drawn = secrets.normal((200_001,))
    assert abs(float(drawn.mean())) < 0.012
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.01)
    assert float((np.abs(drawn) > 1.959964).mean()) == pytest.approx(0.05, abs=0.003)
    assert abs(float(np.corrcoef(drawn[:-1], drawn[1:])[0, 1])) < 0.012
    even = secrets.uniform(100_000)
    assert 0 <= even.min() < 1e-3 < 0.999 < even.max() < 1
    assert secrets.normal((3, 2)).shape == (3, 2)
    assert not np.array_equal(secrets.normal((4,)), secrets.normal((4,)))
    assert np.array_equal(SeededSecrets(1).normal((4,)), SeededSecrets(1).normal((4,)))
