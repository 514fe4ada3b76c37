# SPDX-License-Identifier: Apache-2.0
#
# Colours and labels of categories, of groups of op kinds and of phases: the same in every picture.
#
# The palette of Okabe and Ito (2008), which survives colour blindness, extended for the rarer
# categories by dark tones of Tol's muted scheme and greys, which differ from it in lightness. Groups of ops are
# browns, from dark to light: no colour of a category means an op too.
# Names are those of the program with a prefix, so that value("colour_" . name) finds them.

colour_runtime       = "#B8B8B8"
colour_weights       = "#0072B2" # blue
colour_optimizer     = "#CC79A7" # reddish purple
colour_gradients     = "#D55E00" # vermillion
colour_residuals     = "#56B4E9" # sky blue
colour_kv            = "#009E73" # bluish green
colour_kv_gradients  = "#F0E442" # yellow
colour_logits        = "#882255" # wine
colour_workspace     = "#E69F00" # orange
colour_staging       = "#332288" # indigo
colour_communication = "#117733" # dark green
colour_allocator     = "#5A5A5A"

label_runtime       = "runtime (modelled)"
label_weights       = "weights"
label_optimizer     = "optimizer"
label_gradients     = "gradients"
label_residuals     = "residuals"
label_kv            = "KV"
label_kv_gradients  = "KV gradients"
label_logits        = "logits"
label_workspace     = "workspace"
label_staging       = "staging"
label_communication = "communication"
label_allocator     = "allocator"

colour_ops_product   = "#6B4A2B"
colour_ops_attention = "#C9A87C"
colour_ops_head      = "#2E1C0C"
colour_ops_optimizer = "#9C4A1A"
colour_ops_copy      = "#A08468"
colour_ops_team      = "#D9A441"
colour_ops_other     = "#E8D9C0"

label_ops_product   = "product"
label_ops_attention = "attention"
label_ops_head      = "head"
label_ops_optimizer = "optimizer"
label_ops_copy      = "copy"
label_ops_team      = "exchange of ranks"
label_ops_other     = "other"

colour_phase_forward   = "#EDEDED"
colour_phase_backward  = "#D4D4D4"
colour_phase_optimizer = "#EDEDED"

colour_text  = "#202020"
colour_quiet = "#606060"
colour_grid  = "#E4E4E4"
colour_idle  = "#F2F2F2"
colour_limit = "#000000"
colour_allocated = "#202020" # a line
