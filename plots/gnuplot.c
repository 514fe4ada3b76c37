/* SPDX-License-Identifier: Apache-2.0 */
/* Runs gnuplot in a temporary directory, which is removed afterwards. */
#include "plots/gnuplot.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MOST_SCRIPTS 8

/* The last command: gnuplot takes a script that it cannot read on for one that ends there. */
#define WAS_READ "if (!exists(\"is_drawn\")) exit error \"a script could not be read to its end\""
#define MOST_PRINTED_BYTES (1u << 20)

enum tdm_status tdm_scratch_open(struct tdm_scratch *scratch, struct tdm_error *err)
{
    sigset_t blocked;
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] == '\0')
        parent = "/tmp";
    int length = snprintf(scratch->path, sizeof(scratch->path), "%s/tidemark-plot-XXXXXX", parent);
    if (length < 0 || (size_t)length >= sizeof(scratch->path))
        return tdm_fail(err, TDM_IO, "TMPDIR is longer than %zu bytes", sizeof(scratch->path) - 24);

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &blocked, &scratch->signals);
    if (mkdtemp(scratch->path) == NULL) {
        int reason = errno;
        pthread_sigmask(SIG_SETMASK, &scratch->signals, NULL);
        tdm_fail(err, TDM_IO, "%s: a temporary directory cannot be made there: %s", parent,
                 strerror(reason));
        return tdm_hint(err, "set TMPDIR to a directory that you may write to");
    }
    return TDM_OK;
}

void tdm_scratch_close(struct tdm_scratch *scratch)
{
    DIR *directory = opendir(scratch->path);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
    }
    if (directory != NULL)
        (void)closedir(directory);
    (void)rmdir(scratch->path);
    pthread_sigmask(SIG_SETMASK, &scratch->signals, NULL);
}

/* Starts gnuplot. Returns 0, or the errno of a failure. */
static int start(char *const *arguments, const char *printed, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, by_default;
    sigemptyset(&none);
    sigemptyset(&by_default);
    sigaddset(&by_default, SIGXFSZ); /* gnuplot does not check its writes */
    int reason = posix_spawn_file_actions_init(&actions);
    if (reason != 0)
        return reason;
    reason = posix_spawnattr_init(&attributes);
    if (reason != 0)
        goto destroy_actions;
    reason = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (reason == 0)
        reason = posix_spawn_file_actions_addopen(&actions, 1, printed,
                                                  O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (reason == 0)
        reason = posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (reason == 0)
        reason = posix_spawnattr_setsigmask(&attributes, &none);
    if (reason == 0)
        reason = posix_spawnattr_setsigdefault(&attributes, &by_default);
    if (reason == 0)
        reason =
            posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (reason == 0)
        reason = posix_spawnp(pid, arguments[0], &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
destroy_actions:
    posix_spawn_file_actions_destroy(&actions);
    return reason;
}

/* Finds the line that says what is wrong: gnuplot first shows the command and a caret under it,
 * then `"FILE" line 3: undefined variable`. Else takes the first line that is not empty. */
static void first_error(char *printed, char *out, size_t bytes)
{
    char *rest = NULL;
    snprintf(out, bytes, "it printed nothing");
    for (char *line = strtok_r(printed, "\n", &rest), *first = NULL; line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        line += strspn(line, " \t");
        if (line[0] == '"' && strstr(line, "\" line ") != NULL) {
            snprintf(out, bytes, "%s", line);
            return;
        }
        if (first == NULL && line[0] != '\0') {
            first = line;
            snprintf(out, bytes, "%s", line);
        }
    }
}

/* gnuplot goes on, and ends well, if it cannot read a file of points. Returns the line of the
 * warning, or NULL. */
static const char *unread_file(char *printed)
{
    static const char *const warnings[] = {"Cannot find or open file", "Skipping unreadable file"};
    char *rest = NULL;
    for (char *line = strtok_r(printed, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        for (size_t i = 0; i < sizeof(warnings) / sizeof(warnings[0]); i++)
            if (strstr(line, warnings[i]) != NULL)
                return line;
    return NULL;
}

/* gnuplot ended with 0: did it read all that it was given? */
static enum tdm_status check_read(const char *path, struct tdm_error *err)
{
    char *printed = NULL;
    uint64_t bytes;
    enum tdm_status status = tdm_file_read(path, MOST_PRINTED_BYTES, &printed, &bytes, err);
    const char *line = status == TDM_OK ? unread_file(printed) : NULL;
    if (line != NULL)
        status = tdm_fail(err, TDM_IO, "gnuplot failed: %s", line);
    free(printed);
    return status;
}

enum tdm_status tdm_gnuplot_run(const char *const *scripts, const char *folder,
                                struct tdm_error *err)
{
    char *arguments[MOST_SCRIPTS + 5] = {(char *)"gnuplot", (char *)"-d"};
    char path[600];
    char line[256];
    char *printed = NULL;
    uint64_t bytes;
    int result;
    pid_t pid;
    size_t count = 2;
    for (size_t i = 0; i < MOST_SCRIPTS && scripts[i] != NULL; i++)
        arguments[count++] = (char *)scripts[i];
    arguments[count++] = (char *)"-e";
    arguments[count] = (char *)WAS_READ;
    snprintf(path, sizeof(path), "%s/printed", folder);

    int reason = start(arguments, path, &pid);
    if (reason == ENOENT) {
        tdm_fail(err, TDM_IO, "gnuplot is not in PATH, and draws the plots");
        return tdm_hint(err, "install the Debian package gnuplot-nox");
    }
    if (reason != 0)
        return tdm_fail(err, TDM_IO, "gnuplot cannot be started: %s", strerror(reason));
    while (waitpid(pid, &result, 0) < 0) {
        if (errno != EINTR)
            return tdm_fail(err, TDM_IO, "gnuplot was started, but waiting for it failed: %s",
                            strerror(errno));
    }
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0)
        return check_read(path, err);
    if (WIFSIGNALED(result) && WTERMSIG(result) == SIGINT)
        return tdm_fail(err, TDM_INTERRUPTED, "interrupted");
    if (WIFSIGNALED(result))
        return tdm_fail(err, TDM_IO, "gnuplot was ended by signal %d", WTERMSIG(result));
    if (tdm_file_read(path, MOST_PRINTED_BYTES, &printed, &bytes, NULL) == TDM_OK)
        first_error(printed, line, sizeof(line));
    else
        snprintf(line, sizeof(line), "what it printed cannot be read");
    free(printed);
    return tdm_fail(err, TDM_IO, "gnuplot failed: %s", line);
}
