/* SPDX-License-Identifier: Apache-2.0 */
/* A model that a file of --from describes by its sizes: Megatron-LM's arguments. */
#ifndef TDM_COMMANDS_FROM_SHAPE_H
#define TDM_COMMANDS_FROM_SHAPE_H

#include "commands/from_rules.h"
#include "models/model.h"

/* Notes in r->from what Megatron-LM's arguments say of the model, as a config.json has it, or what
 * they lack. `arguments` is an object of options, which keep their dashes. */
enum tdm_status tdm_from_read_shape(const struct tdm_from_reading *r, const json_t *arguments);

/* Does a file describe a whole model? */
bool tdm_from_has_shape(const struct tdm_from *from);

/* Makes that model. The caller owns it. What was assumed of it is added to what is not modelled. */
enum tdm_status tdm_from_make_model(struct tdm_from *from, struct tdm_model **model,
                                    struct tdm_error *err);

/* TDM_INPUT if a file says another size than `model` has: names the file, the option and both. */
enum tdm_status tdm_from_compare(const struct tdm_from *from, const struct tdm_model *model,
                                 struct tdm_error *err);

#endif
