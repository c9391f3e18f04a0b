/* The residency planner by hand: two models of the FluxMoE paper on an L40, a bus of 25 GB/s and a
 * decoder of seven times that. */

#include <math.h>

#include "planning/residency.h"
#include "testing.h"

#define MS 1e6
#define ROOMY 1000000000000u

/* Qwen3-Next-80B-A3B: 48 layers of 512 experts of 3 x 2048 x 512 BF16 weights. */
static mp_residency_machine qwen3_next(void)
{
    return (mp_residency_machine){
        .experts = 512,
        .layers = 48,
        .dense_bytes = 6291456,
        .compressed_bytes = 4718592, /* three quarters */
        .window_bytes = 2 * 512 * 6291456ull,
        .bus_bytes_per_s = 25000000000,
        .decode_bytes_per_s = 175000000000,
        .union_fraction = 1,
    };
}

/* Mixtral-8x7B: 32 layers of 8 experts of 3 x 4096 x 14336. One takes 14.0929 ms of the bus. */
static mp_residency_machine mixtral(void)
{
    return (mp_residency_machine){
        .experts = 8,
        .layers = 32,
        .dense_bytes = 352321536,
        .compressed_bytes = 264241152,
        .window_bytes = 2 * 8 * 352321536ull,
        .bus_bytes_per_s = 25000000000,
        .decode_bytes_per_s = 175000000000,
        .union_fraction = 1,
    };
}

static void expect_ns(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * expected)
        fail_msg("%.12g ns, expected %.12g", got, expected);
}

static void expect_load(const mp_residency_machine *machine, uint32_t dense, uint32_t compressed,
                        double expected)
{
    mp_residency_plan plan = {dense, compressed};
    expect_ns(mp_residency_load_ns(machine, &plan), expected);
}

static mp_residency_planner planner_at(uint32_t dense, uint32_t compressed,
                                       mp_residency_config config)
{
    mp_residency_planner planner;
    mp_residency_plan start = {dense, compressed};
    if (config.theta == 0)
        config.theta = 0.9;
    mp_residency_init(&planner, &config, &start);
    return planner;
}

/* One interval, and its plan. */
static mp_residency_answer expect_step(mp_residency_planner *planner,
                                       const mp_residency_machine *machine,
                                       const mp_residency_input *input, mp_residency_why why,
                                       uint32_t dense, uint32_t compressed)
{
    mp_residency_answer answer;
    mp_residency_step(planner, machine, input, &answer);
    assert_int_equal(answer.why, why);
    assert_int_equal(answer.next.dense, dense);
    assert_int_equal(answer.next.compressed, compressed);
    return answer;
}

/* ---- Equations 9 to 12 ---- */

static void test_residency_load_is_that_of_the_slowest_backend(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    /* 64 experts over the bus and 448 through the decoder take 16.10612736 ms each (eq. 8). */
    expect_load(&l40, 0, 448, 48 * 16.10612736 * MS);
    expect_load(&l40, 64, 384, 48 * 16.10612736 * MS); /* dense ones cost nothing */
    expect_load(&l40, 0, 384, 48 * 32.21225472 * MS);  /* 128 over the bus */
    expect_load(&l40, 512, 0, 0);
    /* All compressed: 512 x 6291456 B at 175 GB/s; seven of them on the host are seven less. */
    expect_load(&l40, 0, 512, 48 * 512 * 6291456. / 175);
    expect_load(&l40, 0, 505, 48 * 505 * 6291456. / 175);
    l40.union_fraction = 0.5;
    expect_load(&l40, 0, 448, 48 * 8.05306368 * MS);
    /* Images three quarters as large are brought sooner, but all 512 are decoded. */
    l40.union_fraction = 1;
    l40.coded_bus = true;
    expect_load(&l40, 0, 448, 48 * 512 * 6291456. / 175);
    expect_load(&l40, 0, 256, 48 * 48.31838208 * MS);
    expect_load(&l40, 448, 0, 48 * 12.07959552 * MS);
    /* No decoder: images do not cross the bus, and compressed copies are of no use. */
    l40.decode_bytes_per_s = 0;
    expect_load(&l40, 448, 0, 48 * 16.10612736 * MS);
    mp_residency_plan none = {0, 1};
    assert_true(isinf(mp_residency_load_ns(&l40, &none)));
}

static void test_residency_rho_and_bytes_are_those_of_the_paper(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_plan plan = {64, 384};
    assert_true(mp_residency_bytes(&l40, &plan) == 112742891520);
    mp_residency_planner planner = planner_at(0, 448, (mp_residency_config){.no_dense = true});
    mp_residency_input input = {.comp_ns = 700 * MS, .gpu_bytes = ROOMY};
    mp_residency_answer answer =
        expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 0, 448); /* 0.9 <= rho <= 1 */
    expect_ns(answer.load_ns, 773.09411328 * MS);
    expect_ns(answer.rho, 700 / 773.09411328);
    expect_ns(answer.alpha, 0.875);
}

/* ---- To the band ---- */

/* 800 ms of computing: 16.67 ms a layer, and 67 experts fill the bus for 16.86 ms, rho = 0.988. */
static void test_residency_lowers_alpha_one_by_one_until_rho_is_1(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_planner planner = planner_at(0, 512, (mp_residency_config){.no_dense = true});
    mp_residency_input input = {.comp_ns = 800 * MS, .gpu_bytes = ROOMY};
    for (uint32_t host = 1; host <= 67; host++)
        expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 0, 512 - host);
    for (uint32_t i = 0; i < 100; i++) {
        mp_residency_answer answer = expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 0, 445);
        expect_ns(answer.rho, 800 / (48 * 67 * 6291456. / 25e9 * 1e3));
    }
}

/* 20 ms a layer: one of Mixtral's experts over the bus is rho 1.42, two are 0.71; the decoder keeps
 * up with the other seven, and none is dense. */
static void test_residency_stays_before_a_band_without_a_plan(void **state)
{
    (void)state;
    mp_residency_machine l40 = mixtral();
    mp_residency_input input = {.comp_ns = 32 * 20 * MS, .gpu_bytes = ROOMY};
    mp_residency_planner up = planner_at(0, 0, (mp_residency_config){.theta = 0.9});
    for (uint32_t i = 1; i <= 7; i++)
        expect_step(&up, &l40, &input, MP_RESIDENCY_RAISE, 0, i);
    mp_residency_planner down = planner_at(8, 0, (mp_residency_config){.theta = 0.9});
    for (uint32_t i = 0; i < 8; i++)
        mp_residency_step(&down, &l40, &input, &(mp_residency_answer){0});
    for (uint32_t i = 0; i < 50; i++) {
        expect_step(&up, &l40, &input, MP_RESIDENCY_HOLD, 0, 7);
        expect_step(&down, &l40, &input, MP_RESIDENCY_HOLD, 0, 7);
    }
}

/* A decoder of 25 GB/s brings one expert in 16 ms, and the bus another; six have to be dense. */
static void test_residency_keeps_dense_what_the_decoder_cannot_bring(void **state)
{
    (void)state;
    mp_residency_machine l40 = mixtral();
    mp_residency_input input = {.comp_ns = 32 * 16 * MS, .gpu_bytes = ROOMY};
    l40.decode_bytes_per_s = 25000000000;
    mp_residency_planner planner = planner_at(0, 8, (mp_residency_config){.theta = 0.9});
    for (uint32_t i = 0; i < 8; i++)
        mp_residency_step(&planner, &l40, &input, &(mp_residency_answer){0});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 6, 1);
    l40.compressed_bytes = 0; /* no such form: it goes dense */
    expect_step(&planner, &l40, &input, MP_RESIDENCY_RAISE, 7, 0);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 7, 0);
}

static void test_residency_stops_at_its_bounds(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_input slow = {.comp_ns = 1e15, .gpu_bytes = ROOMY};
    mp_residency_config config = {.min_alpha = 300, .no_dense = true};
    mp_residency_planner planner = planner_at(0, 302, config);
    expect_step(&planner, &l40, &slow, MP_RESIDENCY_LOWER, 0, 301);
    expect_step(&planner, &l40, &slow, MP_RESIDENCY_LOWER, 0, 300);
    expect_step(&planner, &l40, &slow, MP_RESIDENCY_BOUND, 0, 300);
    /* Nothing keeps up with 1 ms a layer: 64 on the host is as soon as it gets. */
    mp_residency_input fast = {.comp_ns = 48 * MS, .gpu_bytes = ROOMY};
    planner = planner_at(0, 447, config);
    expect_step(&planner, &l40, &fast, MP_RESIDENCY_RAISE, 0, 448);
    expect_step(&planner, &l40, &fast, MP_RESIDENCY_BOUND, 0, 448);
}

/* Coded images: all 512 are decoded wherever they lie, in 18.4 ms. The bus brings 97 meanwhile,
 * which costs nothing, and gives memory up. */
static void test_residency_gives_up_memory_that_buys_no_time(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_input input = {.comp_ns = 48 * MS, .gpu_bytes = ROOMY};
    l40.coded_bus = true;
    mp_residency_planner planner = planner_at(0, 512, (mp_residency_config){.no_dense = true});
    for (uint32_t host = 1; host <= 97; host++)
        expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 0, 512 - host);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_BOUND, 0, 415);
}

/* 16.67 ms a layer: 67..73 on the host; of a decoder of 50 GB/s 133..147. */
static void test_residency_takes_the_way_that_matters_most(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_input input = {.comp_ns = 800 * MS, .gpu_bytes = ROOMY};
    l40.decode_bytes_per_s = 50000000000;
    /* Memory, where computing takes longer: to the host rather than compressed. */
    mp_residency_planner planner = planner_at(512, 0, (mp_residency_config){.theta = 0.9});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 511, 0);
    /* Time, where the decoder is the bottleneck: a compressed one to the host, not a dense one. */
    planner = planner_at(300, 200, (mp_residency_config){.theta = 0.9});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 300, 199);
    /* From the host an expert comes compressed if the decoder keeps up. */
    planner = planner_at(298, 140, (mp_residency_config){.theta = 0.9});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_RAISE, 298, 141);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 298, 141);
}

/* ---- KV first ---- */

static void test_residency_gives_kv_what_it_needs_at_once(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    const uint64_t gpu = 160000000000, all = 112742891520; /* of 64 dense, 384 compressed */
    mp_residency_planner planner = planner_at(64, 384, (mp_residency_config){.theta = 0.9});
    /* 800 ms: 67..73 on the host, and all others compressed. One byte costs one of each layer. */
    mp_residency_input input = {.comp_ns = 800 * MS, .gpu_bytes = gpu, .kv_bytes = gpu - all + 1};
    expect_step(&planner, &l40, &input, MP_RESIDENCY_KV, 63, 384);
    input.kv_bytes = gpu - (all - 48 * 20 * 6291456ull);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_KV, 44, 384);
    /* All dense ones and 500 MB more: 105.96 of 4.5 MiB each. */
    input.kv_bytes = gpu - (all - 48 * (64 * 6291456ull + 500000000));
    expect_step(&planner, &l40, &input, MP_RESIDENCY_KV, 0, 278);
    /* It is over: one by one again. */
    input.kv_bytes = 0;
    for (uint32_t i = 1; i <= 512 - 73 - 278; i++)
        expect_step(&planner, &l40, &input, MP_RESIDENCY_RAISE, 0, 278 + i);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 0, 439);
    /* min_alpha is no reason to keep KV waiting, nor is the window. */
    planner = planner_at(0, 400, (mp_residency_config){.min_alpha = 300});
    input.kv_bytes = gpu - l40.window_bytes;
    expect_step(&planner, &l40, &input, MP_RESIDENCY_KV, 0, 0);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_BUDGET, 0, 0);
    input.kv_bytes = gpu;
    expect_step(&planner, &l40, &input, MP_RESIDENCY_KV, 0, 0);
}

static void test_residency_raises_no_further_than_kv_lets_it(void **state)
{
    (void)state;
    mp_residency_machine l40 = mixtral();
    mp_residency_input input = {.comp_ns = 32 * 20 * MS,
                                .gpu_bytes = l40.window_bytes + 32 * 4 * l40.compressed_bytes};
    mp_residency_planner planner = planner_at(3, 0, (mp_residency_config){.theta = 0.9});
    /* Three dense or four compressed: one is compressed, one more fits, and so on. */
    for (uint32_t i = 0; i < 4; i++)
        mp_residency_step(&planner, &l40, &input, &(mp_residency_answer){0});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_BUDGET, 0, 4);
}

/* ---- Not back and forth ---- */

/* Two of Mixtral's experts on the host are rho 0.91 of 25.65 ms a layer; 2 % less computing, and
 * one is raised. Only past the middle of the band, at 0.95, is it given up again. */
static void test_residency_does_not_go_back_to_what_it_refused(void **state)
{
    (void)state;
    mp_residency_machine l40 = mixtral();
    const double two_ns = 32 * 2 * 352321536. / 25;
    mp_residency_input input = {.gpu_bytes = ROOMY, .comp_ns = 0.91 * two_ns};
    mp_residency_planner planner = planner_at(0, 6, (mp_residency_config){.theta = 0.9});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 0, 6);
    input.comp_ns = 0.89 * two_ns;
    expect_step(&planner, &l40, &input, MP_RESIDENCY_RAISE, 0, 7);
    for (uint32_t i = 0; i < 50; i++) {
        input.comp_ns = (i % 2 ? 0.94 : 0.89) * two_ns;
        expect_step(&planner, &l40, &input, MP_RESIDENCY_HOLD, 0, 7);
    }
    input.comp_ns = 0.96 * two_ns;
    expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 0, 6);
}

/* Nothing keeps up; 64 on the host load soonest, 65 take 1.6 % longer. What the planner lowered
 * itself it does not raise for that, what KV took it does. */
static void test_residency_takes_back_what_kv_took(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_config config = {.no_dense = true};
    mp_residency_input roomy = {.comp_ns = 48 * MS, .gpu_bytes = ROOMY}, tight = roomy;
    tight.gpu_bytes = l40.window_bytes + 48 * 447 * l40.compressed_bytes;
    mp_residency_planner planner = planner_at(0, 449, config);
    expect_step(&planner, &l40, &roomy, MP_RESIDENCY_LOWER, 0, 448);
    expect_step(&planner, &l40, &tight, MP_RESIDENCY_KV, 0, 447);
    expect_step(&planner, &l40, &roomy, MP_RESIDENCY_RAISE, 0, 448);
    planner = planner_at(0, 449, config);
    expect_step(&planner, &l40, &roomy, MP_RESIDENCY_LOWER, 0, 448);
    mp_residency_machine slower = l40;
    slower.bus_bytes_per_s = 24700000000; /* 63 of 24.7 GB/s load sooner than 64, by 1.2 % */
    expect_step(&planner, &slower, &roomy, MP_RESIDENCY_BOUND, 0, 448);
    slower.bus_bytes_per_s = 23000000000;
    expect_step(&planner, &slower, &roomy, MP_RESIDENCY_RAISE, 0, 449);
}

static void test_residency_goes_on_from_what_could_be_done(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next();
    mp_residency_planner planner = planner_at(0, 512, (mp_residency_config){.no_dense = true});
    mp_residency_input input = {.comp_ns = 800 * MS, .gpu_bytes = ROOMY};
    mp_residency_plan actual = {0, 512};
    expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 0, 511);
    mp_residency_reject(&planner, &actual);
    expect_step(&planner, &l40, &input, MP_RESIDENCY_LOWER, 0, 511);
}

/* ---- By measured use ---- */

/* OLMoE on an L40, images of two thirds over the bus, one sequence: 8 of 64 experts a layer. A cache of x dense ones
 * misses 8 (1 - x / 64)^4, and streaming never pays. */
static mp_residency_machine olmoe(double *misses)
{
    for (uint32_t x = 0; x <= 64; x++)
        misses[x] = 8 * pow(1 - x / 64.0, 4);
    return (mp_residency_machine){
        .experts = 64,
        .layers = 16,
        .dense_bytes = 12582912,
        .compressed_bytes = 8388608,
        .window_bytes = 128 * 12582912ull,
        .coded_bus = true,
        .bus_bytes_per_s = 25000000000,
        .decode_bytes_per_s = 175000000000,
        .union_fraction = 0.125,
        .cached = misses,
        .streamed = misses,
        .unforeseen = 1,
    };
}

static void test_residency_step_by_use_is_what_its_misses_take(void **state)
{
    (void)state;
    double misses[65], streamed[65];
    mp_residency_machine l40 = olmoe(misses);
    const double bus = 8388608. / 25, decoder = 12582912. / 175, comp = 16 * 200000.;
    /* Half of 2 ^ -4 * 8 = half a miss a layer: no two at once, so that each waits for the bus and then the decoder. */
    mp_residency_plan half = {32, 0};
    expect_ns(mp_residency_step_ns(&l40, &half, comp), comp + 16 * 0.5 * (bus + decoder));
    /* A quarter has images; 8 misses: the decoder's part hides behind the bus but for one. */
    mp_residency_plan images = {0, 16};
    expect_ns(mp_residency_step_ns(&l40, &images, comp), comp + 16 * (6 * bus + decoder));
    l40.coded_bus = false; /* only what has an image is decoded */
    double dense = 12582912. / 25;
    expect_ns(mp_residency_step_ns(&l40, &images, comp), comp + 16 * (6 * dense + 2 * decoder / 8));
    /* All foreseen: as long as the bus, which brings a quarter of what a cache misses. */
    for (uint32_t x = 0; x <= 64; x++)
        streamed[x] = misses[x] / 4;
    l40.streamed = streamed;
    l40.unforeseen = 0;
    expect_ns(mp_residency_step_ns(&l40, &images, comp), 16 * 1.5 * dense);
    l40.unforeseen = 0.5; /* computing hides half as much, and some wait for the decoder */
    expect_ns(mp_residency_step_ns(&l40, &images, comp),
              16 * (1.5 * dense + 0.5 * (200000 + 0.5 * decoder / 2)));
    expect_ns(mp_residency_step_ns(&l40, &(mp_residency_plan){64, 0}, comp), comp);
}

/* Bands keep 34 in the room of 23 dense ones, nearly all compressed, and wait for the rest; one sequence wants the 23. */
static void test_residency_keeps_dense_what_few_use_again(void **state)
{
    (void)state;
    double misses[65];
    mp_residency_machine l40 = olmoe(misses);
    mp_residency_input input = {.comp_ns = 3.2 * MS,
                                .gpu_bytes = l40.window_bytes + 16 * 23 * l40.dense_bytes};
    mp_residency_planner planner = planner_at(2, 31, (mp_residency_config){.theta = 0.9});
    for (uint32_t i = 0; i < 3; i++)
        mp_residency_step(&planner, &l40, &input, &(mp_residency_answer){0});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_BUDGET, 23, 0);
    l40.cached = l40.streamed = NULL;
    for (uint32_t i = 0; i < 64; i++)
        mp_residency_step(&planner, &l40, &input, &(mp_residency_answer){0});
    expect_step(&planner, &l40, &input, MP_RESIDENCY_BUDGET, 1, 33);
}

/* ---- Exp#3 ---- */

/* Seven intervals offload 48 experts each: one of every layer, or 336 of the last. */
static void test_residency_by_layer_loads_one_layer_for_all(void **state)
{
    (void)state;
    mp_residency_machine l40 = qwen3_next(), one = l40;
    mp_residency_plan plan = {0, 505}, of;
    double staggered = 0, crowded = 0;
    one.layers = 1;
    for (uint32_t l = 0; l < 48; l++) {
        mp_residency_layer(&l40, &plan, false, l, &of);
        assert_int_equal(of.compressed, 505);
        staggered += mp_residency_load_ns(&one, &of);
        mp_residency_layer(&l40, &plan, true, l, &of);
        assert_int_equal(of.compressed, l < 47 ? 512 : 512 - 336);
        assert_int_equal(of.dense, 0);
        crowded += mp_residency_load_ns(&one, &of);
    }
    expect_ns(staggered, mp_residency_load_ns(&l40, &plan));
    expect_ns(crowded, 47 * 512 * 6291456. / 175 + 336 * 6291456. / 25);
    assert_true(crowded > staggered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency_load_is_that_of_the_slowest_backend),
        cmocka_unit_test(test_residency_rho_and_bytes_are_those_of_the_paper),
        cmocka_unit_test(test_residency_lowers_alpha_one_by_one_until_rho_is_1),
        cmocka_unit_test(test_residency_stays_before_a_band_without_a_plan),
        cmocka_unit_test(test_residency_keeps_dense_what_the_decoder_cannot_bring),
        cmocka_unit_test(test_residency_stops_at_its_bounds),
        cmocka_unit_test(test_residency_gives_up_memory_that_buys_no_time),
        cmocka_unit_test(test_residency_takes_the_way_that_matters_most),
        cmocka_unit_test(test_residency_gives_kv_what_it_needs_at_once),
        cmocka_unit_test(test_residency_raises_no_further_than_kv_lets_it),
        cmocka_unit_test(test_residency_does_not_go_back_to_what_it_refused),
        cmocka_unit_test(test_residency_takes_back_what_kv_took),
        cmocka_unit_test(test_residency_goes_on_from_what_could_be_done),
        cmocka_unit_test(test_residency_step_by_use_is_what_its_misses_take),
        cmocka_unit_test(test_residency_keeps_dense_what_few_use_again),
        cmocka_unit_test(test_residency_by_layer_loads_one_layer_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
