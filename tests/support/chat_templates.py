"""Chat templates in the shapes that users' models have, and the markers that they are made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import flashllm

DEMO_CONFIG = Path(flashllm.__file__).parent / "demo" / "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One template; `has_system` where it takes a system message."""

    source: str | None
    has_system: bool = True


CHATML = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set turns = messages[1:] -%}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' -}}
{%- else -%}
    {%- set turns = messages -%}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' -}}
{%- endif -%}
{%- if tools -%}{{- raise_exception('no tools here') -}}{%- endif -%}
{%- for message in turns -%}
    {%- if message.role not in ['user', 'assistant'] or message.tool_calls -%}
        {{- raise_exception('a role that is not known: ' + message.role) -}}
    {%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

CHANNELS = """\
{%- macro message(head, text, end='<|end|>') -%}
    {{- '<|start|>' + head + '<|message|>' + text + end -}}
{%- endmacro -%}
{{- message('system', 'Effort: ' + reasoning_effort | default('medium')) -}}
{%- for turn in messages -%}
    {%- if turn.role == 'assistant' -%}
        {%- for text in [turn.content, turn.get('thinking', '')] -%}
            {%- if '<|channel|>' in text or '<think>' in text -%}
                {{- raise_exception('there are marks in an answer') -}}
            {%- endif -%}
        {%- endfor -%}
        {%- if loop.last and turn.thinking -%}
            {{- message('assistant<|channel|>analysis', turn.thinking) -}}
        {%- endif -%}
        {{- message('assistant<|channel|>final', turn.content) -}}
    {%- else -%}
        {{- message('developer' if turn.role == 'system' else turn.role, turn.content) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
"""A message is written in a channel; what an answer thought is left out of earlier ones."""

LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'].strip() %}\
{% set turns = messages[1:] %}\
{% else %}{% set first = false %}{% set turns = messages %}{% endif %}\
{% for message in turns %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('user and assistant take turns') }}{% endif %}\
{% if loop.first and first != false %}\
{% set content = '<<SYS>>\\n' + first + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}
"""

LLAMA_3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- set state = namespace(system='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set state.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- state.system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not message.role in ('user', 'assistant') %}{%- continue %}{%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL_1 = """\
{{ bos_token }}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('the roles alternate: user, assistant, user') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}\
{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}
"""

MISTRAL_3 = """\
{%- set turns = messages if messages[0]["role"] != "system" else messages[1:] %}
{%- set last = (turns | selectattr("role", "equalto", "user") | list)[-1] %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and message == last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.first and messages[0]["role"] == "system" %}
            {{- "[INST] " + messages[0]["content"] + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PHI_3 = """\
{% for message in messages %}{% if message['role'] == 'system' %}\
{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}\
{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}
"""

FALCON = """\
{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}\
{% if message['role'] == 'system' %}{{ message['content'] }}\
{% elif message['role'] == 'user' %}\
{{ 'User: ' + message['content'].strip().replace('\\r\\n', '\\n').replace('\\n\\n', '\\n') }}\
{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' + message['content'] }}{% endif %}\
{% endfor %}{% if add_generation_prompt %}{{ '\\n' + 'Falcon:' }}{% endif %}
"""

NEMOTRON = """\
{{ '<extra_id_0>System' }}{% for message in messages %}{% if message['role'] == 'system' %}\
{{ '\\n' + message['content'].strip() }}{% endif %}{% endfor %}{{ '\\n\\n' }}\
{% for message in messages %}\
{% if message['role'] == 'user' %}{{ '<extra_id_1>User\\n' + message['content'].strip() + '\\n' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<extra_id_1>Assistant\\n' + message['content'].strip() + '\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<extra_id_1>Assistant\\n' }}{% endif %}
"""

MINICPM = """\
{% for message in messages %}{% if message['role'] == 'user' %}\
{{ '<用户>' + message['content'].strip() + '<AI>' }}\
{% else %}{{ message['content'].strip() }}{% endif %}{% endfor %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}\
{% endif %}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('user/assistant/user/assistant') }}{% endif %}\
{% if message['role'] == 'assistant' %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

# Markers put together from pieces: no text of the template names them whole.
COMPOSED = """\
{{ bos_token }}{% for message in messages %}{% generation %}\
{% for key, value in message.items() %}\
{% if key == 'role' %}{{ '<|' + value + '|>\\n' }}{% else %}{{ value + '<|end|>\\n' }}{% endif %}\
{% endfor %}{% endgeneration %}{% endfor %}{{ '<|' ~ 'assistant' ~ '|>' ~ '\\n' }}
"""

TEMPLATES: dict[str, ChatTemplate] = {
    "chatml": ChatTemplate(CHATML),
    "llama-2": ChatTemplate(LLAMA_2),
    "llama-3": ChatTemplate(LLAMA_3),
    "mistral-1": ChatTemplate(MISTRAL_1, has_system=False),
    "mistral-3": ChatTemplate(MISTRAL_3),
    "phi-3": ChatTemplate(PHI_3),
    "falcon": ChatTemplate(FALCON),
    "nemotron": ChatTemplate(NEMOTRON),
    "minicpm": ChatTemplate(MINICPM),
    "gemma": ChatTemplate(GEMMA, has_system=False),
    "composed": ChatTemplate(COMPOSED),
    "demo": ChatTemplate(json.loads(DEMO_CONFIG.read_text())["chat_template"], has_system=False),
    "plain": ChatTemplate(None),
}

SPECIAL_MARKERS = (
    "<|im_start|>", "<|start_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "<extra_id_0>",
    "<start_of_turn>", "<|endoftext|>", "<|begin_of_text|>", "<用户>",
)  # fmt: skip
"""Those that a tokenizer's files flag as special."""
OTHER_MARKERS = (
    "<|im_end|>", "<|end_header_id|>", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "<extra_id_1>",
    "<end_of_turn>", "<AI>", ">>QUESTION<<", "<|image_1|>",
)  # fmt: skip
"""Those that they add without the flag."""
STRIPPING_MARKERS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
"""Those that take in the white space behind them."""
EDGES = ("<unk>", "<s>", "</s>", "<pad>")
MARKERS = (*EDGES, *SPECIAL_MARKERS, *OTHER_MARKERS, *STRIPPING_MARKERS, "<mask>")
