/* Sanitized or not is known when this is compiled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "slow.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

void slow_skip_sanitized(const char *what)
{
#ifdef SANITIZED
    if (!getenv("MP_TEST_LONG")) {
        print_message("%s: skipped in a sanitized build without MP_TEST_LONG\n", what);
        skip();
    }
#else
    (void)what;
#endif
}
