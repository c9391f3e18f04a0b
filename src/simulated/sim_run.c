/* The simulated device's clock: the next event, and its consequences. */
#include "simulated/sim_run.h"

#include <assert.h>
#include <stdio.h>

#define NEVER UINT64_MAX
#define PARTS 1000000000u /* of a byte */

/* Tasks may post each other at the same moment, to check a condition again: at most this often
 * before time passes. */
#define MOST_TURNS 16u

/* ---- cold storage ---- */

static uint64_t read_end_ns(const mp_sim *sim, const mp_sim_read *read)
{
    const mp_sim_cold *cold = &sim->cold;
    if (!read->moving)
        return read->moves_ns;
    const uint64_t rate = sim->profile.cold_bytes_per_s;
    return cold->as_of_ns + (uint64_t)((read->left * cold->n_moving + rate - 1) / rate);
}

static uint64_t read_number(const mp_sim_read *read)
{
    return mp_sim_stream_oldest(read->stream)->number;
}

static void find_next_read(mp_sim *sim)
{
    mp_sim_cold *cold = &sim->cold;
    cold->next_ns = NEVER;
    for (uint32_t i = 0; i < cold->n; i++) {
        uint64_t end = read_end_ns(sim, &cold->reads[i]);
        if (end > cold->next_ns)
            continue;
        if (end < cold->next_ns ||
            read_number(&cold->reads[i]) < read_number(&cold->reads[cold->next]))
            cold->next = i;
        cold->next_ns = end;
    }
}

/* Accounts for the bytes that reads have moved until now. */
static void bring_up_to_date(mp_sim *sim)
{
    mp_sim_cold *cold = &sim->cold;
    if (cold->n_moving) {
        unsigned __int128 moved = (unsigned __int128)(sim->now_ns - cold->as_of_ns) *
                                  sim->profile.cold_bytes_per_s / cold->n_moving;
        for (uint32_t i = 0; i < cold->n; i++)
            if (cold->reads[i].moving)
                cold->reads[i].left -= moved < cold->reads[i].left ? moved : cold->reads[i].left;
    }
    cold->as_of_ns = sim->now_ns;
}

static void start_reads(mp_sim *sim)
{
    mp_sim_cold *cold = &sim->cold;
    mp_sim_unit *unit = &sim->queues.units[MP_SIM_COLD];
    bring_up_to_date(sim);
    while (unit->ready[0] && cold->n < cold->most) {
        mp_stream *stream = mp_sim_unit_take(unit);
        const mp_sim_entry *entry = mp_sim_stream_oldest(stream);
        if (cold->n == 0)
            cold->since_ns = sim->now_ns;
        cold->reads[cold->n++] = (mp_sim_read){
            .stream = stream,
            .moves_ns = sim->now_ns + entry->ns,
            .left = (unsigned __int128)entry->bytes * PARTS,
        };
    }
    find_next_read(sim);
}

/* Poisons the device after a failed transfer without a `result`. */
static void poison(mp_sim *sim, const mp_copy *copy, moepage_status status)
{
    sim->poisoned = true;
    snprintf(sim->poison_text, sizeof sim->poison_text,
             "a transfer of %llu bytes (layer %u, expert %u, tensor %u) failed with code %d; the "
             "device has to be closed",
             (unsigned long long)copy->bytes, copy->fill_key[0], copy->fill_key[1],
             copy->fill_key[2], status);
    mp_log_write(&sim->device.log, MOEPAGE_LOG_ERROR, "sim: %s", sim->poison_text);
}

static void fill(mp_sim *sim, const mp_copy *copy)
{
    moepage_status status = MOEPAGE_OK;
    if (sim->poisoned)
        status = MOEPAGE_E_DEVICE;
    else if (copy->fill)
        status = copy->fill(copy, copy->dst);
    if (status && copy->result)
        atomic_store(copy->result, status);
    else if (status && !sim->poisoned)
        poison(sim, copy, status);
}

static void end_read(mp_sim *sim, uint32_t index)
{
    mp_sim_cold *cold = &sim->cold;
    mp_stream *stream = cold->reads[index].stream;
    cold->n_moving--;
    cold->reads[index] = cold->reads[--cold->n];
    sim->usage.cold_bytes += mp_sim_stream_oldest(stream)->bytes;
    if (cold->n == 0)
        sim->usage.cold_ns += sim->now_ns - cold->since_ns;
    fill(sim, &stream->copies[stream->tail & (stream->room - 1)]);
    sim->usage.events++;
    mp_sim_stream_finish(stream);
}

static void pass_read(mp_sim *sim)
{
    mp_sim_cold *cold = &sim->cold;
    bring_up_to_date(sim);
    if (cold->reads[cold->next].moving) {
        end_read(sim, cold->next);
    } else {
        cold->reads[cold->next].moving = true;
        cold->n_moving++;
    }
    find_next_read(sim);
}

/* ---- the other units ---- */

static void account(mp_sim *sim, mp_sim_unit_kind unit, uint64_t ns, uint64_t bytes)
{
    switch (unit) {
    case MP_SIM_BUS:
        sim->usage.bus_ns += ns;
        sim->usage.bus_bytes += bytes;
        break;
    case MP_SIM_COMPUTE: sim->usage.compute_ns += ns; break;
    default:
        sim->usage.decode_ns += ns;
        sim->usage.decode_bytes += bytes;
        break;
    }
}

static void start_engine(mp_sim *sim, mp_sim_unit_kind unit)
{
    mp_sim_engine *engine = &sim->engines[unit];
    engine->stream = mp_sim_unit_take(&sim->queues.units[unit]);
    const mp_sim_entry *entry = mp_sim_stream_oldest(engine->stream);
    uint64_t ns = entry->ns, bytes = entry->bytes;
    if (unit == MP_SIM_DECODER)
        ns = mp_sim_decode_ns(&sim->profile, &entry->decode, &bytes);
    engine->end_ns = sim->now_ns + ns;
    account(sim, unit, ns, bytes);
}

/* Starts all that can start. Returns true if anything did. */
static bool start_all(mp_sim *sim)
{
    bool any = false;
    for (int u = 0; u < MP_SIM_COLD; u++) {
        const mp_sim_unit *unit = &sim->queues.units[u];
        if (sim->engines[u].stream || (!unit->ready[0] && !unit->ready[1]))
            continue;
        start_engine(sim, (mp_sim_unit_kind)u);
        any = true;
    }
    if (sim->queues.units[MP_SIM_COLD].ready[0] && sim->cold.n < sim->cold.most) {
        start_reads(sim);
        any = true;
    }
    return any;
}

/* ---- events ---- */

/* The unit with the next event; MP_SIM_UNITS if no event is left. */
static mp_sim_unit_kind find_next(const mp_sim *sim, uint64_t *out_ns)
{
    mp_sim_unit_kind next = MP_SIM_UNITS;
    uint64_t ns = NEVER, number = 0;
    for (int u = 0; u < MP_SIM_COLD; u++) {
        const mp_sim_engine *engine = &sim->engines[u];
        if (!engine->stream || engine->end_ns > ns)
            continue;
        uint64_t own = mp_sim_stream_oldest(engine->stream)->number;
        if (engine->end_ns == ns && own > number)
            continue;
        next = (mp_sim_unit_kind)u;
        ns = engine->end_ns;
        number = own;
    }
    const mp_sim_cold *cold = &sim->cold;
    if (cold->n && (cold->next_ns < ns ||
                    (cold->next_ns == ns && read_number(&cold->reads[cold->next]) < number))) {
        next = MP_SIM_COLD;
        ns = cold->next_ns;
    }
    *out_ns = ns;
    return next;
}

/* Runs the next event, unless it comes after `limit_ns`. New work starts only when everything that
 * ends at the present moment has ended, and not at the limit itself, because the caller may submit
 * more urgent work then. */
static bool step(mp_sim *sim, uint64_t limit_ns)
{
    uint64_t ns;
    mp_sim_unit_kind unit = find_next(sim, &ns);
    if (ns > sim->now_ns && sim->now_ns < limit_ns && start_all(sim))
        unit = find_next(sim, &ns);
    if (unit == MP_SIM_UNITS || ns > limit_ns)
        return false;
    sim->now_ns = ns;
    if (unit == MP_SIM_COLD) {
        pass_read(sim);
        return true;
    }
    mp_stream *stream = sim->engines[unit].stream;
    sim->engines[unit].stream = NULL;
    sim->usage.events++;
    mp_sim_stream_finish(stream);
    return true;
}

/* ---- tasks ---- */

static bool may_run(const mp_task *task)
{
    if (!task->lock)
        return true;
    if (pthread_mutex_trylock(task->lock))
        return false;
    pthread_mutex_unlock(task->lock);
    return true;
}

/* Runs the tasks that are due, but not those that they post. A task that is put off holds up those
 * behind it, so that they keep their order. */
static bool run_due(mp_sim *sim)
{
    mp_task_list *due = &sim->queues.due;
    const uint64_t last = sim->queues.n_due;
    bool any = false;
    while (due->first && due->first->due <= last && may_run(due->first)) {
        mp_task *task = mp_task_take(due);
        sim->in_task = true;
        task->run(task); /* may free the task or post it again */
        sim->in_task = false;
        any = true;
    }
    return any;
}

static void run_tasks(mp_sim *sim)
{
    uint32_t turns = 0;
    while (sim->queues.due.first && run_due(sim) && ++turns < MOST_TURNS) {
    }
}

/* ---- waiting ---- */

void mp_sim_run_to_tick(mp_sim *sim, const mp_stream *stream, mp_tick tick)
{
    assert(!sim->in_task && tick <= stream->submitted);
    run_tasks(sim);
    while (stream->completed < tick) {
        if (!step(sim, NEVER)) {
            assert(!"a tick waits for work that was not submitted");
            return;
        }
        run_tasks(sim);
    }
}

void mp_sim_run_to_time(mp_sim *sim, uint64_t ns)
{
    assert(!sim->in_task);
    run_tasks(sim);
    while (step(sim, ns))
        run_tasks(sim);
    if (sim->now_ns < ns)
        sim->now_ns = ns;
}

static bool is_run_out(const mp_sim *sim, const mp_stream *stream)
{
    const mp_task *first = sim->queues.due.first;
    if (!stream)
        return !first;
    return stream->completed == stream->submitted && (!first || first->due > stream->last_due);
}

void mp_sim_run_out(mp_sim *sim, const mp_stream *stream)
{
    assert(!sim->in_task);
    while (!is_run_out(sim, stream)) {
        bool ran = run_due(sim);
        if (!is_run_out(sim, stream) && !step(sim, NEVER) && !ran)
            return; /* a task whose lock the caller holds */
    }
}
