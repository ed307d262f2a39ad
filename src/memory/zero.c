/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Zero test: 256 bytes a step, or-ed together and tested once, so that a page in use mostly ends it in the
 * first step.
 */
#include "memory/zero.h"

#include <immintrin.h>
#include <stdint.h>

#define STEP 256u

static gboolean zero_sse2(const void *start, size_t length)
{
    const uint8_t *data = start;
    for (const uint8_t *end = data + length; data < end; data += STEP) {
        __m128i any = _mm_setzero_si128();
        for (unsigned i = 0; i < STEP; i += sizeof(__m128i))
            any = _mm_or_si128(any, _mm_load_si128((const __m128i *)(data + i)));
        if (_mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) != 0xffff)
            return FALSE;
    }
    return TRUE;
}

__attribute__((target("avx2"))) static gboolean zero_avx2(const void *start, size_t length)
{
    const uint8_t *data = start;
    for (const uint8_t *end = data + length; data < end; data += STEP) {
        __m256i any = _mm256_setzero_si256();
        for (unsigned i = 0; i < STEP; i += sizeof(__m256i))
            any = _mm256_or_si256(any, _mm256_load_si256((const __m256i *)(data + i)));
        if (!_mm256_testz_si256(any, any))
            return FALSE;
    }
    return TRUE;
}

__attribute__((target("avx512f"))) static gboolean zero_avx512(const void *start, size_t length)
{
    const uint8_t *data = start;
    for (const uint8_t *end = data + length; data < end; data += STEP) {
        __m512i any = _mm512_setzero_si512();
        for (unsigned i = 0; i < STEP; i += sizeof(__m512i))
            any = _mm512_or_si512(any, _mm512_load_si512((const __m512i *)(data + i)));
        if (_mm512_test_epi64_mask(any, any) != 0)
            return FALSE;
    }
    return TRUE;
}

RmZeroFunc rm_zero_variant(unsigned index)
{
    RmZeroFunc usable[3];
    unsigned n = 0;
    if (__builtin_cpu_supports("avx512f"))
        usable[n++] = zero_avx512;
    if (__builtin_cpu_supports("avx2"))
        usable[n++] = zero_avx2;
    usable[n++] = zero_sse2; /* part of x86-64 */
    return index < n ? usable[index] : NULL;
}

gboolean rm_is_zero(const void *data, size_t length)
{
    static gsize chosen;
    if (g_once_init_enter(&chosen))
        g_once_init_leave(&chosen, (gsize)rm_zero_variant(0));
    return ((RmZeroFunc)chosen)(data, length);
}
