/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the methods oomb, seco and longlora, for the table of methods. */
#ifndef TDM_METHODS_CHUNK_METHOD_H
#define TDM_METHODS_CHUNK_METHOD_H

#include "methods/method.h"

void tdm_oomb_preset(struct tdm_method_settings *settings);
void tdm_seco_preset(struct tdm_method_settings *settings);
void tdm_longlora_preset(struct tdm_method_settings *settings);

/* Tokens that a query of a layer sees, itself included, if the layer has a window; 0: all. */
uint64_t tdm_chunk_window(const struct tdm_chunk_settings *settings, const struct tdm_model *model,
                          uint32_t layer);

enum tdm_status tdm_oomb_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err);
enum tdm_status tdm_seco_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err);
enum tdm_status tdm_longlora_check(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err);

void tdm_oomb_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost);
void tdm_seco_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost);
void tdm_longlora_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                       struct tdm_method_cost *cost);

#endif
