/* The split moves while two sessions generate, every few tokens and over a throttled bus, slots
 * against KV blocks and dense experts against compressed ones: every logit is the one that the same
 * prompts have where nothing moves, and no block is lost. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bank_model.h"
#include "common/attention.h"
#include "common/generate.h"
#include "common/weights.h"
#include "split/split.h"
#include "testing.h"

#define TINY "examples/models/tiny-qwen3moe"
#define ACTORS 2
#define PROMPTS 3
#define PROMPT_TOKENS 9
#define MAX_TOKENS 14
#define STEP_TOKENS 16
#define KV_BLOCK_TOKENS 4
#define LEAST_BLOCKS \
    (ACTORS * PROMPTS * ((PROMPT_TOKENS + MAX_TOKENS + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS))
#define MORE_BLOCKS 24

typedef struct stage {
    moepage_model *model;
    moepage_model_info info;
    model_config config;
    model_weights weights;
    moepage_device *device;
    moepage_expert_pool *experts;
    moepage_kv_pool *kv;
    bool moving;
    pthread_mutex_t lock; /* of the mover */
    uint64_t random;
    bool waits;
    uint32_t compressed;
    uint64_t slots, blocks;
    uint32_t moves, attempts;
} stage;

typedef struct actor {
    stage *on;
    uint32_t index;
    moepage_session *session;
    decoder decoder;
    sampler sampler;
    sequence sequences[PROMPTS];
    int code;
} actor;

/* ---- moving ---- */

static void choose(stage *s)
{
    uint64_t least = ACTORS * s->info.top_k, most = 3 * least;
    s->compressed = bank_below(&s->random, 4);
    s->slots = least + bank_below(&s->random, (uint32_t)(most - least));
    s->blocks = LEAST_BLOCKS + bank_below(&s->random, MORE_BLOCKS);
}

/* Between two steps of one session, and in the middle of one of the other. */
static void move(void *user, const generation *g)
{
    actor *a = user;
    stage *s = a->on;
    (void)g;
    if (!s->moving)
        return;
    pthread_mutex_lock(&s->lock);
    if (!s->waits)
        choose(s);
    s->attempts++;
    moepage_status status = mp_split_move(s->experts, s->kv, s->slots, s->blocks, NULL);
    if (!status) /* KV has left room enough for images */
        status = mp_split_compress(s->experts, s->compressed, s->slots);
    s->waits = status == MOEPAGE_E_BUSY && bank_below(&s->random, 16) > 0;
    if (!s->waits && status)
        mp_split_abandon(s->experts);
    s->moves += !status;
    a->code |= status && status != MOEPAGE_E_BUSY && status != MOEPAGE_E_BUDGET;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the stage ---- */

/* The tiny model with its experts as EXPH images too. */
static moepage_model *open_packed(void)
{
    char path[] = "/tmp/moepage-split-XXXXXX";
    moepage_model *model = NULL;
    moepage_pack_config config = {.struct_size = sizeof config,
                                  .forms = 1u << MOEPAGE_FORM_EXPH,
                                  .threads = 1};
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(moepage_model_open(TINY, NULL, &model), MOEPAGE_OK);
    assert_int_equal(moepage_pack_write(model, path, &config, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    assert_int_equal(moepage_model_open(path, NULL, &model), MOEPAGE_OK);
    assert_int_equal(unlink(path), 0);
    return model;
}

static uint64_t block_bytes(const stage *s)
{
    uint64_t token = attention_bytes_per_token(&s->config);
    return s->config.layers * ((token * KV_BLOCK_TOKENS + 63) / 64 * 64);
}

static void open_pools(stage *s)
{
    moepage_expert_pool_config experts = {.struct_size = sizeof experts,
                                          .slots = 2 * ACTORS * s->info.top_k,
                                          .chunk_bytes = 1024};
    moepage_session_config session = {.struct_size = sizeof session, .max_tokens = STEP_TOKENS};
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = KV_BLOCK_TOKENS,
                                 .layers = s->config.layers,
                                 .blocks_per_granule = 2,
                                 .blocks = LEAST_BLOCKS};
    uint64_t workspace, scratch;
    assert_int_equal(moepage_expert_pool_sizes(s->model, &experts, 1, &workspace, NULL),
                     MOEPAGE_OK);
    assert_int_equal(moepage_session_workspace(s->model, &session, &scratch), MOEPAGE_OK);
    workspace += ACTORS * scratch;
    /* Three times the slots, a few rounds of images, and KV: not all of it at once. */
    uint64_t arena = (3 * ACTORS * s->info.top_k + 2 * s->info.moe_layers) * s->info.slot_bytes +
                     (LEAST_BLOCKS + MORE_BLOCKS / 2) * block_bytes(s);
    moepage_device_config device = {.struct_size = sizeof device,
                                    .threads = 1,
                                    .workspace_bytes = workspace,
                                    .budget_bytes = workspace + (arena + 4095) / 4096 * 4096,
                                    .bus_bytes_per_s = 200u << 20};
    assert_int_equal(moepage_device_open("host", &device, &s->device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&s->device, 1, s->model, &experts, &s->experts),
                     MOEPAGE_OK);
    uint32_t *bytes_per_token = calloc(s->config.layers, sizeof *bytes_per_token);
    assert_non_null(bytes_per_token);
    for (uint32_t l = 0; l < s->config.layers; l++)
        bytes_per_token[l] = attention_bytes_per_token(&s->config);
    kv.bytes_per_token = bytes_per_token;
    assert_int_equal(moepage_kv_pool_create(s->device, &kv, &s->kv), MOEPAGE_OK);
    free(bytes_per_token);
}

static void open_stage(stage *s, uint64_t seed)
{
    *s = (stage){.moving = seed != 0, .random = seed, .info = {.struct_size = sizeof s->info}};
    pthread_mutex_init(&s->lock, NULL);
    s->model = open_packed();
    assert_int_equal(moepage_model_get_info(s->model, &s->info), MOEPAGE_OK);
    assert_int_equal(config_read(s->model, &s->config), 0);
    assert_int_equal(weights_open(s->model, &s->config, false, &s->weights), 0);
    open_pools(s);
}

static void close_stage(stage *s)
{
    assert_int_equal(moepage_kv_pool_destroy(s->kv), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(s->experts), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(s->device), MOEPAGE_OK);
    weights_close(&s->weights);
    config_free(&s->config);
    assert_int_equal(moepage_model_close(s->model), MOEPAGE_OK);
    pthread_mutex_destroy(&s->lock);
}

/* ---- generating ---- */

static void open_actor(stage *s, uint32_t index, actor *a)
{
    *a = (actor){.on = s, .index = index};
    moepage_session_config session = {.struct_size = sizeof session,
                                      .max_tokens = STEP_TOKENS,
                                      .prefetch = index ? MOEPAGE_PREFETCH_PREVIOUS
                                                        : MOEPAGE_PREFETCH_HINT};
    assert_int_equal(moepage_session_create(s->experts, s->kv, &session, &a->session), MOEPAGE_OK);
    decoder_config config = {.device = s->device,
                             .model = &s->config,
                             .weights = &s->weights,
                             .session = a->session,
                             .kv = s->kv,
                             .math = MOEPAGE_MATH_FP32,
                             .hints = index == 0,
                             .threads = 1,
                             .max_tokens = STEP_TOKENS,
                             .max_positions = PROMPT_TOKENS + MAX_TOKENS};
    assert_int_equal(decoder_open(&config, &a->decoder), 0);
    assert_int_equal(sampler_open(0, 1, s->config.vocabulary, &a->sampler), 0);
    uint64_t random = 77 + index;
    for (uint32_t p = 0; p < PROMPTS; p++) {
        sequence *q = &a->sequences[p];
        q->tokens = calloc(PROMPT_TOKENS + MAX_TOKENS, sizeof *q->tokens);
        assert_non_null(q->tokens);
        q->n_prompt = q->n_tokens = PROMPT_TOKENS - p;
        for (uint32_t t = 0; t < q->n_prompt; t++)
            q->tokens[t] = 'a' + bank_below(&random, 26);
    }
}

static void close_actor(actor *a)
{
    decoder_close(&a->decoder);
    sampler_close(&a->sampler);
    assert_int_equal(moepage_session_destroy(a->session), MOEPAGE_OK);
}

static void *act(void *arg)
{
    actor *a = arg;
    generation g = {.decoder = &a->decoder,
                    .sampler = &a->sampler,
                    .sequences = a->sequences,
                    .n_sequences = PROMPTS,
                    .max_tokens = MAX_TOKENS,
                    .step_tokens = STEP_TOKENS,
                    .keep_logits = true,
                    .progress = move,
                    .progress_user = a};
    a->code |= generate_run(&g);
    return NULL;
}

/* Every block is free, or in the table of a sequence that is still there. */
static void check_blocks(stage *s, const actor *actors)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < ACTORS; i++)
        for (uint32_t p = 0; p < PROMPTS; p++) {
            const sequence *q = &actors[i].sequences[p];
            moepage_kv_table table = {.struct_size = sizeof table};
            assert_int_equal(moepage_kv_get_table(s->kv, q->seq, &table), MOEPAGE_OK);
            assert_int_equal(table.n_tokens, q->fed);
            held += table.n_blocks;
        }
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_kv_pool_get_info(s->kv, &info), MOEPAGE_OK);
    assert_int_equal(info.blocks - info.free_blocks, held);
    assert_int_equal(moepage_device_get_info(s->device, &device), MOEPAGE_OK);
    assert_true(device.peak_bytes <= device.budget_bytes);
}

static void perform(uint64_t seed, actor *actors, uint32_t *moves)
{
    static stage s;
    pthread_t threads[ACTORS];
    open_stage(&s, seed);
    for (uint32_t i = 0; i < ACTORS; i++)
        open_actor(&s, i, &actors[i]);
    for (uint32_t i = 0; i < ACTORS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    for (uint32_t i = 0; i < ACTORS; i++)
        pthread_join(threads[i], NULL);
    mp_split_abandon(s.experts);
    for (uint32_t i = 0; i < ACTORS; i++)
        assert_int_equal(actors[i].code, 0);
    check_blocks(&s, actors);
    *moves = s.moves;
    for (uint32_t i = 0; i < ACTORS; i++)
        close_actor(&actors[i]);
    close_stage(&s);
}

static void assert_same(const actor *a, const actor *b, uint32_t vocabulary)
{
    for (uint32_t p = 0; p < PROMPTS; p++) {
        const sequence *x = &a->sequences[p], *y = &b->sequences[p];
        assert_int_equal(x->n_tokens, y->n_tokens);
        assert_memory_equal(x->tokens, y->tokens, x->n_tokens * sizeof *x->tokens);
        assert_int_equal(x->n_logits, y->n_logits);
        assert_memory_equal(x->logits, y->logits,
                            (size_t)x->n_logits * vocabulary * sizeof *x->logits);
    }
}

static void free_outputs(actor *a)
{
    for (uint32_t p = 0; p < PROMPTS; p++) {
        free(a->sequences[p].tokens);
        free(a->sequences[p].logits);
    }
}

static void test_split_generate_gives_the_same_bits_while_the_split_moves(void **state)
{
    (void)state;
    static actor still[ACTORS], moved[ACTORS];
    uint32_t rounds = getenv("MP_TEST_LONG") ? 20 : 2, moves, all = 0;
    perform(0, still, &moves);
    assert_int_equal(moves, 0);
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        perform(seed, moved, &moves);
        all += moves;
        for (uint32_t i = 0; i < ACTORS; i++) {
            assert_same(&still[i], &moved[i], 260);
            free_outputs(&moved[i]);
        }
    }
    print_message("%u moves of %u steps\n", all, rounds * ACTORS * MAX_TOKENS);
    assert_true(all >= rounds); /* or it would show nothing */
    for (uint32_t i = 0; i < ACTORS; i++)
        free_outputs(&still[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_generate_gives_the_same_bits_while_the_split_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
