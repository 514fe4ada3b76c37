/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the orders of a text. */
#include "texts/order.h"

#include <stddef.h>

const char *tdm_text_order_name(enum tdm_text_order order)
{
    static const char *const names[] = {"random", "shuffled", "packed"};
    return (unsigned)order < TDM_TEXT_ORDERS ? names[order] : NULL;
}
