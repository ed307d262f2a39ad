/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A whole data path in one process: the sender, the rdma transport over the fake provider, the destination's
 * registrar, and a control channel in between. What the guest writes is the test's to do.
 */
#pragma once

#include "fake-rig.h"

#include "common/bitmap.h"
#include "control/json.h"
#include "destination/registrar.h"
#include "source/sender.h"

#include <sys/socket.h>

typedef struct {
    Rig *rig;
    RmControl *near, *far;
    RmRegistrar *registrar;
    RmSender *sender;
    GThread *answers;
    GPtrArray *pages; /* RmBitmap*, by block: what the next round sends */
    GPtrArray *state; /* RmBlock* of both ends, if there is one */
    uint32_t round;
    int releases; /* atomic: requests */
    RmTxOps ops;  /* the transport's, but for release() */
    const RmTxOps *inner;
    uint64_t forgotten, released; /* bytes; forgotten: atomic */
} Path;

static inline int path_forget(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n)
{
    Path *path = (Path *)((uint8_t *)tx->ops - G_STRUCT_OFFSET(Path, ops));
    for (unsigned i = 0; i < n; i++)
        __atomic_fetch_add(&path->forgotten, extents[i].end - extents[i].start, __ATOMIC_SEQ_CST);
    return path->inner->release(tx, channel, block, extents, n);
}

/* The source has forgotten a key before it says that it has. */
static inline void path_assert_forgotten(Path *path, json_object *message)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) blocks = g_ptr_array_copy(path->rig->to, NULL, NULL);
    g_ptr_array_set_free_func(blocks, NULL);
    if (path->state != NULL)
        g_ptr_array_add(blocks, path->state->pdata[1]);
    g_autoptr(RmRegister) request = rm_register_decode(message, blocks, path->rig->params.chunk_size, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < request->chunks->len; i++) {
        const GArray *extents = ((RmRegisterChunk *)request->chunks->pdata[i])->extents;
        for (guint k = 0; k < extents->len; k++) {
            const RmExtent *extent = &g_array_index(extents, RmExtent, k);
            path->released += extent->end - extent->start;
        }
    }
    g_assert_cmpuint(__atomic_load_n(&path->forgotten, __ATOMIC_SEQ_CST), >=, path->released);
}

static inline RmControl *path_control(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    g_autoptr(GSocketConnection) connection = g_socket_connection_factory_create_connection(socket);
    return rm_control_new(G_IO_STREAM(connection), NULL, &(RmControlParams){0});
}

static inline gboolean path_answer(Path *path, json_object *message, GError **error)
{
    uint64_t round;
    const char *type = rm_message_type(message);
    if (g_str_equal(type, RM_MSG_REGISTER))
        return rm_registrar_register(path->registrar, message, error);
    if (g_str_equal(type, RM_MSG_RELEASE)) {
        g_atomic_int_inc(&path->releases);
        path_assert_forgotten(path, message);
        return rm_registrar_release(path->registrar, message, error);
    }
    return rm_json_uint(message, "round", &round, error) &&
           path->rig->rx->ops->wait_round(path->rig->rx, (uint32_t)round, NULL, error) &&
           rm_control_reply(path->far, message, rm_json_message(RM_MSG_ROUND_END_OK), error);
}

static inline void *path_answers(void *data)
{
    Path *path = data;
    json_object *message;
    while (rm_control_receive(path->far, 0, NULL, &message, NULL)) {
        g_autoptr(GError) error = NULL;
        if (!path_answer(path, message, &error))
            rm_control_reply_failure(path->far, message, RM_MSG_FAILED, error, NULL);
        json_object_put(message);
    }
    return NULL;
}

static inline Path *path_up(const RigParams *params)
{
    Path *path = g_new0(Path, 1);
    int fds[2];
    Rig *rig = path->rig = rig_up(params);
    path->inner = rig->tx->ops;
    path->ops = *rig->tx->ops;
    path->ops.release = path_forget;
    rig->tx->ops = &path->ops;
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    path->near = path_control(fds[0]);
    path->far = path_control(fds[1]);
    path->registrar =
        rm_registrar_new(path->far, rig->rx, rig->to, params->chunk_size, params->channels, NULL);
    path->answers = g_thread_new("answers", path_answers, path);
    path->pages = g_ptr_array_new_with_free_func((GDestroyNotify)rm_bitmap_free);
    for (guint i = 0; i < rig->from->len; i++)
        g_ptr_array_add(path->pages, rm_bitmap_new(rm_block_pages(rig_from(rig, i))));
    path->sender = rm_sender_new(&(RmSenderParams){.tx = rig->tx,
                                                   .control = path->near,
                                                   .blocks = rig->from,
                                                   .chunk_size = params->chunk_size,
                                                   .channels = params->channels,
                                                   .window = rig->rx->window});
    return path;
}

/* As a session ends: writers first. */
static inline void path_free(Path *path)
{
    path->rig->tx->ops->abort(path->rig->tx);
    rm_sender_free(path->sender);
    path->rig->rx->ops->stop(path->rig->rx);
    rm_control_free(path->near);
    g_thread_join(path->answers);
    rm_registrar_free(path->registrar);
    rm_control_free(path->far);
    path->rig->tx->ops = path->inner;
    rig_free(path->rig);
    g_ptr_array_unref(path->pages);
    g_clear_pointer(&path->state, g_ptr_array_unref);
    g_free(path);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Path, path_free)

/* The guest writes these pages. */
static inline void path_write(Path *path, unsigned block, uint64_t page, uint64_t count)
{
    uint8_t *at = rig_from(path->rig, block)->map + PAGES(page);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = g_test_rand_int() | 1u;
        for (unsigned k = 0; k < RM_PAGE; k += 512)
            memcpy(at + PAGES(i) + k, &value, sizeof value);
    }
    rm_bitmap_set(path->pages->pdata[block], page, count);
}

static inline gboolean path_tick(gpointer data, GError **error)
{
    return TRUE;
}

static inline void path_push(Path *path, uint32_t index, const RmBlock *block, const RmBitmap *pages)
{
    for (uint64_t chunk = 0; chunk < rm_chunk_count(block, path->rig->params.chunk_size); chunk++)
        rm_sender_push(path->sender, index, chunk, pages);
}

static inline gboolean path_end_round(Path *path, GError **error)
{
    json_object *reply = NULL;
    gboolean ok = rm_sender_flush(path->sender, ++path->round, path_tick, NULL, error) &&
                  rm_control_request(path->near, rm_round_end_encode(path->round, NULL, 0, FALSE), 20000,
                                     NULL, &reply, error) &&
                  rm_message_expect(reply, RM_MSG_ROUND_END_OK, error);
    json_object_put(reply);
    return ok;
}

/* Sends what was written as a round. */
static inline gboolean path_try_round(Path *path, GError **error)
{
    for (uint32_t i = 0; i < path->pages->len; i++)
        path_push(path, i, rig_from(path->rig, i), path->pages->pdata[i]);
    gboolean ok = path_end_round(path, error);
    for (uint32_t i = 0; ok && i < path->pages->len; i++)
        rm_bitmap_clear_all(path->pages->pdata[i]);
    return ok;
}

static inline void path_round(Path *path)
{
    g_autoptr(GError) error = NULL;
    path_try_round(path, &error);
    g_assert_no_error(error);
    for (uint32_t i = 0; i < path->pages->len; i++)
        blocks_assert_equal(path->rig, i);
}
