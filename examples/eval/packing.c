/* Temporary packs. */
#include "eval/packing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fail.h"
#include "common/forms.h"
#include "common/units.h"

/* Lists the forms that a setting needs and the model lacks. */
static int list_missing(const settings *list, const moepage_model *model, uint32_t *missing)
{
    uint32_t needed = 0;
    *missing = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const precision_spec *spec = &list->items[i].precision;
        needed |= precision_forms(spec);
        if (spec->text && spec->as_form)
            needed |= 1u << spec->as_form;
    }
    for (uint32_t form = MOEPAGE_FORM_INT8; form <= LAST_FORM; form++) {
        moepage_form_info info = {.struct_size = sizeof info};
        if (!(needed & 1u << form))
            continue;
        if (moepage_model_get_form(model, form, &info))
            return fail_library(RUN_FAILED, "model");
        if (!info.present)
            *missing = needed;
    }
    return RUN_OK;
}

static void print_forms(uint32_t forms)
{
    const char *before = " ";
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++)
        if (forms & 1u << form) {
            fprintf(stderr, "%s%s", before, form_name(form));
            before = ", ";
        }
}

static int write_pack(const eval_options *opts, uint32_t forms, const moepage_model *model,
                      packing *p)
{
    const char *base = getenv("TMPDIR");
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    const moepage_pack_config config = {.struct_size = sizeof config,
                                        .forms = forms | 1u << MOEPAGE_FORM_DENSE,
                                        .group_size = opts->group_size,
                                        .threads = opts->base.threads,
                                        .scale_search = opts->scale_search};
    int length =
        snprintf(p->dir, sizeof p->dir, "%s/moepage-eval-XXXXXX", base && *base ? base : "/tmp");
    if (length < 0 || (size_t)length >= sizeof p->dir || !mkdtemp(p->dir)) {
        int error = errno;
        p->dir[0] = '\0';
        return fail(RUN_FAILED, "TMPDIR: no directory for a pack: %s", strerror(error));
    }
    snprintf(p->path, sizeof p->path, "%s/model.moepack", p->dir);
    if (moepage_pack_write(model, p->path, &config, &stats))
        return fail_library(RUN_FAILED, "packing");
    fprintf(stderr, "moepage-eval: %s is packed for this run as", opts->base.model);
    print_forms(config.forms);
    fprintf(stderr, ": %.1f MiB in %.1f s\n", mib(stats.file_bytes), (double)stats.wall_ns / 1e9);
    return RUN_OK;
}

int packing_open(eval_options *opts, const settings *list, packing *out, host *h)
{
    uint32_t missing;
    *out = (packing){0};
    int code = host_open_model(&opts->base, h);
    if (!code)
        code = list_missing(list, h->model, &missing);
    if (code || !missing)
        return code;
    code = write_pack(opts, missing, h->model, out);
    if (code)
        return code;
    moepage_model_close(h->model);
    opts->base.model = out->path;
    return host_open_model(&opts->base, h);
}

void packing_close(packing *p)
{
    if (!p->dir[0])
        return;
    unlink(p->path);
    rmdir(p->dir);
}
