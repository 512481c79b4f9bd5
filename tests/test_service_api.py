"""Does every endpoint keep its rules: who may, how often, how much, and the same answer to the same key?"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house import ROLES, House, house

from dpbalance.errors import TABLE
from dpbalance.service.access import RULES
from dpbalance.service.app import unruled
from dpbalance.service.models import BULK_MAX
from dpbalance.service.problems import MEDIA

ASK = {"devices": "all", "windows": {"latest": 1}, "cost": 0.1}

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/analysts"): {"name": "new"},
    ("PATCH", "/v1/analysts/{analyst}"): {"priority": 2.0},
    ("POST", "/v1/pipelines"): {**ASK, "analyst": "ana"},
    ("POST", "/v1/batches"): {"pipelines": [{**ASK, "analyst": "ana"}]},
    ("POST", "/v1/devices"): {"devices": [{"name": "new", "contributor": "maria"}]},
    ("POST", "/v1/blocks"): {"blocks": [{"device": "phone-0", "window": "wed", "budget": 1.0}]},
    ("PATCH", "/v1/devices/{device}/blocks/{window}"): {"state": "frozen"},
    ("POST", "/v1/previews"): {"scheduler": "none-such"},
    ("PUT", "/v1/settings"): {},
    ("POST", "/v1/tokens"): {"role": "auditor", "name": "new"},
}
PLACES = {"analyst": "ana", "pipeline": "p1", "device": "phone-0", "window": "mon", "number": "1", "grant": "1"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("house")) as made:
        made.market()
        made.submit(0.2)
        made.round()
        with made.database.writing() as connection:
            connection.exec_driver_sql("UPDATE service_state SET done = 1000000")  # a round that is asked for is done
        yield made


def problem(answer: Any, name: str) -> dict[str, Any]:
    """The answer is this problem, complete."""
    row = TABLE[name]
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["code"], told["title"]) == (row.http_status, row.code, name), answer.text
    assert answer.headers["content-type"] == MEDIA
    assert told["status"] == row.http_status
    assert told["type"].endswith(f"docs/errors.md#{row.code.lower()}")
    assert "Traceback" not in answer.text
    return told


def test_every_endpoint_has_a_rule_and_every_rule_an_endpoint(shared: House) -> None:
    assert unruled(shared.app) == set()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("method", "path"), RULES, ids=lambda each: each)
def test_a_role_may_do_what_its_rule_says_and_nothing_else(shared: House, method: str, path: str, role: str) -> None:
    where = path.format(**PLACES, token="t-0")
    more: dict[str, Any] = {"json": BODIES[method, path]} if (method, path) in BODIES else {}
    if path == "/v1/statements":
        where += "?device=phone-0"
    answer = shared.ask(method, where, role=role, **more)
    if role in RULES[method, path]:
        assert answer.status_code not in (401, 403, 405, 500), answer.text
    else:
        problem(answer, "NotAllowed")


@pytest.mark.parametrize(("method", "path"), RULES, ids=lambda each: each)
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer unknown", "Basic b3A6b3A="])
def test_without_a_good_token_nothing_is_answered(shared: House, method: str, path: str, header: str) -> None:
    where = path.format(**PLACES, token="t-0")
    body: dict[str, Any] = {"json": BODIES[method, path]} if (method, path) in BODIES else {}
    answer = shared.ask(method, where, headers={"Authorization": header}, **body)
    problem(answer, "Unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_an_analyst_finds_nothing_of_others(home: House) -> None:
    home.market()
    secretive = home.token("analyst", "secretive-ben")
    theirs = home.submit(0.2, token=secretive, label="secretive-label")
    mine = home.submit(0.2)
    home.submit(3.0, token=secretive)
    told = home.round()
    assert told is not None
    grant = home.made("GET", f"/v1/pipelines/{theirs}")["grant"]
    for method, path in (
        ("GET", f"/v1/pipelines/{theirs}"),
        ("DELETE", f"/v1/pipelines/{theirs}"),
        ("GET", f"/v1/pipelines/{theirs}/explain"),
        ("GET", f"/v1/grants/{grant}"),
        ("GET", "/v1/analysts/secretive-ben"),
        ("GET", "/v1/statements?analyst=secretive-ben"),
        ("POST", "/v1/pipelines"),
    ):
        body = {"json": {**ASK, "analyst": "secretive-ben"}} if method == "POST" else {}
        answer = home.ask(method, path, role="analyst", **body)
        problem(answer, "NotFound")
        unknown = home.ask(method, path.replace(theirs, "p999").replace(f"s/{grant}", "s/999"), role="analyst", **body)
        assert answer.json() == unknown.json()
    for path in (
        "/v1/pipelines",
        "/v1/pipelines?analyst=secretive-ben",
        "/v1/grants",
        "/v1/rounds",
        f"/v1/rounds/{told['round']}",
        "/v1/analysts",
        "/v1/statements?device=phone-0",
        f"/v1/statements?pipeline={theirs}",
        "/v1/devices",
        "/v1/blocks",
        f"/v1/pipelines/{mine}/explain",
    ):
        answer = home.ask("GET", path, role="analyst")
        assert answer.is_success, answer.text
        assert "secretive" not in answer.text
        assert f'"{theirs}"' not in answer.text
        assert "maria" not in answer.text


def test_a_contributor_owns_its_devices_and_sees_no_others(home: House) -> None:
    home.market()
    other = home.token("contributor", "otto")
    for method, path, body in (
        ("GET", "/v1/devices/phone-0", None),
        ("GET", "/v1/devices/phone-0/blocks/mon", None),
        ("PATCH", "/v1/devices/phone-0/blocks/mon", {"state": "frozen"}),
        ("GET", "/v1/statements?device=phone-0", None),
        ("POST", "/v1/blocks", {"blocks": [{"device": "phone-0", "window": "wed", "budget": 1.0}]}),
    ):
        problem(home.ask(method, path, token=other, json=body), "NotFound")
    assert home.made("GET", "/v1/devices", token=other)["items"] == []
    assert home.made("GET", "/v1/blocks", token=other)["items"] == []
    body = {"devices": [{"name": "stolen", "contributor": "maria"}]}
    problem(home.ask("POST", "/v1/devices", token=other, json=body), "NotAllowed")
    place = "/v1/devices/phone-0/blocks/mon"
    assert home.made("PATCH", place, role="contributor", json={"budget": 2.0})["capacity"] == 2.0
    assert home.made("PATCH", place, role="contributor", json={"state": "frozen"})["state"] == "frozen"
    problem(home.ask("PATCH", place, json={"state": "open"}), "NotAllowed")
    assert home.made("PATCH", place, role="contributor", json={"state": "open"})["state"] == "open"
    home.submit(0.3)
    home.round()
    lines = home.made("GET", "/v1/statements?device=phone-0", role="contributor")["lines"]
    assert lines
    assert {(each["analyst"], each["pipeline"]) for each in lines} == {("", "")}


CREATES = [(method, path) for method, path in RULES if method == "POST" and path not in ("/v1/previews",)]


@pytest.mark.parametrize(("method", "path"), CREATES, ids=lambda each: each)
def test_a_create_needs_a_key_and_says_the_same_to_the_same_again(home: House, method: str, path: str) -> None:
    home.market()
    with home.database.writing() as connection:
        connection.exec_driver_sql("UPDATE service_state SET done = 1000000")
    body = BODIES.get((method, path))
    token = home.tokens["operator"]
    bare = home.runner.run(home.http.request(method, path, headers={"Authorization": f"Bearer {token}"}, json=body))
    problem(bare, "ServiceRefusal")
    first = home.ask(method, path, key="same", json=body)
    again = home.ask(method, path, key="same", json=body)
    assert first.is_success, first.text
    assert first.status_code == again.status_code
    assert {**first.json(), "secret": None} == {**again.json(), "secret": None}
    other = {"other": 1} if body is None else {**body, "label": "x", "dry": 1}
    answer = home.ask(method, path, key="same", json=other)
    assert answer.status_code == 422
    assert home.ask(method, path, key="same", json=body, role="operator").is_success


def test_the_same_key_with_another_valid_body_is_refused(home: House) -> None:
    home.market()
    body = {**ASK, "analyst": "ana"}
    first = home.made("POST", "/v1/pipelines", key="k", json=body)
    problem(home.ask("POST", "/v1/pipelines", key="k", json={**body, "cost": 0.2}), "KeyReused")
    problem(home.ask("POST", "/v1/pipelines?dry_run=true", key="k", json=body), "KeyReused")
    assert home.made("POST", "/v1/pipelines", key="k", json=body) == first
    mine = home.ask("POST", "/v1/pipelines", role="analyst", key="k", json=ASK)
    assert mine.json()["id"] != first["id"]  # a key is of a token


def test_a_dry_run_writes_nothing_and_is_remembered(home: House) -> None:
    home.market()
    path = "/v1/pipelines?dry_run=true"
    first = home.made("POST", path, key="dry", json={**ASK, "analyst": "ana"})
    assert first["id"] == "p0"
    assert home.made("POST", path, key="dry", json={**ASK, "analyst": "ana"}) == first
    assert home.made("GET", "/v1/pipelines")["items"] == []
    assert home.ask("POST", path, json={**ASK, "analyst": "ana", "cost": [1.0, 2.0]}).status_code == 422
    body = {"blocks": [{"device": "phone-0", "window": "wed", "budget": 1.0}]}
    assert home.made("POST", "/v1/blocks?dry_run=true", json=body) == {"count": 1, "dry_run": True}
    assert len(home.made("GET", "/v1/blocks")["items"]) == 8


def test_many_at_once_under_one_key_make_one_pipeline(home: House) -> None:
    home.market()

    async def all_at_once() -> list[Any]:
        headers = {"Authorization": f"Bearer {home.tokens['analyst']}", "Idempotency-Key": "one"}
        return await asyncio.gather(
            *(home.http.post("/v1/pipelines", json=ASK, headers=headers) for _ in range(20)),
        )

    answers = home.runner.run(all_at_once())
    assert {each.status_code for each in answers} <= {201, 409}
    made = [each.json()["id"] for each in answers if each.status_code == 201]
    assert set(made) == {"p1"}
    for each in answers:
        if each.status_code == 409:
            problem(each, "NotNow")
    assert len(home.made("GET", "/v1/pipelines")["items"]) == 1


def test_one_bad_pipeline_refuses_its_batch_and_no_other(home: House) -> None:
    home.market()

    async def both() -> list[Any]:
        made = []
        for key, cost in (("good", 0.1), ("bad", [0.1])):
            body = {"pipelines": [ASK, {**ASK, "cost": cost}]}
            headers = {"Authorization": f"Bearer {home.tokens['analyst']}", "Idempotency-Key": key}
            made.append(home.http.post("/v1/batches", json=body, headers=headers))
        return await asyncio.gather(*made)

    good, bad = home.runner.run(both())
    assert good.json()["ids"] == ["p1", "p2"]
    problem(bad, "AmountError")
    assert len(home.made("GET", "/v1/pipelines")["items"]) == 2


def test_pages_are_stable_while_more_comes_in(home: House) -> None:
    home.market()
    names = [home.submit(0.01) for _ in range(7)]
    seen, cursor = [], ""
    while True:
        told = home.made("GET", f"/v1/pipelines?limit=3{cursor}")
        seen += [each["id"] for each in told["items"]]
        home.submit(0.01) if len(seen) == 3 else None
        if told["next"] is None:
            break
        cursor = f"&cursor={told['next']}"
    assert seen == [*names, "p8"]
    for path in ("/v1/pipelines", "/v1/rounds", "/v1/grants", "/v1/blocks", "/v1/devices", "/v1/tokens"):
        problem(home.ask("GET", f"{path}?cursor=bm9uZQ"), "InputError")
    for path, count in (("/v1/devices", 4), ("/v1/blocks", 8), ("/v1/tokens", 4)):
        listed, at = [], ""
        while at is not None:
            told = home.made("GET", f"{path}?limit=1{at}")
            listed += [json.dumps(each) for each in told["items"]]
            at = None if told["next"] is None else f"&cursor={told['next']}"
        assert len(set(listed)) == len(listed) == count


def test_settings_need_the_version_they_start_from(home: House) -> None:
    now = home.ask("GET", "/v1/settings")
    changed = {**now.json(), "beta": 0.5}
    problem(home.ask("PUT", "/v1/settings", json=changed), "VersionMissing")
    problem(home.ask("PUT", "/v1/settings", json=changed, headers={"If-Match": '"7"'}), "WrongVersion")
    put = home.ask("PUT", "/v1/settings", json=changed, headers={"If-Match": now.headers["etag"]})
    assert (put.status_code, put.headers["etag"]) == (200, '"1"')
    problem(home.ask("PUT", "/v1/settings", json=changed, headers={"If-Match": now.headers["etag"]}), "WrongVersion")
    assert home.made("GET", "/v1/settings")["beta"] == 0.5
    for bad in ({"scheduler": "none-such"}, {"options": {"none": 1}}, {"fallback": "none-such"}, {"every": 0}):
        answer = home.ask("PUT", "/v1/settings", json={**changed, **bad}, headers={"If-Match": '"1"'})
        assert answer.status_code in (404, 422), answer.text


def test_a_token_is_shown_once_ends_when_it_says_and_can_be_revoked(home: House) -> None:
    made = home.made("POST", "/v1/tokens", json={"role": "auditor", "name": "eva", "seconds": 100.0})
    assert home.made("GET", "/v1/whoami", token=made["secret"]) == {"role": "auditor", "name": "eva"}
    listed = home.ask("GET", "/v1/tokens").text
    assert made["secret"] not in listed
    assert "hash" not in listed
    home.clock.sleep(101)
    problem(home.ask("GET", "/v1/whoami", token=made["secret"]), "Unauthenticated")
    other = home.made("POST", "/v1/tokens", json={"role": "analyst", "name": "new-one"})
    assert home.made("GET", "/v1/whoami", token=other["secret"])["name"] == "new-one"
    assert home.made("GET", "/v1/analysts/new-one")["priority"] == 1.0
    assert home.made("DELETE", f"/v1/tokens/{other['id']}")["revoked"] is not None
    problem(home.ask("GET", "/v1/whoami", token=other["secret"]), "Unauthenticated")
    problem(home.ask("DELETE", "/v1/tokens/t-none"), "NotFound")


def test_cancelling_is_for_what_waits_and_says_the_same_again(home: House) -> None:
    home.market()
    name, other = home.submit(0.1), home.submit(0.1)
    assert home.made("DELETE", f"/v1/pipelines/{name}", role="analyst")["state"] == "cancelled"
    assert home.made("DELETE", f"/v1/pipelines/{name}", role="analyst")["state"] == "cancelled"
    home.round()
    problem(home.ask("DELETE", f"/v1/pipelines/{other}", role="analyst"), "NotNow")


@pytest.mark.parametrize(
    ("setting", "value", "method", "path", "more", "name"),
    [
        ("body_max", 2_000, "POST", "/v1/pipelines", {"content": b"{" + b" " * 3_000}, "TooLarge"),
        ("page_max", 10, "GET", "/v1/pipelines?limit=11", {}, "TooLarge"),
        ("queue_max", 1, "POST", "/v1/pipelines", {}, "Overloaded"),
        ("burst", 1.0, "GET", "/v1/whoami", {}, "TooMany"),
        ("solves_max", 1, "GET", "/v1/pipelines/p1/explain", {}, "Overloaded"),
    ],
)
def test_every_bound_holds(
    tmp_path: Path, setting: str, value: Any, method: str, path: str, more: Any, name: str
) -> None:
    rate = {"rate": 0.001} if setting == "burst" else {}
    with house(tmp_path, **{setting: value}, **rate) as home:
        if setting == "queue_max":
            home.desk.submits.length = 1
        if setting == "solves_max":
            home.market()
            home.submit(0.1)
            home.desk.solver._waiting = 1
        if setting == "burst":
            home.made(method, path)
        answer = home.ask(method, path, **(more or ({"json": {**ASK, "analyst": "ana"}} if method == "POST" else {})))
        problem(answer, name)
        if name in ("Overloaded", "TooMany"):
            assert answer.headers["retry-after"] == "1"


def test_more_requests_at_once_than_may_be_are_told_to_come_again(tmp_path: Path) -> None:
    with house(tmp_path, connections_max=1) as home:
        home.ask("GET", "/v1/whoami")  # the token is known by now
        header = {"Authorization": f"Bearer {home.tokens['operator']}"}

        async def both() -> list[Any]:
            return await asyncio.gather(*(home.http.get("/v1/analysts", headers=header) for _ in range(2)))

        good, late = sorted(home.runner.run(both()), key=lambda each: each.status_code)
        assert good.status_code == 200
        problem(late, "Overloaded")
        assert late.headers["retry-after"] == "1"
        assert home.made("GET", "/v1/whoami")["role"] == "operator"


def test_a_body_without_a_length_is_bounded_too(tmp_path: Path) -> None:
    with house(tmp_path, body_max=2_000) as home:

        async def parts() -> Any:
            for _ in range(10):
                yield b" " * 1_000

        problem(home.ask("POST", "/v1/pipelines", content=parts()), "TooLarge")


def test_what_is_not_served_is_a_problem_too(home: House) -> None:
    problem(home.ask("GET", "/v1/none"), "NotFound")
    answer = home.ask("PUT", "/v1/pipelines")
    problem(answer, "WrongMethod")
    assert "allow" in answer.headers
    told = problem(home.ask("POST", "/v1/pipelines", json={**ASK, "cost": "much"}), "InputError")
    assert told["errors"]
    assert "much" not in told["detail"]
    problem(home.ask("POST", "/v1/pipelines", content=b"{"), "InputError")


def test_a_bug_is_told_without_a_trace(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("secret detail")

    home.made("GET", "/v1/whoami")  # the token is known from here on
    monkeypatch.setattr(home.desk.database, "reading", broken)
    answer = home.ask("GET", "/v1/pipelines")
    problem(answer, "DPBalanceError")
    assert "secret detail" not in answer.text
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("ask", "blocks"),
    [
        ({"devices": "all", "windows": {"latest": 2}, "cost": 0.1}, 8),
        ({"devices": {"share": 0.5}, "windows": {"latest": 1}, "cost": 0.1}, 2),
        ({"devices": {"sample": 3}, "windows": {"first": "mon", "last": "mon"}, "cost": 0.1}, 3),
        ({"devices": {"named": ["phone-1"]}, "windows": {"latest": 9}, "cost": 0.1}, 2),
        ({"blocks": {"phone-0/mon": 0.1, "phone-3/tue": 0.2}}, 2),
        ({"devices": "all", "windows": {"latest": 1}, "cost": {"recipe": "laplace", "noise_multiplier": 9.0}}, 4),
    ],
)
def test_a_selector_means_the_blocks_it_says(home: House, ask: dict[str, Any], blocks: int) -> None:
    home.market()
    name = home.made("POST", "/v1/pipelines", role="analyst", json=ask)["id"]
    home.round()
    grant = home.made("GET", f"/v1/pipelines/{name}")["grant"]
    assert len(home.made("GET", f"/v1/grants/{grant}", role="analyst")["cost"]) == blocks


def test_a_draw_can_be_drawn_again_from_its_seed(home: House) -> None:
    from dpbalance.service.catalogue import Catalogue
    from dpbalance.service.models import Ask

    home.market(devices=30)
    made = home.made("POST", "/v1/pipelines", role="analyst", json={**ASK, "devices": {"sample": 7}})
    home.round()
    grant = home.made("GET", f"/v1/pipelines/{made['id']}")["grant"]
    there = Catalogue([(f"phone-{at}", window) for at in range(30) for window in ("mon", "tue")], 60)
    again = there.demand(Ask.model_validate(made["asked"]), made["seed"], None)
    assert set(again) == set(home.made("GET", f"/v1/grants/{grant}")["cost"])


def test_metrics_tell_of_requests_and_rounds(home: House) -> None:
    home.market()
    home.submit(0.1)
    home.submit(5.0)
    told = home.round()
    assert told is not None
    home.desk.metrics.event({"event": "round", **told})
    text = home.ask("GET", "/metrics").text
    for line in (
        'dpbalance_requests_total{method="POST",path="/v1/pipelines",status="201"} 2.0',
        'dpbalance_rounds_total{ended="decided"} 1.0',
        "dpbalance_charges_total 1.0",
        'dpbalance_denials_total{reason="exceeds-left"} 1.0',
        'dpbalance_budget_left{age="hour"}',
        "dpbalance_queue_length 0.0",
        "dpbalance_oldest_wait_seconds",
    ):
        assert line in text, line


@pytest.mark.parametrize("options", ['{"tau": Infinity}', '{"tau": NaN}', '{"max_multiple": 1e999}'])
def test_an_option_that_is_no_json_is_refused(home: House, options: str) -> None:
    body = f'{{"options": {options}}}'
    answer = home.ask("PUT", "/v1/settings", content=body.encode(), headers={"If-Match": "*"})
    assert answer.status_code == 422, answer.text
    assert home.made("GET", "/v1/settings")["options"] == {}


def test_an_answer_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    with house(tmp_path, solve_limit=0.05) as home:
        home.market()
        name = home.submit(0.1)
        problem(home.ask("GET", f"/v1/pipelines/{name}/explain"), "Overloaded")
        problem(home.ask("POST", "/v1/previews", json={}), "Overloaded")
        assert home.desk.solver._waiting == 0


def test_a_preview_over_http_is_decided_beside_the_server(home: House) -> None:
    home.market()
    name = home.submit(0.1)
    told = home.made("POST", "/v1/previews", json={"scheduler": "fcfs"})
    assert [each["pipeline"] for each in told["grants"]] == [name]
    assert home.made("GET", f"/v1/pipelines/{name}/explain", role="analyst")["served"]
    problem(home.ask("POST", "/v1/previews", json={"scheduler": "none-such"}), "UnknownScheduler")
    home.round()
    problem(home.ask("POST", "/v1/previews", json={}), "NotNow")


def test_one_request_brings_so_many_pipelines_and_no_more(home: House) -> None:
    home.market()
    body = {"pipelines": [ASK] * (BULK_MAX + 1)}
    problem(home.ask("POST", "/v1/batches", role="analyst", json=body), "InputError")
    body["pipelines"].pop()
    assert len(home.made("POST", "/v1/batches", role="analyst", json=body)["ids"]) == BULK_MAX
