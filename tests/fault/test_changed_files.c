/* A model's files change while it is open: every later read says so, with a sentence that names the
 * file, and nothing is served that the file did not hold when it was opened. Only the public API is
 * used. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_moe.h"
#include "moe_maker.h"
#include "moepage.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define SLOTS 2u
#define N_KEYS (MOE_LAYERS * MOE_EXPERTS)

/* ---- kinds of files ---- */

typedef struct file_kind {
    const char *name;
    uint32_t forms; /* 0: the checkpoint itself */
    int32_t cold_level;
    uint64_t host_tier; /* bytes; 0 = none */
    uint32_t bus_form;
    uint32_t miss; /* MOEPAGE_MISS_*; HOST runs the library's own experts */
    bool gguf;
    bool places; /* banks: experts of the safetensors file, by their places in it */
} file_kind;

#define DENSE (1u << MOEPAGE_FORM_DENSE)
#define EXPH (1u << MOEPAGE_FORM_EXPH)

static const file_kind kinds[] = {
    {.name = "safetensors"},
    {.name = "safetensors, host tier", .host_tier = 1600},
    {.name = "safetensors, computed in place", .miss = MOEPAGE_MISS_HOST},
    {.name = "gguf", .gguf = true},
    {.name = "gguf, host tier", .gguf = true, .host_tier = 13500},
    {.name = "gguf, computed in place", .gguf = true, .miss = MOEPAGE_MISS_HOST},
    {.name = "places", .places = true},
    {.name = "places, host tier", .places = true, .host_tier = 1600},
    {.name = "places, computed in place", .places = true, .miss = MOEPAGE_MISS_HOST},
    {.name = "dense pack", .forms = DENSE},
    {.name = "dense pack, host tier", .forms = DENSE, .host_tier = 8192},
    {.name = "dense pack, computed in place", .forms = DENSE, .miss = MOEPAGE_MISS_HOST},
    {.name = "zstd pack", .forms = DENSE, .cold_level = 3},
    {.name = "zstd pack, host tier", .forms = DENSE, .cold_level = 3, .host_tier = 1600},
    {.name = "exph pack", .forms = EXPH},
    {.name = "exph pack, host tier", .forms = EXPH, .host_tier = 8192},
    {.name = "pack of two forms, dense bus", .forms = DENSE | EXPH, .bus_form = MOEPAGE_FORM_DENSE},
};

typedef struct world {
    const file_kind *kind;
    moe_maker maker;
    char path[128]; /* of the file that changes */
    char model_path[128];
    const char *name; /* of that file */
    moepage_model *model;
    moepage_device *device;
    moepage_expert_pool *pool;
    moepage_session *session;
    moepage_model_info info;
} world;

static void make_files(world *w, const file_kind *kind)
{
    *w = (world){.kind = kind};
    moe_maker_init(&w->maker);
    moe_maker_write(&w->maker);
    w->name = kind->gguf ? "a.gguf" : kind->forms ? "a.moepack" : "model.safetensors";
    snprintf(w->path, sizeof w->path, "%s/%s", w->maker.dir, w->name);
    snprintf(w->model_path, sizeof w->model_path, "%s",
             kind->forms || kind->gguf ? w->path : w->maker.dir);
    if (kind->gguf) {
        static gguf_writer writer;
        const gguf_moe usual = gguf_moe_usual();
        gguf_init(&writer);
        gguf_moe_make(&writer, &usual);
        gguf_write(&writer, w->maker.dir, w->name);
        gguf_free(&writer);
    }
    if (!kind->forms)
        return;
    moepage_model *source = moe_expect_open(&w->maker);
    const moepage_pack_config config = {.struct_size = sizeof config,
                                        .forms = kind->forms,
                                        .cold_level = kind->cold_level};
    assert_int_equal(moepage_pack_write(source, w->path, &config, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(source), MOEPAGE_OK);
}

/* Where a tensor's bytes are in the file, which holds them as they are. */
static uint64_t find_bytes(const world *w, const char *tensor, uint64_t n)
{
    unsigned char wanted[64];
    size_t size;
    assert_true(n <= sizeof wanted);
    for (uint64_t i = 0; i < n; i++)
        wanted[i] = maker_byte(tensor, i);
    unsigned char *bytes = maker_read(w->maker.dir, w->name, &size);
    const unsigned char *at = memmem(bytes, size, wanted, n);
    assert_non_null(at);
    uint64_t offset = (uint64_t)(at - bytes);
    free(bytes);
    return offset;
}

static const char *const parts[] = {"gate", "up", "down"};

static void name_part(char name[128], uint32_t layer, uint32_t expert, uint32_t part)
{
    snprintf(name, 128, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, expert,
             parts[part]);
}

/* The experts of the maker's file, described as a program would that has a reader of its own. */
static moepage_status open_places(world *w)
{
    static const uint32_t roles[] = {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP, MOEPAGE_ROLE_DOWN};
    const char *const file = w->path;
    moepage_expert_tensor tensors[3] = {0};
    moepage_file_place places[N_KEYS * 3] = {0};
    for (uint32_t p = 0; p < 3; p++) {
        tensors[p] = (moepage_expert_tensor){.role = roles[p],
                                             .dtype = MOEPAGE_DTYPE_BF16,
                                             .rank = 2,
                                             .shape = {MOE_INTERMEDIATE, MOE_HIDDEN}};
        if (p == 2)
            tensors[p].shape[0] = MOE_HIDDEN, tensors[p].shape[1] = MOE_INTERMEDIATE;
        for (uint32_t key = 0; key < N_KEYS; key++) {
            char name[128];
            name_part(name, key / MOE_EXPERTS, key % MOE_EXPERTS, p);
            places[key * 3 + p].offset = find_bytes(w, name, 64);
        }
    }
    const moepage_banks banks =
        MOEPAGE_BANKS(.moe_layers = MOE_LAYERS, .experts = MOE_EXPERTS, .top_k = MOE_TOP_K,
                      .hidden = MOE_HIDDEN, .expert_intermediate = MOE_INTERMEDIATE, .n_tensors = 3,
                      .tensors = tensors, .n_files = 1, .files = &file, .places = places);
    return moepage_model_open_banks(&banks, NULL, &w->model);
}

static void open_model(world *w)
{
    moepage_status status =
        w->kind->places ? open_places(w) : moepage_model_open(w->model_path, NULL, &w->model);
    if (status)
        fail_msg("%s: %s", w->kind->name, moepage_last_error());
    w->info.struct_size = sizeof w->info;
    assert_int_equal(moepage_model_get_info(w->model, &w->info), MOEPAGE_OK);
}

static void open_world(world *w, const file_kind *kind)
{
    const moepage_device_config device = {.struct_size = sizeof device,
                                          .threads = 1,
                                          .io_threads = 1,
                                          .budget_bytes = 1u << 20,
                                          .workspace_bytes = 1u << 19};
    const moepage_expert_pool_config pool = {.struct_size = sizeof pool,
                                             .slots = SLOTS,
                                             .host_tier_bytes = kind->host_tier,
                                             .bus_form = kind->bus_form};
    const moepage_session_config session = {.struct_size = sizeof session,
                                            .max_tokens = 1,
                                            .max_top_k = 1,
                                            .regime = MOEPAGE_REGIME_CACHE,
                                            .miss = kind->miss};
    make_files(w, kind);
    open_model(w);
    assert_int_equal(moepage_device_open("host", &device, &w->device), MOEPAGE_OK);
    if (moepage_expert_pool_create(&w->device, 1, w->model, &pool, &w->pool))
        fail_msg("%s: %s", kind->name, moepage_last_error());
    assert_int_equal(moepage_session_create(w->pool, NULL, &session, &w->session), MOEPAGE_OK);
}

static void close_world(world *w)
{
    if (w->session)
        assert_int_equal(moepage_session_destroy(w->session), MOEPAGE_OK);
    if (w->pool)
        assert_int_equal(moepage_expert_pool_destroy(w->pool), MOEPAGE_OK);
    if (w->device)
        assert_int_equal(moepage_device_close(w->device), MOEPAGE_OK);
    assert_int_equal(moepage_model_close(w->model), MOEPAGE_OK);
    moe_maker_free(&w->maker);
}

/* ---- experts ---- */

/* The writer's bytes of an expert: a part of each of three tensors of all experts. */
static bool is_gguf_expert(const void *const *tensors, uint32_t layer, uint32_t expert)
{
    const uint64_t bytes = GM_HIDDEN * GM_WIDTH / 32 * 34; /* blocks of Q8_0 */
    for (uint32_t p = 0; p < 3; p++) {
        char name[128];
        snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, parts[p]);
        for (uint64_t i = 0; i < bytes; i++)
            if (((const unsigned char *)tensors[p])[i] != maker_byte(name, expert * bytes + i))
                return false;
    }
    return true;
}

/* The maker's bytes of an expert: gate and up, in one tensor if they are fused, then down. */
static bool is_expert(const void *const *tensors, bool fused, uint32_t layer, uint32_t expert)
{
    const uint64_t matrix = 2 * MOE_INTERMEDIATE * MOE_HIDDEN;
    for (uint32_t p = 0; p < 3; p++) {
        char name[128];
        const unsigned char *bytes = tensors[fused ? p / 2 : p];
        name_part(name, layer, expert, p);
        for (uint64_t i = 0; i < matrix; i++)
            if (bytes[(fused && p == 1) * matrix + i] != maker_byte(name, i))
                return false;
    }
    return true;
}

static moepage_status run_layer(world *w, uint32_t layer, uint32_t expert, bool *right)
{
    const int32_t id = (int32_t)expert;
    const float weight = 1;
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = 1,
                                     .ids = &id,
                                     .weights = &weight};
    moepage_plan plan = {.struct_size = sizeof plan};
    if (w->kind->miss != MOEPAGE_MISS_HOST) {
        moepage_status status = moepage_session_route(w->session, layer, &routing, &plan);
        const void *const *tensors = status ? NULL : plan.experts[0].tensors;
        *right = !status && (w->kind->gguf ? is_gguf_expert(tensors, layer, expert)
                                           : is_expert(tensors, !w->kind->places, layer, expert));
        return status;
    }
    /* The experts' arithmetic: what the maker's weights make of x, the first time, is right. */
    static float firsts[2][N_KEYS][GM_HIDDEN];
    static bool knowns[2][N_KEYS];
    float(*first)[GM_HIDDEN] = firsts[w->kind->gguf];
    bool *known = knowns[w->kind->gguf];
    float x[GM_HIDDEN], y[GM_HIDDEN] = {0};
    for (int i = 0; i < GM_HIDDEN; i++)
        x[i] = (float)i - 3;
    const moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    moepage_status status = moepage_session_route(w->session, layer, &routing, NULL);
    if (!status)
        status = moepage_session_ffn(w->session, layer, &ffn);
    const uint32_t key = layer * MOE_EXPERTS + expert;
    if (!status && !known[key])
        memcpy(first[key], y, sizeof y);
    known[key] |= !status;
    *right = !status && memcmp(first[key], y, sizeof y) == 0;
    return status;
}

/* A step of one token through one expert. */
static moepage_status visit(world *w, uint32_t layer, uint32_t expert)
{
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    moepage_session_stats stats = {.struct_size = sizeof stats};
    bool right;
    assert_int_equal(moepage_session_begin(w->session, &step), MOEPAGE_OK);
    moepage_status status = run_layer(w, layer, expert, &right);
    if (status) {
        assert_int_equal(moepage_session_cancel(w->session), MOEPAGE_OK);
        return status;
    }
    if (!right)
        fail_msg("%s: layer %u, expert %u: other bytes than the file had", w->kind->name, layer,
                 expert);
    assert_int_equal(moepage_session_retire(w->session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(w->session, &stats), MOEPAGE_OK);
    return MOEPAGE_OK;
}

/* ---- changes ---- */

/* Writes a byte, other than it was, until the file's time has moved: it moves in ticks, and the file
 * was written a moment ago. */
static void overwrite(const char *path, uint64_t at)
{
    struct stat before, after;
    unsigned char byte;
    int file = open(path, O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(fstat(file, &before), 0);
    assert_int_equal(pread(file, &byte, 1, (off_t)at), 1);
    byte ^= 0x40;
    do {
        assert_int_equal(pwrite(file, &byte, 1, (off_t)at), 1);
        assert_int_equal(fstat(file, &after), 0);
    } while (memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) == 0);
    close(file);
}

/* The same, and then the time of the contents as it was. */
static void overwrite_in_secret(const char *path, uint64_t at)
{
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    overwrite(path, at);
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    assert_int_equal(after.st_size, before.st_size);
}

static uint64_t size_of(const char *path)
{
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    return (uint64_t)found.st_size;
}

static const char *norm_of(const world *w)
{
    return w->kind->gguf ? "output_norm.weight" : "model.norm.weight";
}

static const char *embedding_of(const world *w)
{
    return w->kind->gguf ? "token_embd.weight" : "model.embed_tokens.weight";
}

enum {
    CUT_TO_NOTHING,
    CUT_IN_THE_HEADER,
    CUT_IN_THE_MIDDLE,
    CUT_BY_A_BYTE,
    GROW,
    OVERWRITE_HEADER,
    OVERWRITE_DENSE,
    OVERWRITE_EXPERTS,
    OVERWRITE_END,
    OVERWRITE_IN_SECRET,
    CHANGES
};

static void change(const world *w, int how)
{
    const uint64_t n = size_of(w->path);
    const uint64_t cuts[] = {0, 5, n / 2, n - 1, n + 1};
    switch (how) {
    case OVERWRITE_HEADER: overwrite(w->path, 3); break;
    case OVERWRITE_DENSE: overwrite(w->path, find_bytes(w, norm_of(w), 32)); break;
    case OVERWRITE_EXPERTS: overwrite(w->path, n * 3 / 4); break;
    case OVERWRITE_END: overwrite(w->path, n - 1); break;
    case OVERWRITE_IN_SECRET: overwrite_in_secret(w->path, n * 3 / 4); break;
    default: assert_int_equal(truncate(w->path, (off_t)cuts[how]), 0);
    }
}

static const char *words_for(int how)
{
    return how < GROW ? "was truncated since it was opened" : "was changed since it was opened";
}

static void expect_refused(const world *w, int how, moepage_status status, const char *what)
{
    if (status != MOEPAGE_E_IO)
        fail_msg("%s, change %d: %s: status %d, not IO: %s", w->kind->name, how, what, status,
                 status ? moepage_last_error() : "served");
    expect_sentence(w->name);
    expect_sentence(words_for(how));
}

/* ---- claims ---- */

/* Fills the slots, and the host tier, with others than experts 0 and 1 of layer 0 and those of
 * layer 1. */
static void serve_some(world *w)
{
    for (uint32_t e = 0; e < MOE_EXPERTS; e++)
        assert_int_equal(visit(w, 0, e), MOEPAGE_OK);
    for (int again = 0; again < 3; again++)
        for (uint32_t e = 2; e < MOE_EXPERTS; e++)
            assert_int_equal(visit(w, 0, e), MOEPAGE_OK);
}

static void test_experts_of_a_changed_file_are_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int how = 0; how < CHANGES; how++) {
            world w;
            unsigned char slot[8192];
            open_world(&w, &kinds[k]);
            serve_some(&w);
            change(&w, how);
            expect_refused(&w, how, visit(&w, 1, 3), "an expert that was never read");
            expect_sentence("expert 3 of layer 1");
            if (!kinds[k].miss) /* else it may have been fetched in the background, and be there */
                expect_refused(&w, how, visit(&w, 0, 0), "one that was read, and evicted");
            expect_refused(&w, how, visit(&w, 1, 3), "the same once more");
            expect_refused(&w, how, moepage_model_read_expert(w.model, 1, 0, slot, sizeof slot),
                           "read_expert");
            close_world(&w);
        }
}

/* What was read before is private: it is served on, and is what it was. */
static void test_what_is_resident_is_served_on(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int how = 0; how < CHANGES; how++) {
            world w;
            if (kinds[k].miss == MOEPAGE_MISS_HOST)
                continue; /* fetched in the background: which one is resident is not known */
            open_world(&w, &kinds[k]);
            serve_some(&w);
            change(&w, how);
            assert_int_equal(visit(&w, 0, 3), MOEPAGE_OK);
            assert_int_equal(visit(&w, 0, 2), MOEPAGE_OK);
            close_world(&w);
        }
}

static moepage_status find(const world *w, const char *name, moepage_tensor_view *out)
{
    *out = (moepage_tensor_view){.struct_size = sizeof *out};
    return moepage_model_find_tensor(w->model, name, out);
}

/* Reads the middle of a tensor, of which the first and the last four bytes are left out. */
static moepage_status read_middle(const world *w, const char *name)
{
    moepage_tensor_view view = {.struct_size = sizeof view, .data = &view};
    unsigned char middle[4096];
    assert_int_equal(moepage_model_read_tensor(w->model, name, 0, 0, NULL, &view), MOEPAGE_OK);
    assert_null(view.data);
    assert_in_range(view.bytes, 9, sizeof middle);
    const uint64_t bytes = view.bytes - 8;
    moepage_status status = moepage_model_read_tensor(w->model, name, 4, bytes, middle, NULL);
    for (uint64_t i = 0; i < bytes && !status; i++)
        assert_int_equal(middle[i], maker_byte(name, i + 4));
    return status;
}

static void test_dense_tensors_of_a_changed_file_are_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int how = 0; how < CHANGES; how++) {
            world w;
            moepage_tensor_view view, again;
            if (kinds[k].host_tier || kinds[k].miss || kinds[k].places)
                continue;
            make_files(&w, &kinds[k]);
            open_model(&w);
            assert_int_equal(find(&w, norm_of(&w), &view), MOEPAGE_OK);
            assert_int_equal(read_middle(&w, embedding_of(&w)), MOEPAGE_OK);
            change(&w, how);
            expect_refused(&w, how, read_middle(&w, embedding_of(&w)), "a part of a tensor");
            expect_refused(&w, how, find(&w, embedding_of(&w), &again), "a tensor");
            assert_null(again.data);
            assert_int_equal(find(&w, norm_of(&w), &again), MOEPAGE_OK);
            assert_ptr_equal(again.data, view.data);
            for (uint64_t i = 0; i < view.bytes; i++)
                assert_int_equal(((const unsigned char *)view.data)[i], maker_byte(norm_of(&w), i));
            close_world(&w);
        }
}

/* Neither the name nor who may read it is the contents. */
static void test_other_names_owners_and_modes_change_nothing(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int how = 0; how < 4; how++) {
            world w;
            char other[160];
            moepage_tensor_view view;
            open_world(&w, &kinds[k]);
            snprintf(other, sizeof other, "%s/other", w.maker.dir);
            maker_write_text(w.maker.dir, "other", "another model, newly written");
            switch (how) {
            case 0: assert_int_equal(unlink(w.path), 0); break;
            case 1: assert_int_equal(rename(other, w.path), 0); break;
            case 2: assert_int_equal(chmod(w.path, 0400), 0); break;
            default: assert_int_equal(unlink(other), 0); assert_int_equal(link(w.path, other), 0);
            }
            for (uint32_t key = 0; key < N_KEYS; key++)
                if (visit(&w, key / MOE_EXPERTS, key % MOE_EXPERTS))
                    fail_msg("%s, %d: %s", kinds[k].name, how, moepage_last_error());
            if (!kinds[k].places) /* which have experts alone */
                assert_int_equal(find(&w, norm_of(&w), &view), MOEPAGE_OK);
            close_world(&w);
        }
}

static void test_no_pack_is_written_from_a_changed_file(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (int how = 0; how < CHANGES; how++) {
            world w;
            char out[128];
            const moepage_pack_config config = {.struct_size = sizeof config, .forms = EXPH};
            if (kinds[k].host_tier || kinds[k].miss)
                continue;
            make_files(&w, &kinds[k]);
            open_model(&w);
            change(&w, how);
            snprintf(out, sizeof out, "%s/out.moepack", w.maker.dir);
            expect_refused(&w, how, moepage_pack_write(w.model, out, &config, NULL), "packing");
            assert_int_equal(access(out, F_OK), -1);
            close_world(&w);
        }
}

/* The new contents are a model like any other. */
static void test_a_changed_file_opens_again(void **state)
{
    (void)state;
    world w;
    unsigned char slot[8192];
    make_files(&w, &kinds[0]);
    open_model(&w);
    change(&w, OVERWRITE_END);
    expect_refused(&w, OVERWRITE_END, moepage_model_read_expert(w.model, 0, 0, slot, sizeof slot),
                   "read_expert");
    assert_int_equal(moepage_model_close(w.model), MOEPAGE_OK);
    open_model(&w);
    assert_int_equal(moepage_model_read_expert(w.model, 0, 0, slot, sizeof slot), MOEPAGE_OK);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_of_a_changed_file_are_refused),
        cmocka_unit_test(test_what_is_resident_is_served_on),
        cmocka_unit_test(test_dense_tensors_of_a_changed_file_are_refused),
        cmocka_unit_test(test_other_names_owners_and_modes_change_nothing),
        cmocka_unit_test(test_no_pack_is_written_from_a_changed_file),
        cmocka_unit_test(test_a_changed_file_opens_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
