/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The handover's table, altered under the program's feet: to see that what is done is done by it. */
#pragma once

#include "handover/table.h"

#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    RmTransition *row, before;
} Altered;

/* Constant data are pages like any other. */
static inline Altered alter(RmSide side, RmState from, RmEvent event, RmState to, unsigned duties)
{
    RmTransition *row = (RmTransition *)rm_table_step(side, from, event);
    g_assert_nonnull(row);
    uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, begin = (uintptr_t)row & ~mask;
    uintptr_t end = ((uintptr_t)(row + 1) + mask) & ~mask;
    g_assert_cmpint(mprotect((void *)begin, end - begin, PROT_READ | PROT_WRITE), ==, 0);
    Altered altered = {row, *row};
    row->to = to;
    row->duties = duties;
    return altered;
}

/* As if there were no such row. */
static inline Altered take_away(RmSide side, RmState from, RmEvent event)
{
    Altered altered = alter(side, from, event, from, 0);
    altered.row->event = RM_EVENT_COUNT;
    return altered;
}

static inline void put_right(Altered altered)
{
    *altered.row = altered.before;
}
