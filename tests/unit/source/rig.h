/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session's rounds without a VMM: fake guest, fake tracker, fake transport, and a destination that answers
 * on a real control channel. "The guest" is the test itself: it writes the fake
 * guest's memory and tells the tracker.
 */
#pragma once

#include "common/reason.h"
#include "control/json.h"
#include "guest/fake.h"
#include "source/session.h"
#include "transport/fake.h"

#include "../handover/state-folder.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

typedef struct {
    char *state_folder;
    RmSendOptions options;
    RmSession *session;
    RmJournal *journal; /* the session's */
    RmReporter *reporter;
    RmGuest *target; /* the destination's guest */
    GPtrArray *target_blocks;
    RmRx *rx;
    RmControl *far;
    int far_fd; /* of `far`, which owns it */
    GThread *answers;
    RmBlock *state;     /* the device state as it arrived */
    GMutex asked_lock;  /* of the next */
    GPtrArray *asked;   /* char*: the types of all requests */
    RmReason no_commit; /* answer `commit` with this failure; RM_REASON_PEER_LOST: with none, and hang up */
    gboolean swallow_commit; /* don't answer it */
    RmState at_commit;       /* the journal's state when it came */
} Rig;

static inline RmControl *rig_control(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    g_autoptr(GSocketConnection) connection = g_socket_connection_factory_create_connection(socket);
    return rm_control_new(G_IO_STREAM(connection), NULL, &(RmControlParams){0});
}

static inline json_object *rig_answer_switchover(Rig *rig, json_object *message)
{
    const char *type = rm_message_type(message);
    g_autoptr(GError) error = NULL;
    uint64_t length = 0;
    if (strcmp(type, RM_MSG_LOAD) == 0)
        return rm_json_message(RM_MSG_PREPARED);
    if (strcmp(type, RM_MSG_COMMIT) == 0) {
        rig->at_commit = latest(rig->journal);
        json_object *reply =
            rm_json_message(rig->no_commit == RM_REASON_NONE ? RM_MSG_RUNNING : RM_MSG_FAILED);
        if (rig->no_commit != RM_REASON_NONE)
            rm_json_add_string(reply, "reason", rm_reason_name(rig->no_commit));
        return reply;
    }
    g_assert_cmpstr(type, ==, RM_MSG_STATE);
    rm_json_uint(message, "length", &length, &error);
    g_assert_no_error(error);
    rig->state = rm_block_new("device-state", (length + RM_PAGE - 1) & ~(uint64_t)(RM_PAGE - 1));
    rig->state->map =
        mmap(NULL, rig->state->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rig->rx->ops->add_block(rig->rx, rig->state);
    json_object *reply = rm_json_message(RM_MSG_STATE_OK);
    rm_json_add(reply, "regions", json_object_new_array());
    return reply;
}

static inline json_object *rig_answer(Rig *rig, json_object *message)
{
    g_autoptr(GError) error = NULL;
    g_mutex_lock(&rig->asked_lock);
    g_ptr_array_add(rig->asked, g_strdup(rm_message_type(message)));
    g_mutex_unlock(&rig->asked_lock);
    if (strcmp(rm_message_type(message), RM_MSG_REGISTER) == 0) {
        g_autoptr(RmRegister) request =
            rm_register_decode(message, rig->target_blocks, rig->session->accept->chunk_size, &error);
        g_assert_no_error(error);
        g_autoptr(GArray) regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
        return rm_registered_encode(regions);
    }
    if (strcmp(rm_message_type(message), RM_MSG_ROUND_END) != 0)
        return rig_answer_switchover(rig, message);
    g_autoptr(RmRoundEnd) end = rm_round_end_decode(message, rig->target_blocks, &error);
    g_assert_no_error(error);
    rig->rx->ops->wait_round(rig->rx, (uint32_t)end->round, NULL, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < end->zeroes->len; i++) {
        const RmZeroRange *range = &g_array_index(end->zeroes, RmZeroRange, i);
        rm_block_zero(rig->target_blocks->pdata[range->block], range->page << RM_PAGE_SHIFT,
                      range->count << RM_PAGE_SHIFT, TRUE, &error);
        g_assert_no_error(error);
    }
    return rm_json_message(RM_MSG_ROUND_END_OK);
}

static inline gpointer rig_answers(gpointer data)
{
    Rig *rig = data;
    json_object *message = NULL;
    while (rm_control_receive(rig->far, 0, NULL, &message, NULL)) {
        json_object *reply = rig_answer(rig, message);
        gboolean hang_up =
            strcmp(rm_message_type(message), RM_MSG_COMMIT) == 0 && rig->no_commit == RM_REASON_PEER_LOST;
        gboolean silent = strcmp(rm_message_type(message), RM_MSG_COMMIT) == 0 && rig->swallow_commit;
        if (!hang_up && !silent)
            rm_control_reply(rig->far, message, reply, NULL);
        else
            json_object_put(reply);
        json_object_put(message);
        if (hang_up)
            shutdown(rig->far_fd, SHUT_RDWR);
    }
    return NULL;
}

/* `watches`: as for a guest with a balloon. */
static inline Rig *rig_new_full(const char *const *names, const uint64_t *sizes, unsigned n,
                                unsigned channels, gboolean watches)
{
    static uint8_t serial;
    Rig *rig = g_new0(Rig, 1);
    int fds[2];
    GError *error = NULL;
    rig->options = (RmSendOptions){
        .downtime_limit_ms = 300, .max_stall_ms = 1000, .common = {.gid_index = -1, .verbosity = -1}};
    rig->reporter = rm_reporter_new(RM_STYLE_QUIET, "00000000-0000-0000-0000-000000000000");
    RmSession *session = rig->session = rm_session_new(&rig->options, rig->reporter, SESSION);
    rig->state_folder = state_folder_new();
    rig->journal = session->journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY);
    session->guest = rm_guest_fake_new(RM_GUEST_RUNNING, names, sizes, n, &error);
    g_assert_no_error(error);
    rig->target = rm_guest_fake_new(RM_GUEST_WAITING, names, sizes, n, &error);
    g_assert_no_error(error);
    g_assert_true(session->guest->ops->blocks(session->guest, FALSE, &session->blocks, &error));
    g_assert_true(rig->target->ops->blocks(rig->target, TRUE, &rig->target_blocks, &error));

    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    session->control = rig_control(fds[0]);
    rig->far = rig_control(fds[1]);
    rig->far_fd = fds[1];
    rig->asked = g_ptr_array_new_with_free_func(g_free);
    session->accept = rm_accept_new();
    session->accept->chunk_size = 1 << 20;
    session->accept->channels = channels;
    session->accept->token = g_strdup(TOKEN);

    RmRxParams rx = {
        .channels = channels, .blocks = rig->target_blocks, .chunk_size = 1 << 20, .timeout_ms = 5000};
    RmTxParams tx = {
        .channels = channels, .blocks = session->blocks, .chunk_size = 1 << 20, .timeout_ms = 5000};
    memset(rx.token, ++serial, sizeof rx.token);
    memset(tx.token, serial, sizeof tx.token);
    rig->rx = rm_transport_fake.rx_new();
    session->tx = rm_transport_fake.tx_new();
    g_assert_true(rig->rx->ops->start(rig->rx, &rx, &error));
    g_assert_true(session->tx->ops->connect(session->tx, &tx, NULL, &error));
    rig->answers = g_thread_new("answers", rig_answers, rig);

    if (watches)
        session->watches = g_ptr_array_new_with_free_func((GDestroyNotify)rm_punch_watch_free);
    for (guint i = 0; watches && i < n; i++) {
        g_ptr_array_add(session->watches, rm_punch_watch_new(session->blocks->pdata[i], &error));
        g_assert_no_error(error);
    }
    RmSenderParams sender = {session->tx, session->control, session->blocks, 1 << 20, channels,
                             0,           session->watches};
    session->sender = rm_sender_new(&sender);
    session->tracker = rm_tracker_fake_new(session->blocks);
    g_assert_true(session->tracker->ops->arm(session->tracker, &error));
    rm_rounds_init(session);
    return rig;
}

static inline Rig *rig_new(const char *const *names, const uint64_t *sizes, unsigned n, unsigned channels)
{
    return rig_new_full(names, sizes, n, channels, FALSE);
}

static inline void rig_free(Rig *rig)
{
    rig->session->journal = NULL; /* which the answers look into */
    rm_session_free(rig->session);
    g_thread_join(rig->answers);
    rm_journal_close(rig->journal);
    rm_control_free(rig->far);
    rm_rx_free(rig->rx);
    rm_block_free(rig->state);
    g_ptr_array_unref(rig->asked);
    g_mutex_clear(&rig->asked_lock);
    g_ptr_array_unref(rig->target_blocks);
    rm_guest_free(rig->target);
    rm_reporter_free(rig->reporter);
    state_folder_free(rig->state_folder);
    g_free(rig);
}

static inline RmRoundStats rig_round(Rig *rig, RmRoundKind kind)
{
    RmRoundStats stats;
    g_autoptr(GError) error = NULL;
    gboolean ok = rm_round_run(rig->session, kind, &stats, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    return stats;
}

static inline void rig_write(Rig *rig, unsigned block, uint64_t page, int value)
{
    memset(rm_guest_fake_memory(rig->session->guest, block) + page * RM_PAGE, value, RM_PAGE);
    rm_tracker_fake_touch(rig->session->tracker, block, page, 1);
}

/* Gives the page back to the host: a hole. The tracker, as the real one, says nothing. */
static inline void rig_punch(Rig *rig, unsigned block, uint64_t page)
{
    RmBlock *b = rig->session->blocks->pdata[block];
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", b->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(page * RM_PAGE), RM_PAGE), ==, 0);
    close(fd);
}

/* The first page that differs at the destination, or -1. */
static inline int64_t rig_differs(Rig *rig, unsigned block)
{
    const RmBlock *there = rig->target_blocks->pdata[block];
    const uint8_t *here = rm_guest_fake_memory(rig->session->guest, block);
    for (uint64_t page = 0; page < rm_block_pages(there); page++) {
        if (memcmp(here + page * RM_PAGE, there->map + page * RM_PAGE, RM_PAGE) != 0)
            return (int64_t)page;
    }
    return -1;
}
