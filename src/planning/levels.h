/* levels.h — numbers of sequences that run at once, as levels: exact up to 32, in groups above. */
#ifndef MP_PLANNING_LEVELS_H
#define MP_PLANNING_LEVELS_H

#include <stdint.h>

#define MP_LEVELS 96u
#define MP_LEVELS_EXACT 32u
#define MP_LEVELS_GROUP 8u /* sequences of a level above */

static inline uint32_t mp_level_of(uint32_t sequences)
{
    uint32_t level = sequences <= MP_LEVELS_EXACT
                         ? sequences
                         : MP_LEVELS_EXACT + (sequences - MP_LEVELS_EXACT + MP_LEVELS_GROUP - 1) /
                                                 MP_LEVELS_GROUP;
    return level < MP_LEVELS ? level : MP_LEVELS - 1;
}

/* Returns the most sequences of a level. */
static inline uint32_t mp_level_most(uint32_t level)
{
    return level <= MP_LEVELS_EXACT ? level
                                    : MP_LEVELS_EXACT + (level - MP_LEVELS_EXACT) * MP_LEVELS_GROUP;
}

#endif
