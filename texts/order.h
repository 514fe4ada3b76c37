/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the steps of a run read a text. */
#ifndef TDM_TEXTS_ORDER_H
#define TDM_TEXTS_ORDER_H

enum tdm_text_order {
    TDM_TEXT_RANDOM,   /* each piece begins at a random place */
    TDM_TEXT_SHUFFLED, /* each part of the text once, in random order, before any comes again */
    TDM_TEXT_PACKED,   /* the same for sequences that whole documents are packed into */
    TDM_TEXT_ORDERS
};

/* "random", "shuffled", "packed"; NULL beyond. */
const char *tdm_text_order_name(enum tdm_text_order order);

#endif
