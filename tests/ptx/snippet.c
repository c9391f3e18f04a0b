#include "snippet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

/* The end is not a kernel's, lest one run from one into the other. */
#define SNIPPET_BYTES (sizeof snippet_in - 256)

uint64_t snippet_in[SNIPPET_WORDS] __attribute__((aligned(256)));
uint64_t snippet_out[SNIPPET_WORDS] __attribute__((aligned(256)));

static const char head[] =
    ".version 9.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry snippet(\n"
    "\t.param .u64 snippet_param_0,\n\t.param .align 8 .b8 snippet_param_1[16]\n)\n{\n"
    "\t.reg .pred %p<10>;\n\t.reg .b16 %rs<40>;\n\t.reg .f32 %f<40>;\n"
    "\t.reg .b32 %r<60>;\n\t.reg .b64 %rd<40>;\n"
    "ld.param.u64 %rd1, [snippet_param_0];\n"
    "ld.param.u64 %rd2, [snippet_param_1];\n"
    "mov.u32 %r0, %tid.x;\n"
    "mul.wide.u32 %rd3, %r0, 8;\nadd.s64 %rd3, %rd2, %rd3;\n"
    "mul.wide.u32 %rd4, %r0, 32;\nadd.s64 %rd4, %rd1, %rd4;\n"
    "ld.global.u64 %rd10, [%rd4];\nld.global.u64 %rd11, [%rd4+8];\n"
    "ld.global.u64 %rd12, [%rd4+16];\nld.global.u64 %rd13, [%rd4+24];\n"
    "cvt.u32.u64 %r10, %rd10;\ncvt.u32.u64 %r11, %rd11;\ncvt.u32.u64 %r12, %rd12;\n"
    "cvt.u32.u64 %r13, %rd13;\n"
    "cvt.u16.u64 %rs10, %rd10;\ncvt.u16.u64 %rs11, %rd11;\n"
    "mov.b32 %f10, %r10;\nmov.b32 %f11, %r11;\nmov.b32 %f12, %r12;\n";

static bool reach(void *user, uint64_t at, uint64_t bytes, uint64_t *first, uint64_t *end)
{
    const uint64_t places[] = {(uintptr_t)snippet_in, (uintptr_t)snippet_out};
    (void)user;
    for (int i = 0; i < 2; i++) {
        if (at >= places[i] && at + bytes <= places[i] + SNIPPET_BYTES) {
            *first = places[i];
            *end = places[i] + SNIPPET_BYTES;
            return true;
        }
    }
    return false;
}

static bool shows(void *user, uint64_t at)
{
    const snippet *s = user;
    return s->host_looks && at >= (uintptr_t)snippet_out &&
           at < (uintptr_t)snippet_out + sizeof snippet_out;
}

static uint64_t now(void *user)
{
    return ((const snippet *)user)->now_ns;
}

static void pause_lanes(void *user)
{
    snippet *s = user;
    if (s->pause)
        s->pause(user);
}

static ptx_entry *parse(const char *body, char *text, size_t bytes, char *error, size_t error_bytes)
{
    snprintf(text, bytes, "%s%s\nret;\n}\n", head, body);
    return ptx_parse(text, "snippet", error, error_bytes);
}

void snippet_run(snippet *s)
{
    char text[8192], error[256] = "";
    ptx_entry *entry = parse(s->body, text, sizeof text, error, sizeof error);
    const uint64_t args[] = {(uintptr_t)snippet_in, (uintptr_t)snippet_out, 0};
    const ptx_world world = {.user = s,
                             .reach = reach,
                             .shows = shows,
                             .now_ns = now,
                             .pause = pause_lanes,
                             .seed = s->seed,
                             .most_steps = s->most_steps ? s->most_steps : 100000};
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        skip(); /* the machine's loops are compiled for these */
#endif
    if (!entry)
        fail_msg("%s: %s", s->body, error);
    const uint32_t blocks = s->blocks ? s->blocks : 1;
    ptx_grid *grid = ptx_grid_new(entry, &world, args, sizeof args, blocks,
                                  s->threads ? s->threads : 1, s->shared ? s->shared : 4096);
    s->found = PTX_FOUND_NOTHING;
    for (uint32_t b = 0; b < blocks && !s->found; b++)
        s->found = ptx_grid_block(grid, b);
    ptx_grid_end(grid);
    snprintf(s->said, sizeof s->said, "%s", ptx_grid_said(grid));
    ptx_grid_free(grid);
    ptx_entry_free(entry);
}

const char *snippet_refusal(const char *body)
{
    static char error[256];
    char text[8192];
    error[0] = 0;
    ptx_entry_free(parse(body, text, sizeof text, error, sizeof error));
    return error;
}
