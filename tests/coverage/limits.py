"""What has to be reached by tests: all branches of the code that checks input, most other lines."""

from __future__ import annotations

NATIVE = "flashllm/core/native/"
CHECKING_NATIVE = tuple(
    NATIVE + name
    for name in (
        "base/checked.h",
        "cache/slot_table.cpp",
        "base/buffer.cpp",
        "io/bundle_checks.cpp",
        "io/read_plan.cpp",
        "kernels/attention.cpp",
        "kernels/attention_of_each.cpp",
        "kernels/attention_of_many.cpp",
        "kernels/dtype.cpp",
        "kernels/kernels.cpp",
        "kernels/routing.cpp",
        "kernels/rows.cpp",
        "kernels/rows.h",
        "kernels/selection.cpp",
        "kernels/token_rows.cpp",
    )
)
OTHER_INSTRUCTION_SETS = (
    "kernels_avx2.cpp",
    "kernels_avx512.cpp",
    "kernels_avxvnni.cpp",
    "kernels_neon.cpp",
)
"""Only some processors run them, and they are compared with the scalar ones where they are."""

CHECKING_PYTHON = (
    "flashllm/batch/answer_lines.py",
    "flashllm/batch/input_rows.py",
    "flashllm/batch/journal.py",
    "flashllm/batch/openai_row.py",
    "flashllm/batch/row.py",
    "flashllm/batch/row_line.py",
    "flashllm/conversations/exchange.py",
    "flashllm/conversations/rows.py",
    "flashllm/engine/hot_set.py",
    "flashllm/flash/layout.py",
    "flashllm/flash/links.py",
    "flashllm/flash/manifest.py",
    "flashllm/flash/neuron_order.py",
    "flashllm/flash/safetensors_file.py",
    "flashllm/flash/skewing_file.py",
    "flashllm/flash/tensor_table.py",
    "flashllm/hardware/machine_profile.py",
    "flashllm/kv_cache/kept_directory.py",
    "flashllm/kv_cache/kept_file.py",
    "flashllm/planning/batch/machine.py",
    "flashllm/planning/batch/policy.py",
    "flashllm/spec/checks.py",
    "flashllm/spec/experts.py",
    "flashllm/spec/model.py",
    "flashllm/spec/rope.py",
    "flashllm/untrusted/strict_fields.py",
    "flashllm/untrusted/strict_json.py",
    "flashllm/untrusted/terminal.py",
    "tools/convert/families/config.py",
    "tools/convert/families/gguf_config.py",
    "tools/convert/families/rotary.py",
    "tools/convert/output/predictor_files.py",
    "tools/convert/source/checkpoint.py",
    "tools/convert/source/fp8_blocks.py",
    "tools/convert/source/gguf_files.py",
    "tools/convert/source/gguf_header.py",
    "tools/convert/source/gguf_shard.py",
    "tools/convert/source/gguf_types.py",
    "tools/convert/source/packed_awq.py",
    "tools/convert/source/packed_int4.py",
    "tools/convert/source/paired_blocks.py",
    "tools/convert/source/pickled.py",
)

OTHER_LINES_PERCENT = 95.0
