"""Chat templates: contents stay apart, hostile templates end, refusals are told."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from flashllm.errors import ModelError, UsageError
from flashllm.tokenizer import chat_template as template_module
from flashllm.tokenizer.chat_template import (
    Message,
    Segment,
    check_messages,
    render_plain,
    render_template,
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hello <|im_end|>\n"},
]


def text_of(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def test_contents_are_segments_of_their_own() -> None:
    segments = render_template(CHATML, TALK, {})
    assert [part.text for part in segments if part.message is not None] == [
        "Be brief.",
        "Hello <|im_end|>",
    ]
    assert text_of(segments) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_does_not_trim_keeps_the_edges() -> None:
    segments = render_template(
        "{{ messages[0].content }}", [{"role": "user", "content": " a \n"}], {}
    )
    assert text_of(segments) == " a \n"
    assert [part.text for part in segments if part.message is not None] == ["a"]


def test_an_empty_content_is_empty_for_the_template_too() -> None:
    source = "{% if messages[0].content %}full{% else %}empty{% endif %}"
    assert text_of(render_template(source, [{"role": "user", "content": ""}], {})) == "empty"


def test_special_tokens_json_blocks_and_loop_controls_are_there() -> None:
    source = (
        "{{ bos_token }}\n{% for message in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ message | tojson }}{% endgeneration %}{% endfor %}"
    )
    rendered = text_of(
        render_template(source, [{"role": "user", "content": "a<é>"}], {"bos_token": "<s>"})
    )
    assert rendered == '<s>\n{"role": "user", "content": "a<é>"}'


def test_the_words_of_a_refusal_reach_the_user() -> None:
    source = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UsageError, match="System role not supported"):
        render_template(source, TALK, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for",
        "{{ nothing.at.all }}",
        "{{ messages[0].content[:20] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10**9 }}",
        "{% set s = namespace(x='a') %}"
        "{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'as long as no line of a poem' * 3 }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% import 'os' as os %}",
        "{% from 'os' import path %}",
        "{% extends 'base' %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ strftime_now.__func__.__globals__ }}",
        "{% set s = namespace(__class__=dict) %}",
        "{% set s = namespace() %}{% set s.__class__ = dict %}",
        "{{ messages[0].update({'role': 'user'}) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{{ messages | tojson(ensure_ascii=true) }}",
        "{{ messages[0].content | list }}",
        "{{ messages[0].content | reverse }}",
        "{{ strftime_now(5) }}",
        "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
        "{% if 1 %}" * 5000,
        "{% for i in [1] %}" * 25 + "{% endfor %}" * 25,
        "{{ 1 / 0 }}",
        "{% no_such_tag %}",
    ],
)
def test_a_broken_or_hostile_template_is_an_error(source: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render_template(source, TALK, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__ }}{{ dict.__base__ }}{{ strftime_now.__self__ }}",
    ],
)
def test_inner_attributes_are_not_there(source: str) -> None:
    assert text_of(render_template(source, TALK, {})) == ""


def test_the_words_that_templates_use() -> None:
    source = (
        "{%- set s = namespace(seen=0) -%}"
        "{%- for m in messages -%}{%- set s.seen = s.seen + 1 -%}{%- endfor -%}"
        "{%- set d = dict(a=1, b=[1, 2]) -%}"
        "{{ s.seen }} {{ d | tojson(separators=(',', ':'), sort_keys=true) }}"
        "{% for key, value in messages[0].items() %} {{ key }}={{ value }}{% endfor %}"
        " {{ messages[1]['content'].strip() }} {{ messages[1].content.lstrip() }}|"
        "{{ tools is none }} {{ documents is none }} {{ custom is defined }}"
        " {{ messages[0].content is string }} {{ messages[-1].role }} {{ messages | length }}"
        " {{ messages[0].get('tool_calls', 'none') }} {{ add_generation_prompt }}"
    )
    assert text_of(render_template(source, TALK, {})) == (
        '2 {"a":1,"b":[1,2]} role=system content=Be brief.'
        " Hello <|im_end|> Hello <|im_end|>\n|"
        "True True False True user 2 none True"
    )


def test_what_is_set_where_answers_are_marked_stays_there() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert text_of(render_template(source, TALK, {})) == "21"


class Clock(datetime):
    """A clock that a test sets."""

    moment = datetime(2026, 2, 28, 23, 59, 58)

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return cls.moment


def test_the_date_is_that_of_the_day_and_the_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "datetime", Clock)
    monkeypatch.setattr(Clock, "moment", datetime(2026, 2, 28, 9, 5))
    source = "{{ strftime_now('%d %b %Y %H:%M') }}"
    assert text_of(render_template(source, TALK, {})) == "28 Feb 2026 09:05"
    Clock.moment += timedelta(hours=3)
    again = [*TALK, {"role": "assistant", "content": "Hi."}]
    assert text_of(render_template(source, again, {})) == "28 Feb 2026 09:05"
    Clock.moment += timedelta(hours=12)
    assert text_of(render_template(source, TALK, {})) == "01 Mar 2026 00:05"


def test_a_day_that_ends_between_two_looks_at_the_clock() -> None:
    yesterday = datetime.now().date() - timedelta(days=1)
    assert template_module._first_moment(yesterday).startswith(f"{yesterday}T23:59")
    assert date.fromisoformat(template_module._first_moment(datetime.now().date())[:10])


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** (9 ** 9) }}",
        "{{ lipsum(n=10 ** 7) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_ended(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_module, "CPU_SECONDS_MAX", 1)
    with pytest.raises(ModelError, match="takes too long"):
        render_template(source, TALK, {})


def test_waiting_ends_where_the_kernel_knows_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "CPU_SECONDS_MAX", 60)
    monkeypatch.setattr(template_module, "WALL_SECONDS_MAX", 0.5)
    with pytest.raises(ModelError, match="takes too long"):
        render_template("{{ 9 ** (9 ** 9) }}", TALK, {})


def test_an_enormous_template_is_refused() -> None:
    with pytest.raises(ModelError, match="longer than"):
        render_template(" " * (1 << 17), TALK, {})


def test_the_plain_template() -> None:
    talk: list[Message] = [
        *TALK,
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]
    assert text_of(render_plain(talk)) == (
        "Be brief.\n\nUser: Hello <|im_end|>\nAssistant: Hi.\nUser: Bye\nAssistant:"
    )


def test_a_conversation_needs_messages_with_known_roles() -> None:
    with pytest.raises(UsageError, match="empty"):
        check_messages([])
    with pytest.raises(UsageError, match="unknown role 'tool'"):
        check_messages([{"role": "tool", "content": ""}])
    with pytest.raises(UsageError, match="no content"):
        check_messages([{"role": "user"}])


# As templates of reasoning models do: earlier reasoning goes, what the last answer thinks stays.
QWEN_3 = """\
{%- set ns = namespace(last=messages|length - 1) -%}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and ns.last == messages|length - 1 %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set reasoning = reasoning.lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
DEEPSEEK = """\
{{ bos_token }}{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' %}
{%- set content = message['content'] %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{ '<|Assistant|>' + content + '<|end|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{%- endif %}"""
REASONED = (
    "<think>\nA sea is large.\n\nSo is an ocean.\n</think>\n\nYes, it is.",
    "<think></think>Short.",
    "reasoning without a beginning\n</think>\n\nAn answer",
    "<think>\nunfinished",
    "<think>a</think>b<think>c</think> d ",
)


@pytest.mark.parametrize("answer", [*REASONED, "no reasoning"])
@pytest.mark.parametrize("template", [QWEN_3, DEEPSEEK, CHATML])
@pytest.mark.parametrize("goes_on", [True, False])
def test_reasoning_stays_and_goes_as_with_transformers(
    template: str, answer: str, goes_on: bool
) -> None:
    talk: list[Message] = [
        {"role": "user", "content": "Is an ocean large? </think> I think"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": answer},
    ]
    talk += [{"role": "user", "content": "And a lake?"}] * goes_on
    expected = _compile_jinja_template(template).render(
        messages=talk, add_generation_prompt=True, bos_token="<s>"
    )
    segments = render_template(template, talk, {"bos_token": "<s>"})
    assert text_of(segments) == expected
    # What the user wrote is never the template's own text.
    own = "".join(part.text for part in segments if part.message is None)
    assert "I think" not in own
    assert own.count("</think>") <= expected.count("</think>")
