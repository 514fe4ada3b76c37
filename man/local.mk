# SPDX-License-Identifier: Apache-2.0
# Pages go to dist_man_MANS.
dist_man_MANS += man/tidemark.1

script_tests += tests/commands/man-options
