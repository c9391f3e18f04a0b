/* Structs that cross the ABI: old and new sizes, garbage, and what is left untouched. */
#include <string.h>

#include "base/config.h"
#include "testing.h"

/* A struct as the library knows it, and as older and newer callers do. */
typedef struct today {
    uint32_t struct_size;
    uint32_t first;
    uint64_t second;
} today;

typedef struct yesterday {
    uint32_t struct_size;
    uint32_t first;
} yesterday;

typedef struct tomorrow {
    uint32_t struct_size;
    uint32_t first;
    uint64_t second;
    uint64_t third;
} tomorrow;

static void test_config_older_callers_get_defaults_for_what_they_lack(void **state)
{
    (void)state;
    yesterday caller = {.struct_size = sizeof caller, .first = 7};
    today own;
    memset(&own, 0xcc, sizeof own);
    assert_int_equal(mp_config_read(&own, sizeof own, sizeof caller, &caller, "caller"),
                     MOEPAGE_OK);
    assert_int_equal(own.first, 7);
    assert_int_equal(own.second, 0);
    assert_int_equal(own.struct_size, sizeof own);
}

static void test_config_newer_callers_are_refused_only_what_is_not_zero(void **state)
{
    (void)state;
    tomorrow caller = {.struct_size = sizeof caller, .first = 7, .second = 8};
    today own;
    assert_int_equal(MP_CONFIG_READ(own, &caller), MOEPAGE_OK);
    assert_int_equal(own.second, 8);
    caller.third = 1ull << 63;
    assert_int_equal(MP_CONFIG_READ(own, &caller), MOEPAGE_E_VERSION);
    assert_non_null(strstr(moepage_last_error(), "byte"));
}

static void test_config_no_caller_means_all_defaults(void **state)
{
    (void)state;
    today own = {.first = 3}, none = {.struct_size = sizeof none};
    assert_int_equal(MP_CONFIG_READ(own, NULL), MOEPAGE_OK);
    assert_memory_equal(&own, &none, sizeof own);
}

static void test_config_writes_no_further_than_the_caller_has(void **state)
{
    (void)state;
    const today own = {.struct_size = sizeof own, .first = 7, .second = UINT64_MAX};
    struct {
        yesterday caller;
        uint64_t beyond;
    } memory = {.caller = {.struct_size = sizeof memory.caller}, .beyond = 42};
    assert_int_equal(mp_config_write(&memory.caller, &own, sizeof own, sizeof memory.caller,
                                     "caller"),
                     MOEPAGE_OK);
    assert_int_equal(memory.caller.first, 7);
    assert_int_equal(memory.caller.struct_size, sizeof memory.caller);
    assert_int_equal(memory.beyond, 42);

    tomorrow larger = {.struct_size = sizeof larger, .third = 9};
    assert_int_equal(MP_CONFIG_WRITE(&larger, own), MOEPAGE_OK);
    assert_int_equal(larger.third, 0);
    assert_int_equal(larger.struct_size, sizeof larger);
}

/* A struct that was never initialised says anything; nothing may be read or written beyond it. */
static void test_config_garbage_sizes_are_refused_untouched(void **state)
{
    (void)state;
    const uint32_t sizes[] = {0, 1, sizeof(today) - 1, 4097, 0xcccccccc, UINT32_MAX};
    today own = {.struct_size = sizeof own}, caller, before;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(&caller, 0xcc, sizeof caller);
        caller.struct_size = sizes[i];
        before = caller;
        assert_int_equal(MP_CONFIG_READ(own, &caller), MOEPAGE_E_VERSION);
        assert_int_equal(MP_CONFIG_WRITE(&caller, own), MOEPAGE_E_VERSION);
        assert_int_equal(MP_CONFIG_CHECK(&caller), MOEPAGE_E_VERSION);
        assert_non_null(strstr(moepage_last_error(), "sizeof"));
        assert_memory_equal(&caller, &before, sizeof caller);
    }
    assert_int_equal(MP_CONFIG_WRITE((today *)NULL, own), MOEPAGE_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_older_callers_get_defaults_for_what_they_lack),
        cmocka_unit_test(test_config_newer_callers_are_refused_only_what_is_not_zero),
        cmocka_unit_test(test_config_no_caller_means_all_defaults),
        cmocka_unit_test(test_config_writes_no_further_than_the_caller_has),
        cmocka_unit_test(test_config_garbage_sizes_are_refused_untouched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
