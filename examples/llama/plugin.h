/* plugin.h — llama.cpp's experts, paged: what the files of libggml-moepage.so share.
 *
 *   plugin.c     what ggml sees: a registry with one device, whose buffers take the expert tensors
 *   settings.c   the environment's variables
 *   memory.c     how much of it is free
 *   buffers.c    the buffers: which tensor of which layer is where
 *   places.c     in which file, and where in it
 *   layers.c     the experts of a loaded model, as libmoepage has them described
 *   paging.c     these in an engine of libmoepage
 *   learnt.c     what outlives a run: a predictor's state, a trace
 *   device.c     slots in memory of another device of the host's, and what computes there
 *   choice.c     whose kernels are faster
 *   chain.c      the operations of a layer that belong together
 *   compute.c    runs them, group after group of experts: group.h
 *   report.c     hits, bytes and waiting, at the end and in a file
 *   say.c        sentences on standard error
 *
 * Data flows down this list, and failures come back up as sentences that have been said. */
#ifndef LLAMA_PLUGIN_H
#define LLAMA_PLUGIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <moepage.h>

/* The structs that a host and the plug-in share are those of one version of ggml's interface for backends. */
#if GGML_BACKEND_API_VERSION != 2 && GGML_BACKEND_API_VERSION != 3
#error \
    "this llama.cpp has a backend API of another version than 2 and 3, with which the plug-in is checked"
#endif

/* ---- say.c ---- */

/* One line on standard error, with the plug-in's name before it. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* ---- memory.c ---- */

/* Bytes that the process can still get. */
uint64_t memory_free(void);

/* ---- settings.c ---- */

typedef enum kernels_setting { KERNELS_AUTO, KERNELS_OWN, KERNELS_HOST } kernels_setting;

typedef struct settings {
    kernels_setting kernels; /* that multiply experts with rows */
    char device[64]; /* of the host's, in whose memory the slots are to be; "" = the host's own */
    char budget[32]; /* as in moepage_engine_open's options, or "auto" */
    char policy[32];
    char stats[1024]; /* "text", "off", or the path of a file of metrics */
    const char *
        options; /* more options for the engine, or ""; these three are the environment's own memory */
    const char *state; /* the path of what a predictor has learnt, or "" */
    const char *trace; /* the path of a trace that is to be recorded, or "" */
} settings;

/* Reads the variables MOEPAGE_*, as they are now. False, after a sentence, if one of them is wrong. */
bool settings_read(settings *out);

/* The same, of which nothing is wanted yet. */
bool settings_are_right(void);

/* ---- buffers.c ---- */

enum { MOST_BANKS = 4, MOST_FILES = 256, MOST_LAYERS = 1024 };

/* The experts of one projection of one layer. */
typedef struct bank {
    const char *address; /* of expert 0 in the mapping; NULL = there is none */
    enum ggml_type type;
    int64_t columns, rows, experts;
    uint64_t expert_bytes;
    uint32_t file;
    uint64_t offset;
} bank;

/* Another device of the host's, in whose memory a model's slots are. */
typedef struct slot_device {
    ggml_backend_dev_t device; /* NULL = slots are in the host's memory */
    ggml_backend_buffer_t slots;
    moepage_external_memory memory;
    pthread_mutex_t lock; /* backends need not bear two threads at once */
} slot_device;

/* One model of the host: its expert tensors, and from the first context on their pages. */
typedef struct paged_model {
    struct paged_model *next;
    uint32_t n_buffers; /* the model lives as long as one of its buffers */
    bool closed;        /* no more tensors come */
    bool in_memory; /* the host has given bytes that no file is known to have: nothing is paged */
    bool lost;      /* a file did not give bytes that it had */
    char *files[MOST_FILES];
    uint32_t n_files;
    uint32_t n_layers;                   /* 1 + the last one that has banks */
    bank banks[MOST_LAYERS][MOST_BANKS]; /* by bank_kind */
    int32_t moe_layer[MOST_LAYERS];      /* of the engine; -1 = none */
    uint32_t tensor_of[MOST_BANKS];      /* of an expert in the engine */
    bool own_kernels; /* this library's multiply experts with rows; else the host's */
    slot_device device;
    moepage_model *model;
    moepage_engine *engine; /* NULL until pages_open */
    atomic_bool
        engine_session_taken; /* contexts take and give sessions each in a thread of its own */
    char stats[1024];         /* the setting */
    char state[1024];         /* where the predictor is to be saved, or "" */
    moepage_trace *trace;
    _Atomic int64_t stats_at; /* second in which the file was written last */
    atomic_bool stats_failed;
} paged_model;

/* Which of a layer's banks a tensor name means: its index, and the layer; -1 for no bank. */
int bank_kind(const char *name, uint32_t *layer);

ggml_backend_buffer_type_t buffers_type(void);

/* A buffer over the mapping of a GGUF file. NULL, after a sentence, if its file cannot be found. */
ggml_backend_buffer_t buffers_map(void *address, size_t bytes);

/* The model to which a weight belongs, or NULL if it does not lie in a buffer of ours. */
paged_model *buffers_model_of(const struct ggml_tensor *weight);

/* Calls `each` with every model that is there; false if one call gave false. */
bool buffers_each_model(bool (*each)(paged_model *model));

/* ---- places.c ---- */

/* Finds the file that is mapped at [address, address + bytes), and where in it that begins. path[PATH_MAX]. */
bool place_of_mapping(const char *address, size_t bytes, char *path, uint64_t *offset);

/* Finds an open GGUF file that has this tensor with this data, and where. path[PATH_MAX]. One thread. */
bool place_of_tensor(const struct ggml_tensor *tensor, const void *data, char *path,
                     uint64_t *offset);

/* Lets the system drop what it keeps of a file's range, and of its mapping at `address`. The bytes stay the same. */
void place_drop(const char *path, uint64_t offset, char *address, size_t bytes);

/* Frees what place_of_tensor keeps for the next tensor. */
void places_forget(void);

/* ---- layers.c ---- */

/* The library's type of the host's; MOEPAGE_DTYPE_U8 for blocks that it does not know. */
uint32_t layers_dtype(enum ggml_type type);

/* The library's math that rounds rows for such weights as the host's kernels do: to 8 bits in blocks for blocks, to
 * BF16 for BF16, not at all for F32. Rows for F16 are not rounded to F16. */
uint32_t layers_math(enum ggml_type type);

/* Opens the model of which all banks are known. False after a sentence. */
bool layers_open(paged_model *of);

/* ---- learnt.c ---- */

/* Loads what a predictor has learnt, and begins a trace, where these are asked for. False after a sentence. */
bool learnt_open(paged_model *of, const settings *chosen);

/* Saves both. */
void learnt_close(paged_model *of);

/* ---- paging.c ---- */

/* Opens the engine of a model of which all tensors are known. False after a sentence. */
bool pages_open(paged_model *model);

/* Reports, and closes the engine. */
void pages_close(paged_model *model);

/* A session on the model's pages: the engine's own, if nobody has it. NULL after a sentence. */
moepage_session *pages_take_session(paged_model *model);
void pages_give_session(paged_model *model, moepage_session *session);

enum { MOST_TOKENS = 8192, MOST_TOP_K = 32 }; /* of a session's step */

/* The most experts of a token in a session's step. */
uint32_t pages_top_k(const moepage_model *model);

/* ---- report.c ---- */

/* Writes the file of metrics, if there is to be one, at most once in a second. */
void report_now_and_then(paged_model *model);

/* The last of them, and a line. */
void report_at_the_end(paged_model *model);

/* ---- device.c ---- */

/* Finds the device that the settings name, if they do. False after a sentence. */
bool device_find(paged_model *of, const settings *chosen);

/* Bytes of its memory that are free. */
uint64_t device_free(const slot_device *of);

/* Copy bytes between the host's memory and a buffer of the device's, whose addresses may only be counted with. */
void device_write(slot_device *of, ggml_backend_buffer_t buffer, void *to, const void *from,
                  size_t bytes);
void device_read(slot_device *of, ggml_backend_buffer_t buffer, void *from, void *to, size_t bytes);

/* Makes a buffer as large as that; its contents are lost. False after a sentence. */
bool device_room(const slot_device *of, ggml_backend_buffer_t *buffer, size_t bytes);

/* Runs a graph of which all tensors are in the device's memory. */
enum ggml_status device_compute(slot_device *of, ggml_backend_t backend, struct ggml_cgraph *graph);

/* ---- choice.c ---- */

/* Chooses whose kernels run a model's products, once for all of its contexts, and says it. False after a sentence. */
bool choice_make(paged_model *of, const settings *chosen);

/* ---- rows.c ---- */

/* Computes the products of one row of `columns` elements with `rows` rows of weights by the host's dot products, in
 * this thread; `rounded` is scratch of `columns` floats. False if the host has none for the type. */
bool rows_multiply_one(enum ggml_type type, int64_t columns, int64_t rows, const char *weights,
                       const float *x, void *rounded, float *out);

/* ---- chain.c ---- */

enum { MOST_LINKS = 16 };

typedef enum op_kind {
    OP_OTHER,
    OP_NOTHING, /* a view, or no operation at all */
    OP_MUL_MAT_ID,
    OP_ADD_ID,
    OP_GLU
} op_kind;

/* The kind of a node's operation, by its name. */
op_kind op_kind_of(const struct ggml_tensor *node);

/* True for a product with a bank of ours. */
bool is_bank_product(const struct ggml_tensor *node);

/* True for what may be computed with such products: biases and activations of their results. */
bool follows_bank_product(const struct ggml_tensor *node);

/* Consecutive operations of a graph on the same experts of one layer. */
typedef struct expert_chain {
    paged_model *model;
    uint32_t layer; /* of the host's model */
    const struct ggml_tensor *ids;
    struct ggml_tensor *links[MOST_LINKS]; /* without views */
    uint32_t n_links;
    int end; /* the first node behind it */
} expert_chain;

/* Collects the chain that begins at node `first`, which is a bank's product. */
void chain_collect(struct ggml_cgraph *graph, int first, expert_chain *out);

/* ---- compute.c ---- */

/* A backend of ours, one for each context of the host. */
typedef struct compute {
    ggml_backend_t cpu;  /* the host's own, which runs the kernels */
    ggml_backend_t away; /* runs them where the slots are on another device; else NULL */
    ggml_backend_buffer_t away_scratch; /* laid out as `scratch` is */
    int n_threads;
    paged_model *model; /* the session's */
    moepage_session *session;
    int64_t step_tokens; /* of the open step; 0 = none is open */
    int64_t last_layer;  /* that has run in it */
    char *scratch;
    size_t scratch_bytes;
    char *aside;
    size_t aside_bytes;
    char *graph_memory;
    size_t graph_bytes;
    int32_t *ids; /* [MOST_TOKENS * MOST_TOP_K] */
} compute;

compute *compute_open(void);
void compute_close(compute *of);
void compute_set_threads(compute *of, int n_threads);
enum ggml_status compute_graph(compute *of, struct ggml_cgraph *graph);

#endif
