/* Parses the words of --split. */
#include "serve/arms.h"

#include <stdio.h>
#include <string.h>

#include "common/fail.h"

static const struct {
    const char *name;
    serve_arm arm;
} words[] = {
    {"50-50", {.kind = ARM_FIXED, .percent = 50}},
    {"flux", {.kind = ARM_FLUX}},
    {"mv-wsa", {.kind = ARM_MV_WSA}},
    {"mv-wsa-online", {.kind = ARM_MV_WSA_ONLINE}},
    {"dual-resize", {.kind = ARM_DUAL_RESIZE}},
    {"planner", {.kind = ARM_PLANNER}},
    {"layer-offload", {.kind = ARM_LAYER_OFFLOAD}},
};

/* Reads "fixed:P". */
static bool read_fixed(const char *word, serve_arm *out)
{
    uint64_t percent;
    if (strncmp(word, "fixed:", 6))
        return false;
    word += 6;
    if (!flag_take_number(&word, &percent) || *word || percent < 1 || percent > 99)
        return false;
    *out = (serve_arm){.kind = ARM_FIXED, .percent = (uint32_t)percent};
    return true;
}

static bool read_word(const char *word, serve_arm *out)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i].name)) {
            *out = words[i].arm;
            return true;
        }
    return read_fixed(word, out);
}

static bool is_listed(const arm_list *list, const char *name)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (!strcmp(list->arms[i].name, name))
            return true;
    return false;
}

int arms_read(const flag *self, const char *text, void *out)
{
    static const char wanted[] = "up to 8 different ones of 50-50, fixed:P, flux, mv-wsa, "
                                 "mv-wsa-online, dual-resize, planner, layer-offload, with "
                                 "commas between them";
    arm_list list = {.n = 0};
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char word[sizeof list.arms->name];
        size_t length = strcspn(at, ",");
        serve_arm *next = &list.arms[list.n];
        if (list.n == ARMS_MOST || length >= sizeof word)
            return flag_refuse(self, text, wanted);
        memcpy(word, at, length);
        word[length] = '\0';
        if (is_listed(&list, word) || !read_word(word, next))
            return flag_refuse(self, text, wanted);
        memcpy(next->name, word, sizeof word);
        list.n++;
    }
    *(arm_list *)flag_field(self, out) = list;
    return RUN_OK;
}
