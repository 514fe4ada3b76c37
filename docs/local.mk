# SPDX-License-Identifier: Apache-2.0
# Pages and pictures that travel with the sources go to EXTRA_DIST.
EXTRA_DIST += docs/lowering.md docs/memory.md docs/methods.md docs/tokens.md
EXTRA_DIST += docs/compare.png docs/events.png docs/memory.png docs/retrieval.png docs/selectors.png docs/sweep.png docs/timeline.png
