/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table of fates. */
#include "destination/fates.h"

struct RmFates {
    GMutex lock;
    GHashTable *table; /* char* -> RmFate */
    GQueue ended;      /* char*, oldest first: forgotten in this order */
};

RmFates *rm_fates_new(void)
{
    RmFates *fates = g_new0(RmFates, 1);
    g_mutex_init(&fates->lock);
    fates->table = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_queue_init(&fates->ended);
    return fates;
}

void rm_fates_free(RmFates *fates)
{
    if (fates == NULL)
        return;
    g_hash_table_unref(fates->table);
    g_queue_clear_full(&fates->ended, g_free);
    g_mutex_clear(&fates->lock);
    g_free(fates);
}

static RmFate get(RmFates *fates, const char *session)
{
    return GPOINTER_TO_INT(g_hash_table_lookup(fates->table, session));
}

static void put(RmFates *fates, const char *session, RmFate fate)
{
    g_hash_table_insert(fates->table, g_strdup(session), GINT_TO_POINTER(fate));
    if (fate == RM_FATE_ACTIVE)
        return;
    g_queue_push_tail(&fates->ended, g_strdup(session));
    if (fates->ended.length > RM_FATES_KEPT) {
        g_autofree char *oldest = g_queue_pop_head(&fates->ended);
        g_hash_table_remove(fates->table, oldest);
    }
}

gboolean rm_fates_begin(RmFates *fates, const char *session)
{
    g_mutex_lock(&fates->lock);
    gboolean fresh = get(fates, session) == RM_FATE_UNKNOWN;
    if (fresh)
        put(fates, session, RM_FATE_ACTIVE);
    g_mutex_unlock(&fates->lock);
    return fresh;
}

gboolean rm_fates_commit(RmFates *fates, const char *session)
{
    g_mutex_lock(&fates->lock);
    gboolean active = get(fates, session) == RM_FATE_ACTIVE;
    if (active)
        put(fates, session, RM_FATE_COMMITTED);
    g_mutex_unlock(&fates->lock);
    return active;
}

RmFate rm_fates_abort(RmFates *fates, const char *session)
{
    g_mutex_lock(&fates->lock);
    if (get(fates, session) == RM_FATE_ACTIVE)
        put(fates, session, RM_FATE_ABORTED);
    RmFate fate = get(fates, session);
    g_mutex_unlock(&fates->lock);
    return fate;
}
