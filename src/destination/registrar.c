/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The registration pool. */
#include "destination/registrar.h"

#include "common/log-context.h"
#include "common/reason.h"
#include "control/json.h"

#define POOL_THREADS_MAX 8 /* population is bound by memory bandwidth */

struct RmRegistrar {
    RmControl *control;
    RmRx *rx;
    GPtrArray *blocks; /* RmBlock*, borrowed each */
    uint64_t chunk_size;
    unsigned channels;
    RmDaemonMetrics *metrics;
    RmLogContext *log; /* the session's */
    GThreadPool *pool; /* of Task */
};

/* `request` is an object of its own, not a reference to the message: json-c's counts are not atomic. */
typedef struct {
    json_object *request; /* only its id, for the reply */
    RmRegister *decoded;
    uint32_t mark; /* of a release; 0: a registration */
} Task;

static gboolean run_chunk(RmRegistrar *registrar, const Task *task, const RmRegisterChunk *chunk,
                          GArray *regions, GError **error)
{
    const RmRxOps *ops = registrar->rx->ops;
    uint32_t block = (uint32_t)task->decoded->block;
    const RmExtent *extents = (const RmExtent *)(const void *)chunk->extents->data;
    if (task->mark != 0)
        return ops->release_chunk(registrar->rx, block, chunk->chunk, extents, chunk->extents->len,
                                  task->mark, error);
    gint64 begin = g_get_monotonic_time();
    gboolean ok =
        ops->register_chunk(registrar->rx, block, chunk->chunk, extents, chunk->extents->len, regions, error);
    rm_metrics_count(registrar->metrics, RM_METRIC_REGISTRATIONS);
    rm_metrics_add(registrar->metrics, RM_METRIC_REGISTRATION_US, g_get_monotonic_time() - begin);
    return ok;
}

static void run(gpointer data, gpointer user_data)
{
    Task *task = data;
    RmRegistrar *registrar = user_data;
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    gboolean ok = TRUE;
    rm_log_context_enter(registrar->log); /* GLib lends the thread to other pools */
    for (guint i = 0; i < task->decoded->chunks->len && ok; i++)
        ok = run_chunk(registrar, task, task->decoded->chunks->pdata[i], regions, &error);
    if (ok)
        rm_control_reply(registrar->control, task->request,
                         task->mark != 0 ? rm_json_message(RM_MSG_RELEASED) : rm_registered_encode(regions),
                         NULL);
    else
        rm_control_reply_failure(registrar->control, task->request, RM_MSG_FAILED, error, NULL);
    json_object_put(task->request);
    rm_register_free(task->decoded);
    g_free(task);
    rm_log_context_enter(NULL);
}

static void push(RmRegistrar *registrar, uint64_t id, RmRegister *decoded, uint32_t mark)
{
    Task *task = g_new(Task, 1);
    *task = (Task){json_object_new_object(), decoded, mark};
    rm_json_add_uint(task->request, "id", id);
    g_thread_pool_push(registrar->pool, task, NULL);
}

gboolean rm_registrar_register(RmRegistrar *registrar, json_object *message, GError **error)
{
    uint64_t id;
    if (!rm_json_uint(message, "id", &id, error))
        return FALSE;
    RmRegister *decoded = rm_register_decode(message, registrar->blocks, registrar->chunk_size, error);
    if (decoded == NULL)
        return FALSE;
    push(registrar, id, decoded, 0);
    return TRUE;
}

gboolean rm_registrar_release(RmRegistrar *registrar, json_object *message, GError **error)
{
    uint64_t id;
    uint32_t mark;
    if (!rm_json_uint(message, "id", &id, error))
        return FALSE;
    RmRegister *decoded = rm_release_decode(message, registrar->blocks, registrar->chunk_size,
                                            registrar->channels, &mark, error);
    if (decoded == NULL)
        return FALSE;
    push(registrar, id, decoded, mark);
    return TRUE;
}

RmRegistrar *rm_registrar_new(RmControl *control, RmRx *rx, const GPtrArray *blocks, uint64_t chunk_size,
                              unsigned channels, RmDaemonMetrics *metrics)
{
    RmRegistrar *registrar = g_new0(RmRegistrar, 1);
    int threads = (int)MIN(g_get_num_processors(), POOL_THREADS_MAX);
    registrar->control = control;
    registrar->rx = rx;
    registrar->blocks = g_ptr_array_copy((GPtrArray *)blocks, NULL, NULL);
    g_ptr_array_set_free_func(registrar->blocks, NULL);
    registrar->chunk_size = chunk_size;
    registrar->channels = channels;
    registrar->metrics = metrics;
    registrar->log = rm_log_context_ref(rm_log_context());
    registrar->pool = g_thread_pool_new(run, registrar, threads, FALSE, NULL);
    return registrar;
}

void rm_registrar_add_block(RmRegistrar *registrar, RmBlock *block)
{
    g_ptr_array_add(registrar->blocks, block);
}

void rm_registrar_free(RmRegistrar *registrar)
{
    if (registrar == NULL)
        return;
    g_thread_pool_free(registrar->pool, FALSE, TRUE);
    g_ptr_array_unref(registrar->blocks);
    rm_log_context_unref(registrar->log);
    g_free(registrar);
}
