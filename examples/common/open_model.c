/* Opening a model. */
#include "common/open_model.h"

#include <errno.h>
#include <sys/stat.h>

#include "common/fail.h"

int open_model(const char *path, moepage_model **out)
{
    struct stat file;
    moepage_model_config config = {.struct_size = sizeof config, .log = fail_log};
    if (stat(path, &file) && (errno == ENOENT || errno == ENOTDIR))
        return fail(RUN_REFUSED,
                    "%s: there is neither a directory nor a .gguf or .moepack file of this name",
                    path);
    return moepage_model_open(path, &config, out) ? fail_file(RUN_REFUSED, path) : RUN_OK;
}
