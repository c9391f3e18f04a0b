/* Five lines of a terminal. */
#include "serve/dashboard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/units.h"

#define EVERY_NS 200000000u
#define LINES 5
#define BAR 24

/* Returns true for a terminal whose lines can be redrawn. */
static bool is_terminal(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && kind && *kind && strcmp(kind, "dumb") != 0;
}

static bool is_wanted(const server *s)
{
    switch (s->config->options->dashboard) {
    case SERVE_DASHBOARD_ON: return true;
    case SERVE_DASHBOARD_OFF: return false;
    default: return is_terminal();
    }
}

static void draw_bar(FILE *out, uint64_t part, uint64_t whole)
{
    uint64_t full = whole ? part * BAR / whole : 0;
    fputc('[', out);
    for (uint64_t i = 0; i < BAR; i++)
        fputc(i < full ? '#' : '.', out);
    fputc(']', out);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* Lines wider than the terminal are cut: wrapped ones could not be redrawn. */
static void draw(const server *s, double tokens_per_s, double hit_percent)
{
    const server_result *r = s->result;
    const schedule *q = &s->schedule;
    uint64_t used = r->kv.blocks - r->kv.free_blocks, blocks = r->kv.blocks - r->kv.lent_blocks;
    FILE *out = stdout;
    fprintf(out, "\033[?7l%s%s  %.1f s%s\033[K\n", s->config->name,
            s->config->quiet ? ", rehearsal" : "", (double)server_now_ns(s) / 1e9,
            s->clock.is_virtual ? " of virtual time" : "");
    fprintf(out, "requests  ");
    draw_bar(out, q->n_done + q->n_refused, q->n);
    fprintf(out,
            " %" PRIu32 " of %" PRIu32 ": %" PRIu32 " running, %" PRIu32 " waiting, %" PRIu32
            " preempted now, %" PRIu64 " in all\033[K\n",
            q->n_done + q->n_refused, q->n, q->n_running, schedule_waiting(q), q->n_preempted,
            q->preemptions);
    fprintf(out, "tokens/s  %.0f now, %.0f on average\033[K\n", tokens_per_s,
            server_now_ns(s) ? (double)r->output_tokens * 1e9 / (double)server_now_ns(s) : 0);
    fprintf(out, "experts   %.1f%% hits now, %.1f%% on average\033[K\n", hit_percent,
            percent(r->session.hits, r->session.routed));
    fprintf(out, "split     ");
    draw_bar(out, r->experts.slots * r->experts.slot_bytes,
             r->experts.slots * r->experts.slot_bytes + blocks * r->kv.block_bytes);
    fprintf(out, " experts %.1f MiB, KV %.1f MiB, %.0f%% of it used\033[K\n",
            mib(r->experts.slots * r->experts.slot_bytes), mib(blocks * r->kv.block_bytes),
            percent(used, blocks));
    fputs("\033[?7h", out);
    fflush(out);
}

int dashboard_show(server *s)
{
    server_view *v = &s->view;
    uint64_t now = clock_now_ns();
    if (!is_wanted(s) || now - v->shown_ns < EVERY_NS)
        return RUN_OK;
    int code = server_look(s);
    if (code)
        return code;
    const server_result *r = s->result;
    double seconds = (double)(server_now_ns(s) - v->now_ns) / 1e9;
    uint64_t tokens = r->output_tokens - v->tokens;
    if (v->shown_ns)
        printf("\033[%dA", LINES);
    draw(s, seconds > 0 ? (double)tokens / seconds : 0,
         percent(r->session.hits - v->hits, r->session.routed - v->routed));
    *v = (server_view){now, server_now_ns(s), r->output_tokens, r->session.hits, r->session.routed};
    return RUN_OK;
}

void dashboard_clear(server *s)
{
    if (!s->view.shown_ns)
        return;
    printf("\033[%dA\033[J", LINES);
    fflush(stdout);
}
