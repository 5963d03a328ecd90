"""Execution of workflows: steps, jumps, loops, errors, retries, subworkflows; and their requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from quiet import Quiet, run

from rehearsal.cloud.services.workflows.engine import Raised, SourceError, UncoveredError, parse

GET = "https://dataproc.googleapis.com/v1/x"


def raised(source: str, argument: Any = None, outside: Quiet | None = None) -> Raised:
    with pytest.raises(Raised) as raises:
        run(source, argument, outside)
    return raises.value


def test_steps_run_in_order_and_jump_where_next_says() -> None:
    source = """
- first: {assign: [{seen: ["first"]}], next: third}
- second: {assign: [{seen: '${list.concat(seen, "second")}'}], next: fourth}
- third: {assign: [{seen: '${list.concat(seen, "third")}'}], next: second}
- fourth: {return: '${seen}'}
- fifth: {raise: never}
"""
    assert run(source) == ["first", "third", "second"]


@pytest.mark.parametrize(("argument", "is_"), [({"n": 1}, "one"), ({"n": 2}, "jumped"), ({"n": 3}, "else")])
def test_the_first_true_condition_of_a_switch_decides(argument: Any, is_: str) -> None:
    source = """
main:
  params: [args]
  steps:
    - decide:
        switch:
          - condition: ${args.n == 1}
            return: one
          - condition: ${args.n == 2}
            steps:
              - note: {assign: [{found: jumped}], next: last}
          - condition: true
            assign: [{found: else}]
    - middle: {next: last}
    - never: {raise: never}
    - last: {return: '${found}'}
"""
    assert run(source, argument) == is_


def test_members_of_maps_and_lists_are_assigned() -> None:
    source = """
- set:
    assign:
      - key: k
      - m: {a: [0, 0], ["x"]: 1}
      - m.a[1]: 5
      - m[key + "2"]: {}
      - m.k2.b: true
      - copy: ${m}
      - copy.a: gone
- out: {return: '${m}'}
""".replace('["x"]', "x")
    assert run(source) == {"a": [0, 5], "x": 1, "k2": {"b": True}}


def test_a_loop_goes_over_lists_and_ranges_and_knows_break_and_continue() -> None:
    source = """
- init: {assign: [{sum: 0}, {at: []}]}
- list:
    for:
      value: v
      index: i
      in: [10, 20, 30, 40]
      steps:
        - check:
            switch:
              - {condition: '${v == 20}', next: continue}
              - {condition: '${v == 40}', next: break}
        - add: {assign: [{sum: '${sum + v}'}, {at: '${list.concat(at, i)}'}, {inside: 1}]}
- range:
    for:
      value: n
      range: [1, 3]
      steps:
        - add2: {assign: [{sum: '${sum + n}'}]}
- out: {return: {sum: '${sum}', at: '${at}'}}
"""
    assert run(source) == {"sum": 46, "at": [0, 2]}


def test_a_subworkflow_has_its_own_variables_and_defaults() -> None:
    source = """
main:
  steps:
    - one: {call: greet, args: {name: Ada}, result: first}
    - two: {call: greet, args: {name: Bo, word: Bye}, result: second}
    - out: {return: ['${first}', '${second}']}
greet:
  params: [name, {word: Hello}]
  steps:
    - make: {assign: [{text: '${word + " " + name}'}]}
    - out_: {return: '${text}'}
"""
    assert run(source) == ["Hello Ada", "Bye Bo"]


def test_an_error_is_caught_and_is_a_map_with_tags_code_and_body() -> None:
    source = f"""
- try_:
    try:
      call: http.get
      args: {{url: "{GET}", auth: {{type: OAuth2}}}}
      result: never
    except:
      as: e
      steps:
        - out: {{return: ['${{e.code}}', '${{e.tags}}', '${{e.message}}', '${{e.body.error.status}}']}}
"""
    outside = Quiet([(403, {"error": {"status": "PERMISSION_DENIED"}})])
    text = "HTTP server responded with error code 403"
    assert run(source, outside=outside) == [403, ["HttpError"], text, "PERMISSION_DENIED"]
    assert (outside.sent[0].method, outside.sent[0].url, outside.sent[0].auth) == ("GET", GET, "OAuth2")


def test_what_nothing_catches_names_the_steps_that_it_came_through() -> None:
    source = f"""main:
  steps:
    - outer:
        call: inner
inner:
  steps:
    - ask:
        call: http.get
        args: {{url: "{GET}"}}
"""
    error = raised(source, outside=Quiet([(503, {})]))
    assert error.context == (
        'HTTP server responded with error code 503\nin step "ask", routine "inner", line: 8\n'
        'in step "outer", routine "main", line: 4'
    )


RETRIED = """
main:
  steps:
    - init: {{assign: [{{found: null}}]}}
    - ask:
        try: {{call: http.get, args: {{url: "https://a.b/"}}, result: found}}
        retry: {retry}
        {handler}
    - out: {{return: '${{found.body}}'}}
ours:
  params: [e]
  steps:
    - decide: {{return: '${{e.code == 409}}'}}
"""
OWN = "{predicate: '${ours}', max_retries: 2, backoff: {initial_delay: 2, max_delay: 3, multiplier: 2}}"


def test_retries_wait_longer_each_time_until_it_succeeds() -> None:
    outside = Quiet([(503, {}), ConnectionError("reset"), TimeoutError(), (200, {"a": 1})])
    assert run(RETRIED.format(retry="${http.default_retry}", handler=""), outside=outside) == {"a": 1}
    assert outside.slept == [1, 1.25, 1.5625]


def test_a_predicate_of_ones_own_decides_and_max_retries_ends_it() -> None:
    outside = Quiet([(409, {}), (409, {}), (409, {"n": 3})])
    error = raised(RETRIED.format(retry=OWN, handler=""), outside=outside)
    assert (outside.slept, error.value["body"]) == ([2, 3], {"n": 3})
    outside = Quiet([(404, {})])
    handler = "except: {as: e, steps: [{caught: {assign: [{found: {body: gone}}]}}]}"
    assert run(RETRIED.format(retry=OWN, handler=handler), outside=outside) == "gone"
    assert outside.slept == []


def test_requests_carry_json_queries_and_headers() -> None:
    source = """
- post:
    call: http.post
    args:
      url: https://run.example/x?a=1
      query: {b: 2, c: "x y"}
      headers: {X-One: "1"}
      body: {n: [1, null]}
      auth: {type: OIDC}
      timeout: 10
    result: r
- out: {return: '${r.code}'}
"""
    outside = Quiet([(201, {})])
    assert run(source, outside=outside) == 201
    (sent,) = outside.sent
    assert (sent.method, sent.url) == ("POST", "https://run.example/x?a=1&b=2&c=x+y")
    assert (sent.auth, sent.audience, sent.timeout_s) == ("OIDC", "https://run.example/x", 10)
    assert json.loads(sent.body or b"") == {"n": [1, None]}
    assert sent.headers == {"X-One": "1", "Content-Type": "application/json"}


def test_waits_and_lines_of_the_log_go_outside() -> None:
    outside = Quiet()
    run(
        """
- wait: {call: sys.sleep, args: {seconds: 3600}}
- say: {call: sys.log, args: {json: {event: done}, severity: NOTICE}}
- out: {return: '${sys.now()}'}
""",
        outside=outside,
    )
    assert (outside.slept, outside.lines) == ([3600], [("NOTICE", {"event": "done"})])


@pytest.mark.parametrize(
    ("source", "tag"),
    [
        ("- a: {assign: [{n: 0}]}\n- b: {assign: [{n: '${n + 1}'}], next: b}", "ResourceLimitError"),
        ("main:\n  steps:\n    - a: {call: sub}\nsub:\n  steps:\n    - b: {call: sub}", "RecursionError"),
        ("- a: {assign: [{s: xxxxxxxxxx}]}\n- b: {assign: [{s: '${s + s}'}], next: b}", "ResourceLimitError"),
        ("- a: {switch: [{condition: 1, return: 1}]}", "TypeError"),
        ("- a: {for: {value: v, in: '${1}', steps: [{b: {return: 1}}]}}", "TypeError"),
        ("- z: {next: b}\n- a: {assign: [{x: 1}]}\n- b: {return: '${x}'}", "KeyError"),
    ],
)
def test_a_limit_or_a_wrong_type_is_an_error_with_its_tag(source: str, tag: str) -> None:
    assert raised(source).value["tags"][0] == tag


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("main: {}", "must have 'steps'"),
        ("{a: 1}", "must have a 'main'"),
        ("- a: {return: 1", "parse error"),
        ("- a: {retrun: 1}", "unknown key 'retrun'"),
        ("- a: {return: 1, raise: 2}", "exactly one of"),
        ("- a: {return: 1}\n- a: {return: 2}", "two steps 'a'"),
        ("- a: {next: nowhere}", "can't jump to 'nowhere'"),
        ("- a: {next: break}", "can't jump to 'break'"),
        ("- a: {for: {value: v, in: [1], steps: [{b: {next: c}}]}}\n- c: {return: 1}", "can't jump to 'c'"),
        ("- a: {call: nothing}", "no function 'nothing'"),
        ("- a: {call: http.get, args: {ulr: x}}", "no argument 'ulr'"),
        ("- a: {call: text.split, args: {source: x}}", "needs the argument 'separator'"),
        (
            "main:\n  steps:\n    - a: {call: s}\ns:\n  params: [p]\n  steps: [{b: {return: 1}}]",
            "needs the arg",
        ),
        ("main:\n  params: [a, b]\n  steps: [{c: {return: 1}}]", "one parameter at most"),
        ("- a: {return: 'x ${b}'}", "must be the whole value"),
        ("- a: {for: {value: v, in: [1], steps: [{b: {assign: [{x: 1}]}}]}}\n- c: {return: '${x}'}", "'x'"),
        ("- a: {try: {raise: 1}, except: {as: e, steps: [{b: {return: 1}}]}}\n- c: {return: '${e}'}", "'e'"),
        ("- a: {try: {raise: 1}}", "needs retry or except"),
        ("- a: {try: {raise: 1}, retry: {max_retries: 1}}", "needs backoff, predicate"),
        ("- a: {assign: []}", "1 to 50"),
        ("- a: {return: 1, return: 2}", "stands twice"),
        ("# " + "x" * (128 << 10) + "\n- a: {return: 1}", "at most 131072"),
    ],
)
def test_a_definition_that_is_wrong_is_refused_when_it_is_deployed(source: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse(source)


@pytest.mark.parametrize(
    "source",
    [
        "- a: {parallel: {branches: []}}",
        "- a: {call: googleapis.storage.v1.objects.get, args: {}}",
        "- a: {call: events.await_callback, args: {}}",
        "- a: {call: experimental.executions.run, args: {}}",
    ],
)
def test_what_google_takes_and_this_engine_does_not_is_said(source: str) -> None:
    with pytest.raises(UncoveredError, match="is not covered"):
        parse(source)
