"""Chat templates: contents stay apart, hostile templates end, refusals are told."""

from __future__ import annotations

import pytest

from flashllm import template as template_module
from flashllm.errors import ModelError, UsageError
from flashllm.template import Message, Segment, check_messages, render_plain, render_template

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
    assert [part.text for part in segments if part.is_content] == ["Be brief.", "Hello <|im_end|>"]
    assert text_of(segments) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_does_not_trim_keeps_the_edges() -> None:
    segments = render_template(
        "{{ messages[0].content }}", [{"role": "user", "content": " a \n"}], {}
    )
    assert text_of(segments) == " a \n"
    assert [part.text for part in segments if part.is_content] == ["a"]


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
    ],
)
def test_a_broken_or_hostile_template_is_an_error(source: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render_template(source, TALK, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** (9 ** 9) }}",
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
