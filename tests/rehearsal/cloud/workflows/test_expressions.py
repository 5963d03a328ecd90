"""Expressions of workflows, against the examples and rules of the published syntax reference."""

from __future__ import annotations

from typing import Any

import pytest
from quiet import value

from rehearsal.cloud.services.workflows.engine import Raised, SourceError


@pytest.mark.parametrize(
    ("expression", "is_"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("7 / 2", 3.5),
        ("7 % 4", 3),
        ("-a.b[0] + 1", -1),
        ("1 == 1.0", True),
        ("true == 1", False),
        ("null == null", True),
        ("\"a\" + 'b'", "ab"),
        (r'"a\"b\n"', 'a"b\n'),
        ('"x" in a', False),
        ('not ("b" in a)', False),
        ("2 in [1, 2]", True),
        ("not true or true", True),
        ("1 < 2 and 2 <= 2", True),
        ('"a" < "b"', True),
        ('a["b"][0]', 2),
        ("a.c.d", "deep"),
        ('len(a.b) + len("xyz")', 4),
        ('default(map.get(a, "none"), "else")', "else"),
        ('default(map.get(a, ["c", "d"]), "else")', "deep"),
        ('if(1 > 2, "yes", "no")', "no"),
        ("keys(a)", ["b", "c"]),
        ("string(1) + string(1.5) + string(true)", "11.5true"),
        ('int("12") + int(2.7)', 14),
        ('double("2.5")', 2.5),
        ("get_type(1.5)", "double"),
        ('text.split("a/b/c", "/")[2]', "c"),
        ('text.substring("hello", 1, 3)', "el"),
        ('text.replace_all("a.b.c", ".", "-")', "a-b-c"),
        ('text.replace_all_regex("a1b22", "[0-9]+", "#")', "a#b#"),
        ('text.match_regex("us-east5-a", "^us-")', True),
        ('text.match_regex("a=", "(?i)(?:A|b)=")', True),
        ('text.url_encode("a/b c")', "a%2Fb%20c"),
        ('text.find_all("banana", "an")', [1, 3]),
        ('json.decode("{\\"a\\": [1]}").a[0]', 1),
        ("json.encode_to_string(a.c)", '{"d":"deep"}'),
        ('base64.encode(text.encode("hi"))', "aGk="),
        ('base64.encode(hash.compute_checksum(text.encode("x"), "MD5"))', "ndTkYSaMgDT1yFZOFVxnpg=="),
        ("list.concat([1], 2)", [1, 2]),
        ("math.max(1, 2) + math.abs(-3) + math.floor(2.7)", 7),
        ('sys.get_env("GOOGLE_CLOUD_LOCATION")', "us-east5"),
        ('sys.get_env("NONE", "d")', "d"),
        ("time.format(0)", "1970-01-01T00:00:00.000000Z"),
        ('time.parse("1970-01-01T00:01:00Z")', 60.0),
    ],
)
def test_an_expression_has_its_value(expression: str, is_: Any) -> None:
    result = value(expression, a={"b": [2], "c": {"d": "deep"}})
    assert (result, type(result)) == (is_, type(is_))


@pytest.mark.parametrize(
    ("expression", "tag", "message"),
    [
        ('"a" + 1', "TypeError", "string and integer"),
        ("a.none", "KeyError", "key not found: none"),
        ("a.b[1]", "IndexError", "index out of range: 1 of 1"),
        ("a.b[-1]", "IndexError", "out of range"),
        ("a.b.c", "TypeError", "must be an integer"),
        ("1 / 0", "ZeroDivisionError", "division by zero"),
        ("1 and true", "TypeError", "must be a boolean, not a integer"),
        ('1 < "2"', "TypeError", "can't compare"),
        ('1 in "12"', "TypeError", "needs a list or a map"),
        ('int("x")', "ValueError", "can't convert"),
        ("int(null)", "TypeError", "can't convert a null"),
        ("len(1)", "TypeError", "no length"),
        ("len()", "TypeError", "takes 1 to 1 arguments, not 0"),
        ('json.decode("{")', "ValueError", "isn't JSON"),
        ("9223372036854775807 + 1", "ValueError", "64 bits"),
        ('sys.get_env("NONE")', "KeyError", "NONE not found"),
        ('hash.compute_checksum(text.encode("x"), "MD2")', "ValueError", "MD2"),
        ('text.match_regex("ab", "(?=.*b)a")', "ValueError", "RE2 has no (?="),
        (r'text.match_regex("aa", "(a)\\1")', "ValueError", r"RE2 has no \1"),
    ],
)
def test_what_has_no_value_is_an_error_with_its_tag(expression: str, tag: str, message: str) -> None:
    with pytest.raises(Raised) as raised:
        value(expression, a={"b": [2]})
    assert raised.value.value["tags"][0] == tag
    assert message in raised.value.value["message"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +", "it ends too early"),
        ("1 2", "'2' isn't expected"),
        ("a ? b", "'?' isn't expected"),
        ("none + 1", "the variable 'none' isn't assigned"),
        ("nothing.such(1)", "there is no function 'nothing.such'"),
        ('http.get("https://x")', "waits"),
        ('"' + "x" * 400 + '"', "at most 400"),
        (r'"\q"', "unknown escape"),
        ("{}", "a map in an expression"),
    ],
)
def test_what_is_no_expression_is_refused_when_it_is_deployed(expression: str, message: str) -> None:
    with pytest.raises(SourceError, match=message.replace("?", r"\?")):
        value(expression, a=1)
