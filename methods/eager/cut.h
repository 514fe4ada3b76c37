/* SPDX-License-Identifier: Apache-2.0 */
/* Cut cross-entropy as an operation of autograd. */
#ifndef TDM_METHODS_EAGER_CUT_H
#define TDM_METHODS_EAGER_CUT_H

#include "methods/eager/eager.h"

/* The loss of hidden states [tokens, hidden] by the head's weight [vocabulary, hidden], without
 * logits. Saves both and fp32 numbers of each token and of each word. Inputs are borrowed, the
 * result is a new reference. */
struct tdm_eager_value *tdm_cut_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *hidden,
                                              struct tdm_eager_value *head);

#endif
