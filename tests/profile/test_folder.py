"""What lies beside the weights: chat template, tokenizer, sampling defaults, licence. All of it hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.home import configs
from tasks.profile.chat_formats import chat_formats, reasoning_format, tool_format
from tasks.profile.folder import NO_FOLDER, folder_facts

PARSERS = json.loads((Path(__file__).parent / "data/engine-parsers.json").read_text())

#: Lines with the marks of published templates: (name, text, tool calls, their parser, reasoning, its parser).
TEMPLATES = [
    ("DeepSeek-V4", "{{ '<｜Assistant｜>' }}<think></think>{% if tools %}<｜DSML｜tool_calls>\n<｜DSML｜invoke name=",
     "deepseek_v4", "deepseek_v4", "think_tags", "deepseek_v4"),
    ("DeepSeek-V3.2", "{%- set thinking = false %}<｜Assistant｜></think>{% if tools %}"
     "<｜DSML｜function_calls>{{ tool_calls }}", "deepseek_v3.2", "deepseek_v32", "think_tags", "deepseek_v3"),
    ("DeepSeek-V3.1", "{%- set thinking = false %}{{'<｜Assistant｜>'}}</think>"
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ tool['function']['name'] }}<｜tool▁sep｜>",
     "deepseek_v3.1", "deepseek_v31", "think_tags", "deepseek_v3"),
    ("DeepSeek-R1", "{{'<｜Assistant｜><think>\\n'}}{% set content = content.split('</think>')[-1] %}"
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n",
     "deepseek_v3", "deepseek_v3", "think_tags", "deepseek_r1"),
    ("Kimi-K2", "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
     "kimi_k2", "kimi_k2", None, None),
    ("Kimi-K2-Thinking", "<think></think><|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
     "kimi_k2", "kimi_k2", "think_tags", "kimi_k2"),
    ("Kimi-K3", "{{- '<|open|>' + tag -}}{% if tools %}{{- '<|sep|>' -}}", "kimi_k3", "kimi_k3", "kimi_k3", "kimi_k3"),
    ("GLM-4.5", "[gMASK]<sop>{% if tools %}<tool_call>{{ name }}<arg_key>{{ k }}</arg_key><think></think>",
     "glm", "glm47", "think_tags", "glm45"),
    ("Ling-3.0", "<role>SYSTEM</role>{% if tools %}<tool_call>{{ name }}<arg_key>k</arg_key><think></think>",
     "ling3", "ling3", "think_tags", "ling3"),
    ("Laguna", "<system><available_tools>{{ tools }}</available_tools><tool_call>n<arg_key>k</arg_key></think>",
     "laguna", "poolside_v1", "think_tags", "poolside_v1"),
    ("Hunyuan-V3", "{%- set begin = '<tool_calls{}>'.format(HYTK) %}{%- set think = '<think{}>'.format(HYTK) %}",
     "hunyuan_v3", "hy_v3", "hunyuan_v3", "hy_v3"),
    ("Qwen2.5", "<|im_start|>{% if tools %}<tools></tools><tool_call>\n{\"name\": <function-name>}", "hermes", "hermes",
     None, None),
    ("Qwen3", "<|im_start|>{% if tools %}<tools></tools><tool_call>{% if enable_thinking %}<think>\n\n</think>",
     "hermes", "hermes", "think_tags", "qwen3"),
    ("Qwen3-Coder", "<|im_start|>{% if tools %}<tool_call>\n<function=example_function_name>\n<parameter=p>",
     "qwen3_xml", "qwen3_xml", None, None),
    ("Nemotron-3", "<|im_start|>{% if truncate_history_thinking %}</think>{% if tools %}<tool_call>\n<function=n>",
     "qwen3_xml", "qwen3_xml", "think_tags", "nemotron_v3"),
    ("Nemotron-Nano-2", "<AVAILABLE_TOOLS>{{ tools }}</AVAILABLE_TOOLS><TOOLCALL>[]</TOOLCALL><think></think>",
     "nemotron_json", None, "think_tags", None),
    ("MiniMax-M2", "]~b]system{% if tools %}<minimax:tool_call>\n<invoke name=\"n\"><think>\n</think>",
     "minimax_m2", "minimax_m2", "think_tags", "minimax_m2"),
    ("MiniMax-M3", "{%- set ns_token = ']<]minimax[>[' %}{%- set begin = ns_token ~ '<tool_call>' %}<mm:think>",
     "minimax_m3", "minimax_m3", "minimax_m3", "minimax_m3"),
    ("MiniMax-M1", "<beginning_of_sentence>{% if tools %}<tool_calls>\n{\"name\": }\n</tool_calls>",
     "tool_calls_json", None, None, None),
    ("gpt-oss", "<|start|>assistant<|channel|>analysis<|message|>{% if tools %}<|call|>", "harmony", "openai",
     "harmony", "openai_gptoss"),
    ("Llama-3.1", "<|start_header_id|>ipython<|end_header_id|>{% if tools %}<|python_tag|>{\"parameters\": ",
     "llama3_json", "llama3_json", None, None),
    ("Llama-3.1, by the engine", "<|start_header_id|>ipython<|end_header_id|>{% if tools %}'\"parameters\": '",
     "llama3_json", "llama3_json", None, None),
    ("Functionary-3.1", "<|start_header_id|>{% if tools %}<|python_tag|><function=example>", "functionary", None,
     None, None),
    ("Llama-4", "<|header_start|>ipython<|header_end|><|python_start|>{% if tools %}'\"parameters\": '",
     "llama4_json", "llama4_json", None, None),
    ("Llama-4, by the engine", "<|header_start|>{% if tools %}exact format: [func_name1(param1=value1)]",
     "llama4_pythonic", "llama4_pythonic", None, None),
    ("Llama-3.2, by the engine", "<|start_header_id|>{% if tools %}exact format: [func_name1(param1=value1)]",
     "pythonic", "pythonic", None, None),
    ("Gemma-4", "<|turn>model\n<|channel>thought\n<channel|>{% if tools %}<|tool_call>call:n{}<tool_call|>",
     "gemma4", "gemma4", "gemma4", "gemma4"),
    ("Mistral-Small-3", "[INST]{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", "mistral", None, None),
    ("Ministral-3-Reasoning", "[THINK][/THINK]{% if tools %}[TOOL_CALLS]", "mistral", "mistral", "mistral", "mistral"),
    ("Seed-OSS", "<seed:think>{% if tools %}<seed:tool_call>\n<function=n>", "seed", "seed_oss", "seed", "seed_oss"),
    ("Granite-3.3", "<|start_of_role|>{% if tools %}<|tool_call|><think></think>", "granite", "granite",
     "think_tags", None),
    ("Granite-4", "<|start_of_role|>{% if tools %}<tool_call>\n{\"name\":", "granite4", "granite4", None, None),
    ("Phi-4-mini", "<|tool|>{{ tools }}<|/tool|><|tool_call|>", "phi4_mini", "phi4_mini_json", None, None),
    ("Apertus", "<|tools_prefix|>[{{ tools }}]<|tools_suffix|>", "apertus", "apertus", None, None),
    ("GigaChat-3.1", "<tools><|function_call|>{\"name\":", "gigachat3", "gigachat3", None, None),
    ("LFM2", "List of tools: <|tool_list_start|>[<|tool_list_end|>", "lfm2", "lfm2", None, None),
    ("LFM2.5", "{{ tools }}<|tool_call_start|>[n()]<|tool_call_end|></think>", "lfm2", "lfm2", "think_tags", None),
    ("Command-R7B", "<|START_THINKING|><|START_ACTION|>[{\"tool_call_id\": ", "cohere_actions", None, "cohere", None),
    ("MiniCPM5", "<tools><function name=\"n\"><param><tool_sep></think>", "minicpm5", "minicpm5", "think_tags", None),
    ("Muse-Glimmer", "<tool><atem:function_calls>", "muse_glimmer", "muse_glimmer", None, None),
    ("Solar-Open", "<|tool_call:begin|><|tool_call:name|>", "solar", None, None, None),
    ("Kimi-VL-Thinking", "◁think▷{{ message }}◁/think▷", None, None, "kimi_thinking", None),
    ("SmolLM3", "<|im_start|>{% if enable_thinking %}<think>\n\n</think>", None, None, "think_tags", None),
    ("QwQ opened by the template", "<|im_start|>assistant\n<think>\n", None, None, "think_tags", None),
    ("Gemma-2", "<start_of_turn>{{ role }}", None, None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "tools", "tool_parser", "reasoning", "parser"), [row[1:] for row in TEMPLATES],
    ids=[row[0] for row in TEMPLATES],
)  # fmt: skip
def test_formats_by_the_marks_of_published_templates(
    template: str, tools: str | None, tool_parser: str | None, reasoning: str | None, parser: str | None
) -> None:
    found, thought = tool_format(template), reasoning_format(template)
    assert (found.name if found else None, found.vllm if found else None) == (tools, tool_parser)
    assert (thought.name if thought else None, thought.vllm if thought else None) == (reasoning, parser)


def test_every_entry_is_found_by_some_template() -> None:
    texts = [row[1] for row in TEMPLATES]
    unseen = {id(entry) for entry in (*chat_formats().tools, *chat_formats().reasoning)}
    for text in texts:
        unseen -= {id(tool_format(text)), id(reasoning_format(text))}
    assert [entry for entry in (*chat_formats().tools, *chat_formats().reasoning) if id(entry) in unseen] == []


@pytest.mark.parametrize("what", ["tools", "reasoning"])
def test_the_engine_has_every_parser_that_is_named(what: str) -> None:
    named = {entry.vllm for entry in getattr(chat_formats(), what) if entry.vllm}
    assert named
    assert named <= set(PARSERS[what])


def test_the_file_has_no_key_that_is_not_read() -> None:
    held = yaml.safe_load((configs() / "chat-formats.yaml").read_text())
    assert set(held) == {"tools", "reasoning"}


def put(root: Path, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    (root / name).write_text(text)


def facts(root: Path) -> dict[str, Any]:
    found, _ = folder_facts(root)
    assert set(found) == set(NO_FOLDER)
    return found


HERMES = "{% if tools %}<tool_call>{% endif %}"


def test_a_whole_folder(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer.json", {})
    put(tmp_path, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>", "pad_token": None, "chat_template": HERMES, "added_tokens_decoder": {"0": {}, "1": {}},
    })  # fmt: skip
    put(tmp_path, "generation_config.json", {"temperature": 0.6, "top_k": 20, "do_sample": True, "bos_token_id": 1})
    put(tmp_path, "README.md", "---\nlanguage:\n- en\nlicense: apache-2.0\ntags: [a]\n---\n# A model\nlicense: other\n")
    put(tmp_path, "LICENSE", "text")
    found, warnings = folder_facts(tmp_path)
    assert found == {
        "chat_template": True, "tool_format": {"name": "hermes", "vllm": "hermes"}, "reasoning_format": None,
        "tokenizer": "tokenizer.json", "tokenizer_class": "PreTrainedTokenizerFast",
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"}, "added_tokens": 2,
        "generation": {"temperature": 0.6, "top_k": 20, "do_sample": True},
        "licence": "LICENSE", "licence_name": "apache-2.0",
    }  # fmt: skip
    assert warnings == []


def test_an_empty_folder_says_what_is_absent(tmp_path: Path) -> None:
    found, warnings = folder_facts(tmp_path)
    assert found["chat_template"] is False
    assert [found[key] for key in ("tokenizer", "licence", "licence_name", "generation", "tool_format")] == [None] * 5
    assert [w for w in warnings if "chat template" in w]
    assert [w for w in warnings if "tokenizer" in w]
    assert [w for w in warnings if "licence" in w]


@pytest.mark.parametrize(
    ("listed", "fitting"),
    [
        ([{"name": "default", "template": HERMES}, {"name": "rag", "template": "{{ documents }}"}], True),
        ([{"name": "rag", "template": "{{ documents }}"}, {"name": "default", "template": HERMES}], True),
        ([{"name": "tool_use", "template": HERMES}], True),
        ([{"name": "default", "template": 5}], False),
        ([HERMES], False),
        ([], False),
        ({"default": HERMES}, False),
        (7, False),
        ("", False),
    ],
    ids=str,
)
def test_templates_in_a_list(tmp_path: Path, listed: Any, fitting: bool) -> None:
    put(tmp_path, "tokenizer_config.json", {"chat_template": listed})
    found = facts(tmp_path)
    assert found["chat_template"] is fitting
    assert (found["tool_format"] or {}).get("name") == ("hermes" if fitting else None)


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer_config.json", {"chat_template": "{% if tools %}[TOOL_CALLS]"})
    assert facts(tmp_path)["tool_format"] == {"name": "mistral", "vllm": "mistral"}
    put(tmp_path, "chat_template.json", {"chat_template": "{% if tools %}<|tool_list_start|>"})
    assert facts(tmp_path)["tool_format"] == {"name": "lfm2", "vllm": "lfm2"}
    put(tmp_path, "chat_template.jinja", HERMES)
    assert facts(tmp_path)["tool_format"] == {"name": "hermes", "vllm": "hermes"}


def test_a_way_of_calling_tools_that_is_not_known_is_said(tmp_path: Path) -> None:
    put(tmp_path, "chat_template.jinja", "{% if tools %}«call»{{ tools }}{% endif %}")
    found, warnings = folder_facts(tmp_path)
    assert found["tool_format"] is None
    assert any("how it writes calls is not known" in warning for warning in warnings)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "chat_template.json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "NaN", '{"a": ' * 2000, '{"a": 1, "a": 2}', '"x"', "\x00"])
def test_a_broken_json_is_a_warning_that_names_it(tmp_path: Path, name: str, text: str) -> None:
    put(tmp_path, name, text)
    found, warnings = folder_facts(tmp_path)
    assert found["special_tokens"] == {}
    assert any(warning.startswith(name) for warning in warnings)


@pytest.mark.parametrize(
    "held",
    [
        {"bos_token": 5, "eos_token": ["</s>"], "pad_token": {"content": {"content": "x"}}, "tokenizer_class": ["x"]},
        {"added_tokens_decoder": [1, 2], "tokenizer_class": None, "unk_token": {}},
        {"bos_token": {"text": "<s>"}, "added_tokens_decoder": "many"},
    ],
    ids=str,
)
def test_a_tokenizer_config_of_other_kinds_gives_nothing(tmp_path: Path, held: dict[str, Any]) -> None:
    put(tmp_path, "tokenizer_config.json", held)
    found = facts(tmp_path)
    assert (found["special_tokens"], found["tokenizer_class"], found["added_tokens"]) == ({}, None, None)


def test_sampling_defaults_of_other_kinds_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "generation_config.json", {"temperature": "hot", "top_p": [0.9], "top_k": None, "min_p": 0.05})
    assert facts(tmp_path)["generation"] == {"min_p": 0.05}


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("---\nlicense: 'apache-2.0'\n---", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: llama3.1\nlicense_link: LICENSE\n---\n", "llama3.1"),
        ("---\nlicense_name: glm-4\nlicense: other\n---\n", "glm-4"),
        ("---\nlicense:\n---\n", None),
        ("---\nlicense:\n- mit\n- apache-2.0\n---\n", None),
        ("# license: mit\n", None),
        ("---\ntags: x\n---\nlicense: mit\n", None),
        ("---\nlicense: mit\n", None),
        ("", None),
    ],
    ids=repr,
)
def test_the_licence_of_a_model_card(tmp_path: Path, card: str, name: str | None) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert facts(tmp_path)["licence_name"] == name


def test_a_card_that_is_no_text_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff\xfe\x00")
    assert facts(tmp_path)["licence_name"] == "mit"


@pytest.mark.parametrize("name", ["LICENSE", "LICENCE.md", "license.txt", "COPYING", "MODEL_LICENSE.txt"])
def test_licence_files(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, "text")
    assert facts(tmp_path)["licence"] == name


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    put(tmp_path, "outside.json", {"tokenizer_class": "Stolen", "chat_template": HERMES})
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer_config.json").symlink_to(outside)
    (model / "chat_template.jinja").symlink_to(outside)
    found, warnings = folder_facts(model)
    assert (found["tokenizer_class"], found["chat_template"]) == (None, False)
    assert {warning.split(" ")[0] for warning in warnings} >= {"tokenizer_config.json", "chat_template.jinja"}


def test_python_code_is_named_and_not_run(tmp_path: Path) -> None:
    put(tmp_path, "modeling_x.py", "raise SystemExit(3)")
    assert any("modeling_x.py" in warning for warning in folder_facts(tmp_path)[1])
