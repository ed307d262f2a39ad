/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bounds of registered memory. */
#include "transport/verbs/bound.h"

#include "common/reason.h"
#include "common/size.h"
#include "transport/verbs/qp.h"
#include "transport/verbs/region.h"
#include "transport/window.h"

typedef struct {
    uint64_t most;   /* bytes; 0: no bound */
    gboolean forced; /* by the limit of locked memory */
    uint64_t limit;  /* that, if so */
} Bound;

/* What follows from the option, and from what the limit of locked memory leaves for `need` bytes. */
static Bound bound_of(uint64_t max_pinned, uint64_t need)
{
    Bound bound = {.most = max_pinned};
    uint64_t pinned;
    if (max_pinned != 0)
        need = MIN(need, max_pinned);
    if (rm_verbs_memlock_binds(need, &pinned, &bound.limit)) {
        bound.forced = TRUE;
        bound.most = MAX(bound.limit - MIN(bound.limit, pinned), 1); /* 0 would be no bound */
    }
    return bound;
}

gboolean rm_verbs_bound_destination(const RmRxParams *params, uint64_t *ret_window, GError **error)
{
    uint64_t all = rm_window_for_all(params->blocks, params->channels);
    Bound bound = bound_of(params->max_pinned, all);
    gboolean whole = bound.most == 0 || bound.most >= all;
    gboolean ok = bound.most == 0 ||
                  rm_window_check(bound.most, params->blocks, params->channels, params->pin_all, error);
    g_autofree char *limit = rm_format_size(bound.limit), *need = rm_format_size(all);
    g_autofree char *most = rm_format_size(bound.most);
    if (ok && !whole && !params->releases)
        ok = rm_fail(
            error, RM_REASON_PRIVILEGE,
            "%s of registered memory are allowed, and this guest needs %s, since the source's rdmamig is too "
            "old to make do with less",
            most, need);
    if (!ok && bound.forced)
        g_prefix_error(
            error,
            "the limit of locked memory (RLIMIT_MEMLOCK) is %s; raise it with `ulimit -l unlimited`, or "
            "LimitMEMLOCK=infinity in the unit of this daemon: ",
            limit);
    if (!ok)
        return FALSE;
    if (bound.forced)
        g_warning(
            "the limit of locked memory (RLIMIT_MEMLOCK) is %s, the guest needs %s: it is registered %s at a "
            "time, which costs time; `ulimit -l unlimited`, or LimitMEMLOCK=infinity in this daemon's unit",
            limit, need, most);
    *ret_window = bound.most != 0 ? bound.most - params->channels * RM_VERBS_MESSAGE_BYTES : 0;
    return TRUE;
}

/* What of the guest may be registered here, before anything is. With too little for what the guest has, and
 * no option that says to make do with it, it is copied: the ring is all that is registered then. */
gboolean rm_verbs_bound_source(const RmTxParams *params, uint64_t *ret_pinned, gboolean *ret_copy,
                               GError **error)
{
    uint64_t populated = 0, rings = params->channels * (RM_PINNED_CHANNEL_MIN + RM_VERBS_MESSAGE_BYTES);
    for (guint i = 0; i < params->blocks->len; i++) {
        const RmBlock *block = params->blocks->pdata[i];
        uint64_t allocated;
        if (!rm_block_allocated(block, &allocated, error))
            return FALSE;
        populated += MIN(allocated, block->size);
    }
    Bound bound = bound_of(params->max_pinned, params->copy ? rings : populated + rings);
    if (params->max_pinned != 0 &&
        !rm_window_check(params->max_pinned, params->blocks, params->channels, params->pin_all, error))
        return FALSE;
    g_autofree char *limit = rm_format_size(bound.limit), *need = rm_format_size(populated);
    const char *advice = "`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit";
    if (bound.forced && bound.most < rings)
        return rm_fail(
            error, RM_REASON_PRIVILEGE,
            "the limit of locked memory (RLIMIT_MEMLOCK) is %s, which is not enough for the buffers of %u "
            "channels; raise it: %s",
            limit, params->channels, advice);
    *ret_copy = params->copy;
    if (bound.forced && !*ret_copy && (params->max_pinned == 0 || params->pin_all)) {
        *ret_copy = TRUE;
        g_warning(
            "the limit of locked memory (RLIMIT_MEMLOCK) is %s, the guest has %s: it is copied before it is "
            "sent, which costs time; %s, or a --max-pinned within the limit",
            limit, need, advice);
    }
    *ret_pinned = *ret_copy && bound.forced ? rings : bound.most;
    return TRUE;
}
