# SPDX-License-Identifier: Apache-2.0
# Pages and pictures that travel with the sources go to EXTRA_DIST.
EXTRA_DIST += docs/adding-a-method.md docs/architecture.md docs/contributing.md docs/formats.md docs/library.md docs/lowering.md docs/memory.md \
	docs/methods.md docs/planner.md docs/results.md docs/serving.md docs/testing.md docs/tokens.md docs/training.md
EXTRA_DIST += docs/prediction.schema.json
EXTRA_DIST += docs/compare.png docs/events.png docs/frontier.png docs/memory.png docs/retrieval.png docs/sweep.png docs/timeline.png
