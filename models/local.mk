# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	models/config.c \
	models/experts.c \
	models/mixers.c \
	models/model.c models/model.h \
	models/names.c \
	models/parts.h \
	models/quantization.c \
	models/rope.c \
	models/vision.c \
	models/safetensors.c models/safetensors.h \
	models/safetensors_share.c models/safetensors_write.c \
	models/tensor_set.c models/tensor_set.h \
	models/tensors.c \
	models/weights.c models/weights.h \
	models/weights_write.c

nobase_dist_pkgdata_DATA += \
	models/configs/afm-4.5b.json \
	models/configs/apertus-70b.json \
	models/configs/apertus-8b.json \
	models/configs/aya-expanse-8b.json \
	models/configs/burst-14b.json \
	models/configs/burst-7b.json \
	models/configs/byte-100m.json \
	models/configs/byte-1m.json \
	models/configs/codellama-13b.json \
	models/configs/codellama-34b.json \
	models/configs/codellama-7b.json \
	models/configs/codestral-22b.json \
	models/configs/command-r-plus.json \
	models/configs/command-r-v01.json \
	models/configs/command-r7b.json \
	models/configs/deepseek-coder-6.7b.json \
	models/configs/deepseek-llm-7b.json \
	models/configs/deepseek-r1-distill-qwen-1.5b.json \
	models/configs/deepseek-v2.json \
	models/configs/deepseek-v2-lite.json \
	models/configs/deepseek-v3.json \
	models/configs/ernie-4.5-0.3b.json \
	models/configs/falcon-7b.json \
	models/configs/falcon-h1-0.5b.json \
	models/configs/falcon3-10b.json \
	models/configs/falcon3-1b.json \
	models/configs/falcon3-3b.json \
	models/configs/falcon3-7b.json \
	models/configs/gemma-2-27b.json \
	models/configs/gemma-2-2b.json \
	models/configs/gemma-2-9b.json \
	models/configs/gemma-2b.json \
	models/configs/gemma-3-12b.json \
	models/configs/gemma-3-1b.json \
	models/configs/gemma-3-270m.json \
	models/configs/gemma-3-27b.json \
	models/configs/gemma-3-4b.json \
	models/configs/gemma-7b.json \
	models/configs/glm-4-32b.json \
	models/configs/glm-4-9b.json \
	models/configs/glm-4.5.json \
	models/configs/glm-4.5-air.json \
	models/configs/gpt-neox-20b.json \
	models/configs/gpt-oss-120b.json \
	models/configs/gpt-oss-20b.json \
	models/configs/gpt2.json \
	models/configs/gpt2-large.json \
	models/configs/gpt2-medium.json \
	models/configs/gpt2-xl.json \
	models/configs/granite-3.1-2b.json \
	models/configs/granite-3.1-8b.json \
	models/configs/granite-3.3-2b.json \
	models/configs/granite-3.3-8b.json \
	models/configs/granite-4.0-h-micro.json \
	models/configs/granite-4.0-h-small.json \
	models/configs/granite-4.0-h-tiny.json \
	models/configs/granite-4.0-micro.json \
	models/configs/kimi-k2.json \
	models/configs/lfm2-1.2b.json \
	models/configs/lfm2-350m.json \
	models/configs/lfm2-700m.json \
	models/configs/llama-2-13b.json \
	models/configs/llama-2-70b.json \
	models/configs/llama-2-7b.json \
	models/configs/llama-3-8b.json \
	models/configs/llama-3.1-405b.json \
	models/configs/llama-3.1-70b.json \
	models/configs/llama-3.1-8b.json \
	models/configs/llama-3.2-1b.json \
	models/configs/llama-3.2-3b.json \
	models/configs/llama-30b.json \
	models/configs/llama-4-maverick.json \
	models/configs/llama-4-scout.json \
	models/configs/llama-65b.json \
	models/configs/ministral-3-14b.json \
	models/configs/ministral-3-3b.json \
	models/configs/ministral-3-8b.json \
	models/configs/ministral-8b.json \
	models/configs/mistral-7b-v0.1.json \
	models/configs/mistral-7b-v0.2.json \
	models/configs/mistral-7b-v0.3.json \
	models/configs/mistral-large-123b.json \
	models/configs/mistral-nemo-12b.json \
	models/configs/mistral-small-24b.json \
	models/configs/mixtral-8x22b.json \
	models/configs/mixtral-8x7b.json \
	models/configs/moonlight-16b-a3b.json \
	models/configs/nemotron-h-8b.json \
	models/configs/nemotron-nano-9b-v2.json \
	models/configs/olmo-2-13b.json \
	models/configs/olmo-2-1b.json \
	models/configs/olmo-2-32b.json \
	models/configs/olmo-2-7b.json \
	models/configs/olmo-3-7b.json \
	models/configs/olmoe-1b-7b.json \
	models/configs/open-llama-3b.json \
	models/configs/phi-1.5.json \
	models/configs/phi-2.json \
	models/configs/phi-3-medium.json \
	models/configs/phi-3-mini.json \
	models/configs/phi-4.json \
	models/configs/phi-4-mini.json \
	models/configs/pythia-1.4b.json \
	models/configs/pythia-12b.json \
	models/configs/pythia-160m.json \
	models/configs/pythia-1b.json \
	models/configs/pythia-2.8b.json \
	models/configs/pythia-410m.json \
	models/configs/pythia-6.9b.json \
	models/configs/pythia-70m.json \
	models/configs/qwen-1.8b.json \
	models/configs/qwen-14b.json \
	models/configs/qwen-72b.json \
	models/configs/qwen-7b.json \
	models/configs/qwen1.5-14b.json \
	models/configs/qwen1.5-7b.json \
	models/configs/qwen1.5-moe-a2.7b.json \
	models/configs/qwen2.5-0.5b.json \
	models/configs/qwen2.5-1.5b.json \
	models/configs/qwen2.5-14b.json \
	models/configs/qwen2.5-32b.json \
	models/configs/qwen2.5-3b.json \
	models/configs/qwen2.5-72b.json \
	models/configs/qwen2.5-7b.json \
	models/configs/qwen2.5-vl-3b.json \
	models/configs/qwen2.5-vl-72b.json \
	models/configs/qwen2.5-vl-7b.json \
	models/configs/qwen3-0.6b.json \
	models/configs/qwen3-1.7b.json \
	models/configs/qwen3-14b.json \
	models/configs/qwen3-235b-a22b.json \
	models/configs/qwen3-30b-a3b.json \
	models/configs/qwen3-32b.json \
	models/configs/qwen3-4b.json \
	models/configs/qwen3-8b.json \
	models/configs/qwen3-next-80b-a3b.json \
	models/configs/seed-oss-36b.json \
	models/configs/smollm2-1.7b.json \
	models/configs/smollm2-135m.json \
	models/configs/smollm2-360m.json \
	models/configs/smollm3-3b.json \
	models/configs/solar-10.7b.json \
	models/configs/stablelm-2-1.6b.json \
	models/configs/stablelm-3b-4e1t.json \
	models/configs/starcoder2-15b.json \
	models/configs/starcoder2-3b.json \
	models/configs/starcoder2-7b.json \
	models/configs/tinyllama-1.1b.json \
	models/configs/yi-1.5-9b.json \
	models/configs/yi-34b.json \
	models/configs/yi-6b.json

cmocka_tests += tests/models/unit_models tests/models/unit_safetensors tests/models/unit_saving \
	tests/models/unit_weights
tests_models_unit_saving_SOURCES = tests/models/unit_saving.c tests/support/cases.c tests/support/cases.h
tests_models_unit_saving_LDFLAGS = $(AM_LDFLAGS) \
	-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
plain_tests += tests/models/fuzz_safetensors
