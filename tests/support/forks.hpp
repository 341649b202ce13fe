#pragma once
// Whether tests may fork processes that create threads: ANNULUS_TEST_FORKS is defined.

#if defined(__has_feature)
#define ANNULUS_TEST_HAS_FEATURE(feature) __has_feature(feature)
#else
#define ANNULUS_TEST_HAS_FEATURE(feature) 0
#endif

// The thread sanitizer ends a forked child that creates threads.
#if defined(__linux__) && !defined(__SANITIZE_THREAD__) && !ANNULUS_TEST_HAS_FEATURE(thread_sanitizer)
#define ANNULUS_TEST_FORKS
#endif
