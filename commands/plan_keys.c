/* SPDX-License-Identifier: Apache-2.0 */
/* Lists for the help of `tidemark plan`: presets, and the keys of --set, which planner/set_keys.c
 * parses. */
#include "commands/plan_arguments.h"

static const struct tdm_help_entry keys[] = {
    {"order=layer-major|chunk-major", "the loop order", NULL},
    {"groups=N|N,N,...",
     "layers in each group: one size that repeats, or a list that adds up to the model's "
     "layers, from layer 0 up",
     NULL},
    {"chunk=N", "tokens in a chunk", NULL},
    {"inputs=PLACE", "where groups' inputs are kept: device or host", NULL},
    {"attention=none|held|kept",
     "attention outputs: recomputed, held by a group that runs forward again, or kept by the "
     "forward",
     NULL},
    {"kept=SET, held=SET",
     "what is kept, or held, with the attention outputs: attention_output (default), qkv "
     "(with q, and K, V kept), all (with gate and up) or normed (with the attention norm's output "
     "too)",
     NULL},
    {"kv=recompute|keep",
     "K and V between a layer's forward and its backward: made again by a sweep (layer-major, "
     "default there), or kept",
     NULL},
    {"kv_place=PLACE", "where they are kept", NULL},
    {"kv_gradients_place=PLACE", "where their gradients are in chunk-major order", NULL},
    {"kept_place=PLACE", "where kept attention outputs are", NULL},
    {"kept_from=N|N%", "chunk, or percent of the chunks, from which on they are kept", NULL},
    {"held_place=PLACE", "where groups hold what they hold", NULL},
    {"head_tile=N", "tokens in a tile of the LM head", NULL},
    {"head_tile_vocabulary=N",
     "entries of the vocabulary in a tile: fewer than all make the tile smaller and its "
     "logits twice (default: all)",
     "They are made once for the log-sum-exp of a row, and again for the gradients."},
    {"page=N",
     "tokens in a page of K and V (default 128), at most 64K and no more than a chunk has; a "
     "chunk takes whole pages",
     "One that pages do not divide takes more bytes than its tokens need; with --budget pages "
     "must divide it."},
    {"selector=KIND",
     "what queries see in the layers to which the model gives no window: dense (default), "
     "window, block, longformer, bigbird or dilated (top-k is what --budget asks for), with "
     "selector.NAME=N: window (tokens), block (tokens), global (tokens from the document's "
     "start, in whole pages), random (pages), dilation (pages), seed (default 0)",
     "window: the last selector.window tokens. block: their block of selector.block tokens of "
     "the document. longformer: a window, and the pages with the first selector.global tokens "
     "of the document. bigbird: the same, and selector.random pages, 1 to 4096, before the "
     "window, drawn by layer and query page from selector.seed. dilated: their own page, and "
     "selector.window tokens in whole pages, each selector.dilation pages, 1 to 4194304, "
     "before the last."},
    {"documents=N|file",
     "pack sequences from documents of N tokens, or from those that the tokens of the run "
     "have, which attention, RoPE's positions and targets do not cross (default: one document)",
     "With N the last document of a sequence is shorter if need be. With file they are those "
     "of the index of Megatron-LM's data, or of llm.c's, where each begins with the token "
     "that ends a text, which the token before it predicts; then memory and time are planned "
     "for sequences of one document, which take the most; not with selector=block. The last "
     "token of each document has no target, but for the last token of the sequence. In the "
     "schedule a sequence of several is {\"tokens\": N, \"documents\": [0, ...]} with the first "
     "token of each; a schedule that takes them from the tokens has \"documents\": \"file\"."},
    {"prefetch=N",
     "bodies of the loop nest by which fetches run ahead, 0 to 16 (default: 8K tokens of "
     "them, at least 2)",
     NULL},
    {"deal=snake|stripes|contiguous|greedy",
     "with --ranks: which rank has which chunks (default: snake, in turns from both ends)",
     "stripes deals them in the order of the ranks in every round. contiguous gives each rank one "
     "piece of the sequence; with causal attention the last then has most to do. greedy gives the "
     "chunk that sees most to the rank that has least to do so far, which is for packed "
     "documents."},
    {"exchange=gather|heads|ring|queries|heads+gather|heads+ring|heads+queries",
     "with --ranks: what ranks exchange for attention (default: what is faster)",
     "gather brings K and V of all chunks to every rank, and sums its shares of their gradients. "
     "heads gives every rank a part of the heads for all chunks. It takes a part of the memory for "
     "K and V and their gradients, and the ranks must divide the KV heads. ring passes K and V from "
     "rank to rank, one chunk at a time, once for each round of queries. Each rank has K and V and "
     "their gradients of its own chunks alone, for any number of ranks. The loss differs from that "
     "of one rank by rounding. queries does the same in the forward; in the backward K and V stay, "
     "and each round's queries go around once, with their gradients behind them. heads+gather is "
     "both: ranks in a row divide the heads, and those of all rows that have the same heads gather "
     "their K and V. It is tried where the ranks are more than the KV heads, or in several nodes. "
     "With heads+ring and heads+queries those that have the same heads pass K and V, or queries, "
     "from row to row."},
    {"exchange.heads=N",
     "with exchange=heads+gather, heads+ring or heads+queries: how many ranks divide the heads, 2 "
     "to 8 (default: as many as divide the KV heads and the ranks of a node)",
     NULL},
    {"weights=device|host|N",
     "where weights are at home: on the device, on the host and streamed through a ring, or N "
     "layers, from layer 0 up, on the device, with embedding and head",
     NULL},
    {"weights.sliced=B",
     "of several ranks: yes, each has its part of the weights at home, and all gather a unit when "
     "they use it; no, each has all (default: the faster that fits)",
     NULL},
    {"weights.embedding=PLACE, weights.head=PLACE", "where those of embedding and head are", NULL},
    {"master=, moments=, gradients=",
     "the same of these, with .embedding and .head, too (gradients if they stay)",
     "Gradients stay with optimizer.when=end and with the optimizer none."},
    {"rings.NAME=N",
     "slots of the staging rings on the device, 1 to 16; NAME: weights (layers, default 2), "
     "optimizer (layers, default 1), stashed (chunks, default 2), kv (rows of K and V on the "
     "host in chunk-major order, default 2)",
     "The ring optimizer has layers whose master or moments are on the host; stashed has chunks on "
     "their way to the host."},
    {"rings.host_gradients=N",
     "with updates on the host: slots there for gradients of layers, 1 to 16 (default: up to 4, "
     "where host memory allows)",
     "With one slot a layer's gradient is sent when the host has updated the layer before."},
    {"rings.ahead=N",
     "1: K and V that are made again are made while the layer above goes backward, of inputs that "
     "come from the host; 0: after it",
     "In layer-major order, of one rank, with weights of two layers on the device."},
    {"rings.gradients=N",
     "of several ranks: layers' gradients on the device at a time, 1 or 2 (default: the faster that "
     "fits)",
     "With 2, the gradient of a layer is summed over the ranks while the next layer goes "
     "backward."},
    {"rings.gather=N",
     "there, in layers with page lists: attention gathers the pages that its lists name from "
     "the host, into room for N chunks of them, up to 4096 (default 0: whole chunks are "
     "fetched)",
     "It is of chunk-major order with K and V on the host. The room must have at least what "
     "one query page lists: sizes of chunks without such room are not searched."},
    {"dtypes.NAME=bf16|fp32",
     "NAME: weights, activations, kv, kv_gradients, gradients, logits; moments and "
     "master=fp32|remainder16|none, as far as the optimizer leaves a choice",
     NULL},
    {"optimizer.NAME=X",
     "NAME: learning_rate, beta1, beta2, epsilon, weight_decay, warmup_steps; after them "
     "optimizer.schedule=constant|linear|cosine to final_learning_rate (default 0) over "
     "decay_steps; clip_norm (default 1)",
     "Defaults: learning_rate 3e-4, beta1 0.9, beta2 0.95, epsilon 1e-8 (a normal number of "
     "fp32), weight_decay 0.1, constant. The rate rises linearly to step warmup_steps, which is 0 "
     "by default."},
    {"optimizer.decayed=KINDS",
     "which tensors weight_decay is of: some of matrices, embeddings, norms, biases, joined by + "
     "(default matrices+embeddings), all or none",
     "A head of its own is a matrix. torch.optim.AdamW of all parameters decays all; recipes with "
     "two groups of parameters leave out norms and biases, and some the embeddings too."},
    {"optimizer.when=layer|end",
     "update a layer as soon as its gradient is complete (default; in chunk-major order the "
     "group's), or all after the backward",
     "The first way few gradients exist together."},
    {"optimizer.on=device|host",
     "where what is at home on the host is updated: on the device, to which it comes, or by "
     "the host's cores, to which gradients go (default: device, unless host is 0.5% faster)",
     "With host the weights, master and moments of a unit must be on the host together. The "
     "same gradients give the same weights, to the bit."},
};

static struct tdm_help_entry nth_key(size_t index)
{
    return index < sizeof(keys) / sizeof(keys[0]) ? keys[index] : (struct tdm_help_entry){NULL};
}

static struct tdm_help_entry nth_preset(size_t index)
{
    const struct tdm_preset *preset = &tdm_presets()[index];
    return (struct tdm_help_entry){.term = preset->name, .help = preset->summary};
}

const struct tdm_help_list tdm_plan_lists[] = {
    {"Presets", nth_preset}, {"Keys of --set", nth_key}, {NULL, NULL}};
