/* Machines' files: what they must say, what they may not, and the ones that come with the tool. */

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simulated/sim.h"
#include "testing.h"

/* Every number differs, so that no two can be mixed up. */
static const char whole[] = "{\"name\": \"m\", \"comment\": \"c\", \"source\": \"s\","
                            "\"memory_bytes\": 1001, \"memory_bytes_per_s\": 1002,"
                            "\"compute_flops\": 1003, \"bus_bytes_per_s\": 1004,"
                            "\"bus_latency_ns\": 1005, \"decode_bytes_per_s\": 1006,"
                            "\"decode_latency_ns\": 1007, \"cold_bytes_per_s\": 1008,"
                            "\"cold_latency_ns\": 1009, \"launch_ns\": 1010,"
                            "\"host_memory_bytes\": 1011}";

static const char *const numbers[] = {"memory_bytes",      "memory_bytes_per_s",
                                      "compute_flops",     "bus_bytes_per_s",
                                      "bus_latency_ns",    "decode_bytes_per_s",
                                      "decode_latency_ns", "cold_bytes_per_s",
                                      "cold_latency_ns",   "launch_ns",
                                      "host_memory_bytes"};
#define N_NUMBERS (sizeof numbers / sizeof *numbers)

static char path[] = "/tmp/moepage-machine-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void put(const char *text, size_t n)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static moepage_status read_text(const char *text, mp_sim_profile *out)
{
    put(text, strlen(text));
    return mp_sim_profile_read(path, out);
}

/* Refused with a sentence that names the file and `what`; nothing is written. */
static void assert_refused(const char *text, const char *what)
{
    mp_sim_profile out, before;
    memset(&out, 0x5a, sizeof out);
    before = out;
    assert_int_equal(read_text(text, &out), MOEPAGE_E_FORMAT);
    if (!strstr(moepage_last_error(), path) || !strstr(moepage_last_error(), what))
        fail_msg("\"%s\" names not both the file and %s", moepage_last_error(), what);
    assert_memory_equal(&out, &before, sizeof out);
}

/* The whole file with one field changed (value NULL: left out). */
static void assert_refused_with(const char *key, json_t *value)
{
    json_t *object = json_loads(whole, 0, NULL);
    assert_non_null(object);
    if (value)
        json_object_set_new(object, key, value);
    else
        json_object_del(object, key);
    char *text = json_dumps(object, 0);
    assert_refused(text, key);
    free(text);
    json_decref(object);
}

static void test_sim_profile_reads_every_field(void **state)
{
    (void)state;
    mp_sim_profile out;
    assert_int_equal(read_text(whole, &out), MOEPAGE_OK);
    assert_string_equal(out.name, "m");
    assert_int_equal(out.memory_bytes, 1001);
    assert_int_equal(out.memory_bytes_per_s, 1002);
    assert_int_equal(out.compute_flops, 1003);
    assert_int_equal(out.bus_bytes_per_s, 1004);
    assert_int_equal(out.bus_latency_ns, 1005);
    assert_int_equal(out.decode_bytes_per_s, 1006);
    assert_int_equal(out.decode_latency_ns, 1007);
    assert_int_equal(out.cold_bytes_per_s, 1008);
    assert_int_equal(out.cold_latency_ns, 1009);
    assert_int_equal(out.launch_ns, 1010);
    assert_int_equal(out.host_memory_bytes, 1011);
}

/* The host's figures: both or neither. */
static void test_sim_profile_host_figures_come_together(void **state)
{
    (void)state;
    mp_sim_profile out;
    json_t *object = json_loads(whole, 0, NULL);
    assert_int_equal(read_text(whole, &out), MOEPAGE_OK);
    assert_int_equal(out.host_memory_bytes_per_s, 0);
    assert_int_equal(out.host_compute_flops, 0);
    json_object_set_new(object, "host_memory_bytes_per_s", json_integer(1012));
    char *text = json_dumps(object, 0);
    assert_int_equal(read_text(text, &out), MOEPAGE_E_FORMAT);
    assert_non_null(strstr(moepage_last_error(), "host_compute_flops"));
    free(text);
    json_object_set_new(object, "host_compute_flops", json_integer(1013));
    text = json_dumps(object, 0);
    assert_int_equal(read_text(text, &out), MOEPAGE_OK);
    assert_int_equal(out.host_memory_bytes_per_s, 1012);
    assert_int_equal(out.host_compute_flops, 1013);
    free(text);
    json_decref(object);
}

static void test_sim_profile_remarks_may_be_left_out(void **state)
{
    (void)state;
    mp_sim_profile out;
    json_t *object = json_loads(whole, 0, NULL);
    json_object_del(object, "comment");
    json_object_del(object, "source");
    char *text = json_dumps(object, 0);
    assert_int_equal(read_text(text, &out), MOEPAGE_OK);
    free(text);
    json_decref(object);
    assert_refused_with("comment", json_null());
    assert_refused_with("source", json_integer(3));
}

static void test_sim_profile_refuses_missing_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NUMBERS; i++)
        assert_refused_with(numbers[i], NULL);
    assert_refused_with("name", NULL);
}

static void test_sim_profile_refuses_values_of_another_kind(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        assert_refused_with(numbers[i], json_real(1000.0));
        assert_refused_with(numbers[i], json_string("1000"));
        assert_refused_with(numbers[i], json_null());
        assert_refused_with(numbers[i], json_true());
        assert_refused_with(numbers[i], json_array());
    }
    assert_refused_with("name", json_integer(4));
    assert_refused_with("name", json_null());
}

static void test_sim_profile_refuses_values_out_of_range(void **state)
{
    (void)state;
    mp_sim_profile out;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        bool latency = strstr(numbers[i], "_ns") != NULL;
        bool flops = strstr(numbers[i], "flops") != NULL;
        json_int_t most = latency ? 1000000000000 : flops ? 1000000000000000000 : 1ll << 50;
        assert_refused_with(numbers[i], json_integer(-1));
        assert_refused_with(numbers[i], json_integer(most + 1));
        if (!latency)
            assert_refused_with(numbers[i], json_integer(0));
        json_t *object = json_loads(whole, 0, NULL);
        json_object_set_new(object, numbers[i], json_integer(most));
        char *text = json_dumps(object, 0);
        assert_int_equal(read_text(text, &out), MOEPAGE_OK);
        if (latency) {
            json_object_set_new(object, numbers[i], json_integer(0));
            free(text);
            text = json_dumps(object, 0);
            assert_int_equal(read_text(text, &out), MOEPAGE_OK);
        }
        free(text);
        json_decref(object);
    }
    char name[80] = "";
    assert_refused_with("name", json_string(name));
    memset(name, 'n', 64);
    assert_refused_with("name", json_string(name));
}

static void test_sim_profile_refuses_unknown_fields(void **state)
{
    (void)state;
    assert_refused_with("memory_byte", json_integer(7));
    assert_refused_with("Comment", json_string("c"));
    assert_refused_with("", json_string("c"));
}

static void test_sim_profile_refuses_what_is_no_object(void **state)
{
    (void)state;
    assert_refused("", "JSON");
    assert_refused("[]", "object");
    assert_refused("{\"name\": ", "JSON");
    assert_refused("{\"name\": \"m\", \"name\": \"n\"}", "JSON"); /* twice */
    char text[sizeof whole + 8];
    snprintf(text, sizeof text, "%s x", whole);
    assert_refused(text, "JSON");
    mp_sim_profile out;
    put(whole, sizeof whole); /* with its NUL */
    assert_int_equal(mp_sim_profile_read(path, &out), MOEPAGE_E_FORMAT);
}

static void test_sim_profile_refuses_what_is_no_file(void **state)
{
    (void)state;
    mp_sim_profile out;
    assert_int_equal(mp_sim_profile_read("/nowhere/machine.json", &out), MOEPAGE_E_NOT_FOUND);
    assert_non_null(strstr(moepage_last_error(), "/nowhere/machine.json"));
    assert_int_equal(mp_sim_profile_read("/tmp", &out), MOEPAGE_E_FORMAT);
    assert_int_equal(truncate(path, (1 << 20) + 1), 0);
    assert_int_equal(mp_sim_profile_read(path, &out), MOEPAGE_E_FORMAT);
    assert_non_null(strstr(moepage_last_error(), path));
}

/* ---- by name ---- */

static void test_sim_profile_opens_by_its_path(void **state)
{
    (void)state;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = 1 << 20,
                                    .workspace_bytes = 4096};
    char name[64];
    moepage_device *device = NULL;
    mp_sim_profile out;
    mp_sim_register();
    assert_int_equal(moepage_device_open("sim", &config, &device), MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_device_open("sim:", &config, &device), MOEPAGE_E_NOT_FOUND);
    assert_int_equal(moepage_device_open("sim:/nowhere.json", &config, &device),
                     MOEPAGE_E_NOT_FOUND);
    snprintf(name, sizeof name, "sim:%s", path);
    assert_int_equal(read_text(whole, &out), MOEPAGE_OK);
    assert_int_equal(moepage_device_open(name, &config, &device), MOEPAGE_E_NO_MEMORY);
    assert_non_null(strstr(moepage_last_error(), "1001")); /* all that it has */
    assert_int_equal(read_text("{}", &out), MOEPAGE_E_FORMAT);
    assert_int_equal(moepage_device_open(name, &config, &device), MOEPAGE_E_FORMAT);

    assert_int_equal(moepage_device_open("sim:examples/machines/l40-pcie4.json", &config, &device),
                     MOEPAGE_OK);
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(device, &info), MOEPAGE_OK);
    assert_string_equal(info.name, "sim");
    assert_string_equal(info.kernels, "l40-pcie4");
    assert_int_equal(info.arena_bytes, (1 << 20) - 4096);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
}

/* Named as their files are; what is published says where. */
static void test_sim_profile_shipped_machines_are_sound(void **state)
{
    (void)state;
    DIR *folder = opendir("examples/machines");
    assert_non_null(folder);
    uint32_t n = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (length < 6 || strcmp(entry->d_name + length - 5, ".json"))
            continue;
        char file[300];
        mp_sim_profile out;
        snprintf(file, sizeof file, "examples/machines/%s", entry->d_name);
        if (mp_sim_profile_read(file, &out))
            fail_msg("%s", moepage_last_error());
        assert_int_equal(strlen(out.name), length - 5);
        assert_memory_equal(out.name, entry->d_name, length - 5);
        assert_true(out.bus_bytes_per_s < out.memory_bytes_per_s);
        assert_true(out.decode_bytes_per_s < out.memory_bytes_per_s);
        json_t *object = json_load_file(file, 0, NULL);
        assert_true(json_is_string(json_object_get(object, "source")));
        json_decref(object);
        n++;
    }
    closedir(folder);
    assert_true(n >= 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_profile_reads_every_field),
        cmocka_unit_test(test_sim_profile_host_figures_come_together),
        cmocka_unit_test(test_sim_profile_remarks_may_be_left_out),
        cmocka_unit_test(test_sim_profile_refuses_missing_fields),
        cmocka_unit_test(test_sim_profile_refuses_values_of_another_kind),
        cmocka_unit_test(test_sim_profile_refuses_values_out_of_range),
        cmocka_unit_test(test_sim_profile_refuses_unknown_fields),
        cmocka_unit_test(test_sim_profile_refuses_what_is_no_object),
        cmocka_unit_test(test_sim_profile_refuses_what_is_no_file),
        cmocka_unit_test(test_sim_profile_opens_by_its_path),
        cmocka_unit_test(test_sim_profile_shipped_machines_are_sound),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
