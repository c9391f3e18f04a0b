/* Reads windows: each prompt in one step, then all windows of a group side by side, one token per
 * step. */
#include "eval/play.h"

#include <math.h>
#include <stdlib.h>

#include "common/budget.h"
#include "common/clock.h"
#include "common/decoder.h"
#include "common/fail.h"
#include "eval/high_set.h"
#include "eval/ranks.h"

/* A window being read. */
typedef struct reading {
    uint32_t domain;
    const uint32_t *tokens;
    moepage_seq seq;
} reading;

typedef struct player {
    const play_config *config;
    const setting *setting;
    outcome *out;
    options opts;
    ranks ranks;
    host host;
    decoder decoder;
    bool stays;      /* the high versions were fixed beforehand */
    uint32_t width;  /* most windows in a group */
    uint32_t prompt; /* tokens of a window read in one step */
    uint32_t scored_from;
    reading *group; /* [width] */
    decoder_input *inputs;
    uint32_t n;   /* windows in the group */
    measure part; /* of --course: measured since the last stretch ended */
    counters part_from;
    uint32_t part_steps;
} player;

/* ---- Opening ----------------------------------------------------------------------------- */

static int plan(player *p, budget *out)
{
    const corpus *c = p->config->corpus;
    uint32_t *lengths = calloc(p->width, sizeof *lengths);
    if (!lengths)
        return fail_memory();
    for (uint32_t i = 0; i < p->width; i++)
        lengths[i] = c->window;
    int code = budget_plan(&p->opts, &p->host, p->config->config, lengths, p->width, out);
    free(lengths);
    return code;
}

static int open_decoder(player *p, const budget *plan)
{
    const bool ablates = p->ranks.keep || p->ranks.deny;
    const decoder_config config = {.device = p->host.device,
                                   .model = p->config->config,
                                   .weights = p->config->weights,
                                   .session = p->host.session,
                                   .kv = p->host.kv,
                                   .math = p->opts.math,
                                   .hints = p->opts.prefetch,
                                   .tell_logits = p->setting->remap.alpha > 0,
                                   .tell_hidden = p->host.predictor != NULL,
                                   .tell_semantic = p->host.predictor || p->host.trace,
                                   .choose = ablates ? ranks_choose : NULL,
                                   .choose_user = &p->ranks,
                                   .threads = p->host.threads,
                                   .max_tokens = plan->step_tokens,
                                   .max_positions = plan->max_positions};
    return decoder_open(&config, &p->decoder);
}

/* Computes the device memory of experts. */
static int count_bytes(player *p)
{
    moepage_expert_pool_info e = {.struct_size = sizeof e};
    if (moepage_expert_pool_get_info(p->host.experts, &e))
        return fail_library(RUN_FAILED, "expert pool");
    p->out->expert_bytes = e.slots * e.slot_bytes + e.lo_bytes + e.compressed_bytes;
    p->out->hi_experts = e.hi_experts;
    return RUN_OK;
}

static int open_player(const play_config *config, const options *base, const setting *s,
                       outcome *out, player *p)
{
    const eval_options *o = config->opts;
    budget sizes;
    *p = (player){.config = config,
                  .setting = s,
                  .out = out,
                  .opts = *base,
                  .ranks = {.keep = s->keep_ranks, .deny = s->deny_rank},
                  .host = *config->model,
                  .width = o->batch ? o->batch : 1,
                  .prompt = o->batch ? o->prompt : o->window - 1,
                  .scored_from = o->prompt ? o->prompt : 1};
    p->opts.precision = s->precision;
    p->opts.remap = s->remap;
    p->opts.miss = s->miss;
    p->opts.max_tokens = 1;
    p->opts.prefill_tokens = o->window;
    if (!p->opts.budget_bytes && p->opts.budget_percent <= 0)
        p->opts.budget_percent = 100;
    p->group = calloc(p->width, sizeof *p->group);
    p->inputs = calloc(p->width, sizeof *p->inputs);
    if (!p->group || !p->inputs)
        return fail_memory();
    int code = plan(p, &sizes);
    if (!code)
        code = host_open(&p->opts, config->config, &sizes, &p->host);
    if (!code)
        code = open_decoder(p, &sizes);
    return code ? code : count_bytes(p);
}

/* Closes all but the model, which later settings use. */
static int close_player(player *p, int code)
{
    if (!code)
        code = host_save_predictor(&p->opts, &p->host);
    decoder_close(&p->decoder);
    p->host.model = NULL;
    int closed = host_close(&p->host);
    free(p->group);
    free(p->inputs);
    return code ? code : closed;
}

/* ---- Scoring ----------------------------------------------------------------------------- */

/* Returns -log2 of the probability of `token`. */
static double surprise(const float *logits, uint32_t n, uint32_t token)
{
    double sum = 0;
    float most = logits[0];
    for (uint32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return (log(sum) - ((double)logits[token] - most)) / log(2.0);
}

/* Scores token `next` of the window, which follows the row. */
static void score(player *p, const reading *r, const float *logits, uint32_t next)
{
    const double bits = surprise(logits, p->config->config->vocabulary, r->tokens[next]);
    p->out->domains[r->domain].bits += bits;
    p->out->domains[r->domain].scored++;
    p->out->all.bits += bits;
    p->out->all.scored++;
    p->part.bits += bits;
    p->part.scored++;
}

/* ---- Steps ------------------------------------------------------------------------------- */

/* Returns the phase to announce: the library remaps decode steps only, so steps to be remapped are
 * announced as such. */
static uint32_t phase_of(const player *p, bool in_prompt)
{
    const setting *s = p->setting;
    if (s->remap.alpha <= 0)
        return in_prompt ? MOEPAGE_PHASE_PREFILL : MOEPAGE_PHASE_DECODE;
    const bool remapped =
        s->remap_phase == REMAP_BOTH || (s->remap_phase == REMAP_PREFILL) == in_prompt;
    return remapped ? MOEPAGE_PHASE_DECODE : MOEPAGE_PHASE_PREFILL;
}

static int read_prompt(player *p, reading *r, bool scored)
{
    const size_t width = p->config->config->vocabulary;
    const decoder_input input = {r->seq, r->tokens, p->prompt, phase_of(p, true), 0};
    int code = decoder_step(&p->decoder, &input, 1);
    for (uint32_t row = p->scored_from - 1, n; scored && !code && row < p->prompt; row += n) {
        n = p->prompt - row < DECODER_LOGIT_ROWS ? p->prompt - row : DECODER_LOGIT_ROWS;
        const float *logits = decoder_logits(&p->decoder, row, n);
        if (!logits)
            return RUN_FAILED;
        for (uint32_t i = 0; i < n; i++)
            score(p, r, logits + i * width, row + i + 1);
    }
    return code;
}

/* Reads token `at` of every window of the group. */
static int read_tokens(player *p, uint32_t at, bool scored)
{
    const size_t width = p->config->config->vocabulary;
    for (uint32_t i = 0; i < p->n; i++)
        p->inputs[i] =
            (decoder_input){p->group[i].seq, p->group[i].tokens + at, 1, phase_of(p, false), at};
    int code = decoder_step(&p->decoder, p->inputs, p->n);
    for (uint32_t row = 0, n; scored && !code && row < p->n; row += n) {
        n = p->n - row < DECODER_LOGIT_ROWS ? p->n - row : DECODER_LOGIT_ROWS;
        const float *logits = decoder_logits(&p->decoder, row, n);
        if (!logits)
            return RUN_FAILED;
        for (uint32_t i = 0; i < n; i++)
            score(p, &p->group[row + i], logits + i * width, at + 1);
    }
    return code;
}

/* ---- Stretches of --course --------------------------------------------------------------- */

static int begin_stretch(player *p)
{
    p->part = (measure){0};
    p->part_steps = 0;
    return p->config->opts->course ? counters_read(&p->host, &p->part_from) : RUN_OK;
}

static int end_stretch(player *p)
{
    outcome *out = p->out;
    stretch *grown = realloc(out->course, (out->n_course + 1u) * sizeof *grown);
    if (!grown)
        return fail_memory();
    out->course = grown;
    int code = counters_read(&p->host, &p->part.counted);
    counters_subtract(&p->part.counted, &p->part_from);
    grown[out->n_course++] = (stretch){p->group[0].domain, p->part};
    return code ? code : begin_stretch(p);
}

/* Updates --course after a step; the last step of a group ends a stretch of any length. */
static int follow_course(player *p, bool last)
{
    const uint32_t length = p->config->opts->course;
    if (!length || (++p->part_steps < length && !last))
        return RUN_OK;
    return end_stretch(p);
}

/* ---- Groups of windows ------------------------------------------------------------------- */

static int read_group(player *p, bool scored)
{
    const uint32_t end = p->config->corpus->window - 1;
    int code = begin_stretch(p);
    for (uint32_t i = 0; i < p->n && !code; i++)
        if (moepage_kv_create(p->host.kv, &p->group[i].seq))
            code = fail_library(RUN_FAILED, "KV cache");
    for (uint32_t i = 0; i < p->n && p->prompt && !code; i++)
        code = read_prompt(p, &p->group[i], scored);
    for (uint32_t at = p->prompt; at < end && !code; at++) {
        code = read_tokens(p, at, scored);
        if (!code)
            code = follow_course(p, at + 1 == end);
    }
    for (uint32_t i = 0; i < p->n && !code; i++)
        if (moepage_kv_free(p->host.kv, p->group[i].seq))
            code = fail_library(RUN_FAILED, "KV cache");
    p->n = 0;
    return code;
}

/* ---- The order of windows ---------------------------------------------------------------- */

static int add_window(player *p, uint32_t d, uint32_t window, bool scored)
{
    p->group[p->n++] = (reading){d, corpus_window(p->config->corpus, d, window), 0};
    return p->n == p->width ? read_group(p, scored) : RUN_OK;
}

/* Adds the counters since `before` to `m` and to the total. */
static int count(player *p, const counters *before, measure *m)
{
    counters now;
    int code = counters_read(&p->host, &now);
    if (code)
        return code;
    counters_subtract(&now, before);
    if (m)
        counters_add(&m->counted, &now);
    counters_add(&p->out->all.counted, &now);
    return RUN_OK;
}

/* Reads windows [first, last) of the domains [from, to), one window of each in turn. */
static int read_windows(player *p, uint32_t from, uint32_t to, uint32_t first, uint32_t last,
                        bool scored)
{
    const corpus *c = p->config->corpus;
    int code = RUN_OK;
    for (uint32_t w = first; w < last && !code; w++)
        for (uint32_t d = from; d < to && !code; d++)
            if (w < c->domains[d].n_windows)
                code = add_window(p, d, w, scored);
    return !code && p->n ? read_group(p, scored) : code;
}

static int read_domains(player *p, uint32_t from, uint32_t to)
{
    const corpus *c = p->config->corpus;
    const uint32_t warm = p->config->opts->warm;
    uint32_t most = 0;
    counters before;
    for (uint32_t d = from; d < to; d++)
        most = c->domains[d].n_windows > most ? c->domains[d].n_windows : most;
    int code = p->stays ? RUN_OK : read_windows(p, from, to, 0, warm, false);
    if (!code)
        code = counters_read(&p->host, &before);
    if (!code)
        code = read_windows(p, from, to, warm, most, true);
    return code ? code : count(p, &before, to - from == 1 ? &p->out->domains[from] : NULL);
}

static int read_all(player *p)
{
    const uint32_t n = p->config->corpus->n_domains;
    if (p->config->opts->mix)
        return read_domains(p, 0, n);
    int code = RUN_OK;
    for (uint32_t d = 0; d < n && !code; d++)
        code = read_domains(p, d, d + 1);
    return code;
}

/* ---- Fixed high versions ---------------------------------------------------------------- */

/* Finds the hottest experts of the windows that are not scored. */
static int learn_set(const play_config *config, const setting *s, high_set *out)
{
    const corpus *c = config->corpus;
    outcome unscored = {.setting = s};
    options slow = config->opts->base;
    player p;
    high_set_slowly(&slow);
    int code = open_player(config, &slow, s, &unscored, &p);
    for (uint32_t d = 0; d < c->n_domains && !code; d++)
        code = read_windows(&p, d, d + 1, 0, config->opts->warm, false);
    if (!code)
        code = high_set_read(&p.host, out);
    free(unscored.course);
    return close_player(&p, code);
}

static int play_set(const play_config *config, const setting *s, outcome *out)
{
    options stays = config->opts->base;
    high_set set = {0};
    player p;
    high_set_for_good(&stays);
    int code = s->high_set == HIGH_HOTTEST
                   ? learn_set(config, s, &set)
                   : high_set_shuffle(config->model, config->opts->base.seed, &set);
    if (code) {
        high_set_free(&set);
        return code;
    }
    code = open_player(config, &stays, s, out, &p);
    p.stays = true;
    if (!code)
        code = high_set_give(&set, &p.host);
    high_set_free(&set);
    if (!code)
        code = read_all(&p);
    return close_player(&p, code);
}

static int play_adapting(const play_config *config, const setting *s, outcome *out)
{
    player p;
    int code = open_player(config, &config->opts->base, s, out, &p);
    if (!code)
        code = read_all(&p);
    return close_player(&p, code);
}

int play_setting(const play_config *config, const setting *s, outcome *out)
{
    const uint64_t start = clock_now_ns();
    out->setting = s;
    int code = s->high_set ? play_set(config, s, out) : play_adapting(config, s, out);
    out->wall_ns = clock_now_ns() - start;
    return code;
}
