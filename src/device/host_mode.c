/* The floating-point mode of tiles that flush denormals. In a file of its own, so that none of a
 * tile's arithmetic can be moved out of the mode that it runs in. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

void mp_tile_under_flush(void (*run)(const mp_tile *tile), const mp_tile *tile)
{
    _mm_setcsr(MP_MODE_FLUSH);
    run(tile);
    _mm_setcsr(MP_MODE_DEFAULT);
}
#endif
