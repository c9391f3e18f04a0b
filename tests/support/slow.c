/* Sanitized or not is known when this is compiled. */
#include <stdlib.h>

#include "testing.h"

#include "slow.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

bool slow_here(void)
{
#ifdef SANITIZED
    return !getenv("MP_TEST_LONG");
#else
    return false;
#endif
}

void slow_skip_sanitized(const char *what)
{
    if (slow_here()) {
        print_message("%s: skipped in a sanitized build without MP_TEST_LONG\n", what);
        skip();
    }
}
