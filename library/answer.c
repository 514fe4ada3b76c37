/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of commands, for programs that link libtidemark. The commands' own functions give
 * them; here their words, errors and handles become those of tidemark.h. */
#include "config.h"
#include "library/tidemark.h"

#include "base/json.h"
#include "commands/answers.h"
#include "library/parts.h"

#include <assert.h>
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORDS 10000 /* of a call's options; the rest is not read */

/* The two lists of statuses are one. */
static_assert((int)TIDEMARK_USAGE == (int)TDM_USAGE && (int)TIDEMARK_INPUT == (int)TDM_INPUT &&
                  (int)TIDEMARK_INFEASIBLE == (int)TDM_INFEASIBLE &&
                  (int)TIDEMARK_NO_MEMORY == (int)TDM_NO_MEMORY &&
                  (int)TIDEMARK_NO_DEVICE == (int)TDM_NO_DEVICE &&
                  (int)TIDEMARK_IO == (int)TDM_IO &&
                  (int)TIDEMARK_INTERRUPTED == (int)TDM_INTERRUPTED &&
                  (int)TIDEMARK_INTERNAL == (int)TDM_INTERNAL,
              "statuses differ");

struct tidemark_answer {
    json_t *root;
    char *text;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tdm_library_lock(void)
{
    pthread_mutex_lock(&lock);
}

void tdm_library_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

enum tidemark_status tdm_library_tell(enum tdm_status status, const struct tdm_error *err,
                                      struct tidemark_error *error)
{
    static_assert(sizeof(error->message) == sizeof(err->message) &&
                      sizeof(error->hint) == sizeof(err->hint),
                  "texts of errors differ");
    if (error != NULL && status == TDM_OK) {
        *error = (struct tidemark_error){.status = TIDEMARK_OK};
    } else if (error != NULL) {
        error->status = (enum tidemark_status)status;
        memcpy(error->message, err->message, sizeof(error->message));
        memcpy(error->hint, err->hint, sizeof(error->hint));
    }
    return (enum tidemark_status)status;
}

const char *tidemark_version(void)
{
    return PACKAGE_VERSION;
}

/* Makes the handle; takes the reference of `root`, which is NULL if memory ran out. The status is
 * TDM_OK or TDM_INFEASIBLE before, and stays unless there is no memory. */
static enum tdm_status make(json_t *root, enum tdm_status status, tidemark_answer **answer,
                            struct tdm_error *err)
{
    tidemark_answer *made = root == NULL ? NULL : calloc(1, sizeof(*made));
    char *text = made == NULL ? NULL : tdm_json_dump(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (text == NULL) {
        json_decref(root);
        free(made);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the answer");
    }
    made->root = root;
    made->text = text;
    *answer = made;
    return status;
}

typedef enum tdm_status (*named_answer)(const char *name, json_t **root, struct tdm_error *err);

static enum tidemark_status ask_by_name(named_answer ask, const char *name,
                                        tidemark_answer **answer, struct tidemark_error *error)
{
    struct tdm_error err = {0};
    json_t *root = NULL;
    tdm_library_lock();
    enum tdm_status status = ask(name, &root, &err);
    if (status == TDM_OK)
        status = make(root, status, answer, &err);
    tdm_library_unlock();
    return tdm_library_tell(status, &err, error);
}

enum tidemark_status tidemark_models(const char *model, tidemark_answer **answer,
                                     struct tidemark_error *error)
{
    return ask_by_name(tdm_models_answer, model, answer, error);
}

enum tidemark_status tidemark_machines(const char *machine, tidemark_answer **answer,
                                       struct tidemark_error *error)
{
    return ask_by_name(tdm_machines_answer, machine, answer, error);
}

/* The command line that a user would type, in one allocation. The words are not copied:
 * getopt_long() moves the pointers alone. NULL: no memory. */
static char **make_words(const char *command, const char *model, const char *const *options,
                         int *count)
{
    int given = 0;
    while (options != NULL && options[given] != NULL && given < MOST_WORDS)
        given++;
    char **words = calloc((size_t)given + 4, sizeof(*words));
    *count = 0;
    if (words == NULL)
        return NULL;
    words[(*count)++] = (char *)command;
    for (int i = 0; i < given; i++)
        words[(*count)++] = (char *)options[i];
    if (model != NULL) {
        words[(*count)++] = (char *)"--";
        words[(*count)++] = (char *)model;
    }
    return words;
}

typedef enum tdm_status (*worded_answer)(int argc, char **argv, json_t **root,
                                         struct tdm_error *err);

static enum tidemark_status ask_by_words(worded_answer ask, const char *command, const char *model,
                                         const char *const *options, tidemark_answer **answer,
                                         struct tidemark_error *error)
{
    struct tdm_error err = {0};
    json_t *root = NULL;
    int count;
    char **words = make_words(command, model, options, &count);
    if (words == NULL)
        return tdm_library_tell(tdm_fail(&err, TDM_NO_MEMORY, "out of memory for the options"),
                                &err, error);
    tdm_library_lock();
    /* of the program, which may read its own options with getopt */
    const int kept_optind = optind, kept_opterr = opterr, kept_optopt = optopt;
    char *kept_optarg = optarg;
    enum tdm_status status = ask(count, words, &root, &err);
    optind = kept_optind;
    opterr = kept_opterr;
    optopt = kept_optopt;
    optarg = kept_optarg;
    if (status == TDM_OK || status == TDM_INFEASIBLE)
        status = make(root, status, answer, &err);
    tdm_library_unlock();
    free(words);
    return tdm_library_tell(status, &err, error);
}

enum tidemark_status tidemark_plan(const char *model, const char *const *options,
                                   tidemark_answer **answer, struct tidemark_error *error)
{
    return ask_by_words(tdm_plan_answer, "plan", model, options, answer, error);
}

enum tidemark_status tidemark_predict(const char *model, const char *const *options,
                                      tidemark_answer **answer, struct tidemark_error *error)
{
    return ask_by_words(tdm_predict_answer, "predict", model, options, answer, error);
}

const char *tidemark_answer_json(const tidemark_answer *answer)
{
    return answer->text;
}

/* The value at a path of keys and indices; NULL: there is none. */
static const json_t *find(const tidemark_answer *answer, const char *path)
{
    const json_t *value = answer->root;
    char key[128];
    while (value != NULL) {
        size_t length = strcspn(path, ".");
        if (length == 0 || length >= sizeof(key))
            return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        if (json_is_array(value)) {
            char *end;
            unsigned long index = strtoul(key, &end, 10);
            value = *end == '\0' ? json_array_get(value, index) : NULL;
        } else {
            value = json_object_get(value, key);
        }
        if (path[length] == '\0')
            return value;
        path += length + 1;
    }
    return NULL;
}

enum tidemark_status tidemark_answer_integer(const tidemark_answer *answer, const char *path,
                                             int64_t *value)
{
    const json_t *found = find(answer, path);
    if (json_is_integer(found))
        *value = json_integer_value(found);
    else if (json_is_boolean(found))
        *value = json_is_true(found);
    else
        return TIDEMARK_INPUT;
    return TIDEMARK_OK;
}

enum tidemark_status tidemark_answer_real(const tidemark_answer *answer, const char *path,
                                          double *value)
{
    const json_t *found = find(answer, path);
    if (!json_is_number(found))
        return TIDEMARK_INPUT;
    *value = json_number_value(found);
    return TIDEMARK_OK;
}

enum tidemark_status tidemark_answer_text(const tidemark_answer *answer, const char *path,
                                          const char **value)
{
    const json_t *found = find(answer, path);
    if (!json_is_string(found))
        return TIDEMARK_INPUT;
    *value = json_string_value(found);
    return TIDEMARK_OK;
}

void tidemark_answer_free(tidemark_answer *answer)
{
    if (answer == NULL)
        return;
    json_decref(answer->root);
    free(answer->text);
    free(answer);
}
