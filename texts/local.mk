# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	texts/facts.c texts/facts.h \
	texts/indexed_dataset.c texts/indexed_dataset.h \
	texts/jsonl.c texts/jsonl.h \
	texts/list.c texts/list.h \
	texts/npy.c texts/npy.h \
	texts/order.c texts/order.h \
	texts/packing.c texts/packing.h \
	texts/token_file.c texts/token_file.h \
	texts/tokens.c texts/tokens.h

cmocka_tests += tests/texts/unit_packing tests/texts/unit_tokens
tests_texts_unit_packing_SOURCES = tests/texts/unit_packing.c $(random_schedule)
