/* study_evictions.h — every eviction policy on one trace, after a training part. */
#ifndef SIM_STUDY_EVICTIONS_H
#define SIM_STUDY_EVICTIONS_H

#include "sim/routes.h"
#include "sim/study.h"

/* Returns the first tested row if the first `percent` of the requests are for training; of the
 * rows, if the trace is one request. */
uint64_t sim_first_tested(const sim_trace *trace, uint32_t percent);

/* Opens DIR/gpt-oss-20b, or the excerpt if no directory is given; NULL after a line on stderr. */
sim_trace *sim_study_open_trace(const sim_findings *out);
uint32_t sim_study_train_percent(const sim_findings *out);

/* Counts the policy's misses in the rows from `first` on. Warm: the earlier rows went through the
 * cache; cold: they did not, and the policy has learnt nothing. */
int sim_eviction_misses(const sim_trace *trace, const char *policy, uint64_t capacity,
                        uint64_t first, bool cold, uint64_t *out);

#endif
