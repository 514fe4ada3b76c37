/* SPDX-License-Identifier: Apache-2.0 */
/* Writes files as a whole: to a temporary name beside the target, flushed, then renamed. Also reads
 * files and finds those of the data directory. */
#ifndef TDM_BASE_FILE_H
#define TDM_BASE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At a program's end: writes what stdout still buffers. TDM_IO with the reason if that fails, or an
 * earlier write did. */
enum tdm_status tdm_stdout_end(struct tdm_error *err);

/* Writes `bytes` bytes of `data` to `path`. "-" is stdout. A device or a pipe is written in place.
 * If the file exists and `force` is false: TDM_USAGE with the hint to pass --force. On other
 * failures: TDM_IO with the reason; nothing is left behind and an old file stays unchanged. */
enum tdm_status tdm_file_write(const char *path, const void *data, size_t bytes, bool force,
                               struct tdm_error *err);

/* Writes all `bytes` to `fd`, for a file that is written piece by piece. TDM_IO names `path`, the
 * reason and the remedy. */
enum tdm_status tdm_file_put(int fd, const char *path, const void *data, size_t bytes,
                             struct tdm_error *err);

/* The same message for another call that failed with `reason`, an errno. TDM_NO_MEMORY for
 * ENOMEM. */
enum tdm_status tdm_file_failed(const char *path, int reason, struct tdm_error *err);

/* Refuses `path` as tdm_file_write() would, before the work for it begins. Removes what processes
 * that were killed while they wrote it left beside it. */
enum tdm_status tdm_file_check(const char *path, bool force, struct tdm_error *err);

/* Refuses a symbolic link that leads to nothing: TDM_USAGE. Writing would replace the link, or fail
 * after all the work is done. */
enum tdm_status tdm_file_check_link(const char *path, struct tdm_error *err);

/* "DIRECTORY/NAME", with one slash also where DIRECTORY ends with some; malloc'ed, for the caller
 * to free. NULL if memory ran out. */
char *tdm_path_join(const char *directory, const char *name);

/* Do both names lead to the same existing file? */
bool tdm_file_same(const char *a, const char *b);

/* Reads a whole file into malloc'ed memory, with one extra zero byte after it. The caller frees it.
 * TDM_INPUT if it is larger than `limit_bytes`; TDM_IO if it cannot be read. */
enum tdm_status tdm_file_read(const char *path, uint64_t limit_bytes, char **data, uint64_t *bytes,
                              struct tdm_error *err);

/* The directory of this installation's read-only data (shipped configs, machine files, plot
 * scripts): $TIDEMARK_DATA if set, else the folder of the program if that is the source tree, else
 * the data of the installation that the program is in (base/install.h), else the configured
 * pkgdatadir. Valid until the thread calls it again. */
const char *tdm_data_directory(void);

/* Writes "<data directory>/<folder>/<name><suffix>" to `out`. TDM_INPUT if it is too long. */
enum tdm_status tdm_data_path(const char *folder, const char *name, const char *suffix, char *out,
                              size_t out_bytes, struct tdm_error *err);

/* Names of the files in "<data directory>/<folder>" that end in `suffix`, without it, sorted. The
 * result is a NULL-terminated array of strings in one allocation, which the caller frees. TDM_IO if
 * the folder cannot be read. */
enum tdm_status tdm_data_names(const char *folder, const char *suffix, char ***names,
                               struct tdm_error *err);

/* Writes the names as "a, b, c" to `out`, cut with "..." if they are too long. Returns `out`. */
const char *tdm_names_join(char *const *names, char *out, size_t out_bytes);

/* Gives a temporary file its name. Returns 0 or an errno; EEXIST: without `force`, if another
 * process has made such a file since tdm_file_check(). */
int tdm_file_move(const char *temporary, const char *path, bool force);

#endif
