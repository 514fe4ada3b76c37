# SPDX-License-Identifier: Apache-2.0
# Pages go to dist_man_MANS.
