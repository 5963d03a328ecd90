"""Small tokenizers that chat: in the manner of Qwen 2.5, of Llama 3, and of nobody in particular."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

# A system message of its own, tools, and what tools said as a user's message; no token before the text.
QWEN = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set lead, rest = messages[0]['content'], messages[1:] %}
{%- else %}
    {%- set lead, rest = 'You were made for tests.', messages %}
{%- endif %}
{{- '<|im_start|>system\\n' + lead }}
{%- if tools %}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<response>' + message.content + '</response><|im_end|>\\n' }}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<call>' }}{{ call.function | tojson(indent=2) }}{{- '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>' ~ '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# Begins with its first token, which the tokenizer would put there too, and with the date.
LLAMA = """\
{{- bos_token }}
{%- set state = namespace(system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% set state.system = message['content'] | trim %}{% endif %}
{%- endfor %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if strftime_now is defined %}Today: {{ strftime_now('%d %b %Y') }}{{ '\\n\\n' }}{% endif %}
{{- state.system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {%- if message['role'] not in ['user', 'assistant'] %}
        {{- raise_exception('nobody is called ' + message['role']) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# What else the two tell apart: blocks and their white space, scopes, undefined tokens, HTML's characters.
ODD = """
{% set who = 'nobody' %}
  {% for message in messages %}
    {% if loop.index > 4 %}{% break %}{% endif %}
    {% generation %}
      {% set who = message.role %}
{{ who | upper }}: {{ message | tojson }}
    {% endgeneration %}
  {% endfor %}
{{ who }}{{ eos_token }}{{ bos_token is defined }}{{ 1 if pad_token else 0 }}
{{- eot_token ~ image_token }}{{ tool_token is defined }}{{ custom_tools is defined }}
{{- documents is none }}{{ tools is defined }}
"""

# Marks its answers, each with its end; the first token is that of the text before them.
MARKED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- 'A:' }}{% generation %}{{ message.content or '' }}{{ eos_token }}{% endgeneration %}{{ '\\n' }}
    {%- else %}
        {{- bos_token + message.role + ':' + message.content + turn_token + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'A:' }}{% endif %}
"""

_TEXT = "the rule of a grid turns every input into its output, and a colour is a digit 0123456789 " * 3


def tokenizer(folder: Path, kind: str) -> Path:
    """A folder as Hugging Face has them, of one of `KINDS`."""
    specials, tokens, template = KINDS[kind]
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([_TEXT], trainer)
    made.add_special_tokens(list(specials))
    if first := tokens.get("bos_token"):
        pair = (first, made.token_to_id(first))
        made.post_processor = processors.TemplateProcessing(f"{first} $A", special_tokens=[pair])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if kind == "marked":  # as older repositories
        (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
        tokens = {}
    settings(folder, **tokens, chat_template=template)
    return folder


def settings(folder: Path, **values: Any) -> None:
    """Writes tokenizer_config.json."""
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(known | values))


KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any], Any]] = {
    "qwen": (
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None},
        QWEN,
    ),
    "llama": (
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>"},
        LLAMA,
    ),
    "marked": (
        ("<s>", "</s>"),
        {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "turn_token": {"content": "<s>"}},
        MARKED,
    ),
    "odd": (
        ("<stop>", "<image>"),
        {
            "eos_token": {"__type": "AddedToken", "content": "<stop>", "special": True},
            "extra_special_tokens": {"eot_token": "<stop>"},
            "image_token": "<image>",
            "tool_token": None,
        },
        [{"name": "tool_use", "template": "another"}, {"name": "default", "template": ODD}],
    ),
}
