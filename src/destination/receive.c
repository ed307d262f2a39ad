/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session at the destination. */
#include "destination/receive.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"
#include "control/message.h"
#include "destination/admit.h"
#include "destination/compare.h"
#include "destination/find.h"
#include "destination/guard.h"
#include "destination/registrar.h"
#include "destination/tell.h"
#include "handover/earlier.h"
#include "handover/table.h"
#include "memory/chunk.h"

#include <string.h>

/* Of a source that is alive, which its keep-alives show: it looks at its guest before it says hello, and that
 * takes a while on a busy host. */
#define HELLO_TIMEOUT_MS 60000
#define GUEST_POLL_MS 500 /* how soon the death of the waiting QEMU is noticed */
#define CHANNELS_TIMEOUT_MS 10000

typedef struct {
    RmDaemon *daemon;
    RmControl *control;
    RmDaemonSession entry; /* what the daemon knows: id, token, rx, cancel */
    gboolean added;
    RmState at; /* in the table; connecting at first */
    RmSessionMeter meter;
    RmReason reason; /* of an end without the guest */
    gboolean prepared, load_tried, ended, cancelled, dry_run;
    RmFound found;
    GPtrArray *blocks; /* RmBlock*: the guest's */
    RmBlock *state;
    uint64_t state_length;
    uint64_t chunk_size;
    RmHello *hello;
    RmAccept *accept;
    RmJournal *journal; /* NULL before accept, and with --dry-run */
    RmGuardian *guardian;
    guint next_offer; /* of hello->transports */
    gboolean writing; /* the source has begun: no other transport any more */
    RmRx *rx;
    RmRegistrar *registrar;
} Receive;

/* ---- the transport ---- */

static gboolean start_rx(Receive *receive, RmAccept *accept, GError **error)
{
    RmRxParams params = {
        .channels = (unsigned)accept->channels,
        .blocks = receive->blocks,
        .chunk_size = accept->chunk_size,
        .timeout_ms = CHANNELS_TIMEOUT_MS,
        .port = receive->daemon->port,
        .data_addresses = receive->daemon->options->data_addresses,
        .device = receive->daemon->options->common.rdma_device,
        .gid_index = receive->daemon->options->common.gid_index,
        .packets = receive->daemon->options->common.packets,
        .max_pinned = receive->daemon->options->max_pinned,
        .pin_all = receive->hello->pin_all,
        .releases = rm_has_name(receive->hello->features, RM_FEATURE_RELEASE),
    };
    memcpy(params.token, receive->entry.token, sizeof params.token);
    receive->rx = rm_transport_find(accept->transport)->rx_new();
    if (!receive->rx->ops->start(receive->rx, &params, error)) {
        g_clear_pointer(&receive->rx, rm_rx_free);
        return FALSE;
    }
    receive->registrar = rm_registrar_new(receive->control, receive->rx, receive->blocks, accept->chunk_size,
                                          params.channels, receive->daemon->metrics);
    accept->window = params.releases ? receive->rx->window : 0;
    json_object_put(accept->address);
    accept->address = receive->rx->ops->offer(receive->rx);
    if (accept->address == NULL) {
        char **data = receive->daemon->options->data_addresses;
        accept->address = json_object_new_object();
        rm_json_add_uint(accept->address, "port", receive->daemon->port);
        if (data != NULL && data[0] != NULL)
            rm_json_add_string(accept->address, "host", data[0]);
    }
    rm_daemon_set_rx(receive->daemon, &receive->entry, receive->rx);
    return TRUE;
}

/* Starts the first of the source's offers, from receive->next_offer on, that can be started here. */
static gboolean start_transport(Receive *receive, GError **error)
{
    RmAccept *accept = receive->accept;
    g_autoptr(GError) first = NULL;
    while (rm_admit_transport(receive->hello->transports, accept->available, &receive->next_offer,
                              receive->hello->channels, accept)) {
        g_autoptr(GError) problem = NULL;
        if (receive->hello->dry_run || start_rx(receive, accept, &problem))
            return TRUE;
        /* --pin all and a bound that does not allow it: another transport is not what was meant. */
        if (receive->hello->pin_all && rm_error_reason(problem) == RM_REASON_PRIVILEGE) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        g_warning("session %s: transport %s: %s", receive->entry.id, accept->transport, problem->message);
        if (first == NULL)
            first = g_steal_pointer(&problem);
    }
    return rm_fail(error, first != NULL ? rm_error_reason(first) : RM_REASON_TRANSPORT_UNAVAILABLE,
                   "none of the source's transports can be used here%s%s; "
                   "--transport tcp works everywhere",
                   first != NULL ? ": " : "", first != NULL ? first->message : "");
}

/* Ends everything that writes RAM: the load reads and writes it itself. */
static void end_writers(Receive *receive)
{
    if (receive->rx != NULL) {
        rm_daemon_set_rx(receive->daemon, &receive->entry, NULL);
        receive->rx->ops->stop(receive->rx);
    }
    g_clear_pointer(&receive->registrar, rm_registrar_free);
}

/* The source cannot reach what was accepted: the next one, before anything was written. */
static gboolean on_transport(Receive *receive, json_object *message, GError **error)
{
    if (receive->writing)
        return rm_fail(error, RM_REASON_PROTOCOL, "`transport` after the first `register` or `round-end`");
    end_writers(receive);
    g_clear_pointer(&receive->rx, rm_rx_free);
    if (!start_transport(receive, error))
        return FALSE;
    rm_tell_accepted(receive->hello, receive->accept, receive->found.path, "the same source",
                     receive->entry.stream);
    return rm_control_reply(receive->control, message, rm_accept_encode(receive->accept), error);
}

/* ---- the requests ---- */

static gboolean on_register(Receive *receive, json_object *message, GError **error)
{
    receive->writing = TRUE;
    return rm_registrar_register(receive->registrar, message, error);
}

static gboolean on_release(Receive *receive, json_object *message, GError **error)
{
    return rm_registrar_release(receive->registrar, message, error);
}

static gboolean zero_ranges(Receive *receive, const GArray *zeroes, GError **error)
{
    for (guint i = 0; i < zeroes->len; i++) {
        const RmZeroRange *range = &g_array_index(zeroes, RmZeroRange, i);
        if (!rm_block_zero(receive->blocks->pdata[range->block], range->page << RM_PAGE_SHIFT,
                           range->count << RM_PAGE_SHIFT, !receive->rx->ops->pins, error))
            return FALSE;
    }
    return TRUE;
}

/* How the VMM was, for whoever has to put that back. */
static gboolean note_found(gpointer data, json_object *found, GError **error)
{
    Receive *receive = data;
    RmState state;
    return rm_journal_move(receive->journal, 1u << receive->at, receive->at, FALSE, found, FALSE, &state,
                           error) &&
           (state == receive->at ||
            rm_fail(error, RM_REASON_JOURNAL, "somebody else has ended the session, whose journal says %s",
                    rm_state_name(state)));
}

/* Once, behind the first round, when the source has other things to do than to wait for us. A failure is the
 * load's, which tries again.
 *
 * Until the load this QEMU may yet be left waiting: then it is as it was found, by put_back(), or by what
 * note_found() left for whoever settles the session. Should somebody change the settings meanwhile, the load
 * fails: QEMU compares x-ignore-shared with the stream's. */
static void prepare_load(Receive *receive)
{
    if (receive->prepared)
        return;
    receive->prepared = TRUE;
    const RmGuestOps *ops = receive->found.guest->ops;
    g_autoptr(GError) problem = NULL;
    ops->set_note(receive->found.guest, note_found, receive);
    if (!rm_guardian_ready(receive->guardian, &problem) || !ops->prepare_load(receive->found.guest, &problem))
        g_debug("not prepared yet: %s", problem->message);
}

/* The channels' writes of this round have landed before any zero range is applied, and the source begins no
 * further round before the answer: a page is either written or zeroed in a round, and the two never race. */
static gboolean on_round_end(Receive *receive, json_object *message, GError **error)
{
    g_autoptr(RmRoundEnd) end = rm_round_end_decode(message, receive->blocks, error);
    receive->writing = TRUE;
    if (end == NULL ||
        !receive->rx->ops->wait_round(receive->rx, (uint32_t)end->round, receive->entry.cancel, error) ||
        !zero_ranges(receive, end->zeroes, error))
        return FALSE;
    if (!rm_control_reply(receive->control, message, rm_json_message(RM_MSG_ROUND_END_OK), error))
        return FALSE;
    prepare_load(receive);
    return TRUE;
}

static gboolean on_verify(Receive *receive, json_object *message, GError **error)
{
    return rm_compare_digests(receive->control, message, receive->blocks, receive->chunk_size, error);
}

static gboolean on_state(Receive *receive, json_object *message, GError **error)
{
    uint64_t length;
    if (!rm_json_uint(message, "length", &length, error))
        return FALSE;
    if (receive->state != NULL || length == 0 || length > RM_STATE_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL,
                       "impossible announcement of %" G_GUINT64_FORMAT " bytes of state", length);
    receive->state = rm_block_new_anonymous("device-state", length);
    if (receive->state == NULL)
        return rm_fail(error, RM_REASON_MEMORY_SHORT,
                       "no memory for %" G_GUINT64_FORMAT " bytes of device state", length);
    receive->state_length = length;
    receive->rx->ops->add_block(receive->rx, receive->state);
    rm_registrar_add_block(receive->registrar, receive->state);
    g_autoptr(GArray) regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    /* Under a window there may be no room yet: the source asks for it as for RAM. */
    uint64_t chunks = receive->accept->window == 0 ? rm_chunk_count(receive->state, receive->chunk_size) : 0;
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        uint64_t start = chunk * receive->chunk_size;
        RmExtent extent = {start, start + rm_chunk_length(receive->state, receive->chunk_size, chunk)};
        if (!receive->rx->ops->register_chunk(receive->rx, receive->blocks->len, chunk, &extent, 1, regions,
                                              error))
            return FALSE;
    }
    json_object *reply = rm_registered_encode(regions);
    rm_json_add_string(reply, "type", RM_MSG_STATE_OK);
    return rm_control_reply(receive->control, message, reply, error);
}

static void set_at(Receive *receive, RmState state)
{
    receive->at = state;
    rm_session_meter_move(&receive->meter, state);
}

/* An event, which the table must allow: records its state where that is due, unless somebody else has ended
 * the session there; then the session is in the state that stood in the way. */
static gboolean take(Receive *receive, RmEvent event, gboolean run, GError **error)
{
    const RmTransition *row = rm_table_step(RM_SIDE_DESTINATION, receive->at, event);
    RmState state;
    g_assert(row != NULL);
    if ((row->duties & RM_DUTY(RECORD)) == 0) {
        if (receive->at != row->to)
            rm_fault_state(rm_state_name(row->to));
        set_at(receive, row->to);
        return TRUE;
    }
    if (!rm_journal_move(receive->journal, rm_table_recorded(RM_SIDE_DESTINATION, row->from), row->to, run,
                         NULL, (row->duties & RM_DUTY(SYNC)) != 0, &state, error))
        return FALSE;
    set_at(receive, state);
    rm_fault_state(rm_state_name(state));
    return state == row->to ||
           rm_fail(error, RM_REASON_CANCELLED, "the session was aborted: its source has asked");
}

/* Committed, whatever has become of the guest since. */
static gboolean is_ours(const Receive *receive)
{
    return !receive->dry_run && (receive->at == RM_STATE_COMMITTED || receive->at == RM_STATE_DONE ||
                                 receive->at == RM_STATE_DOUBTFUL);
}

static gboolean on_load(Receive *receive, json_object *message, GError **error)
{
    if (receive->state == NULL)
        return rm_fail(error, RM_REASON_PROTOCOL, "`load` before `state`");
    if (!rm_guardian_ready(receive->guardian, error))
        return FALSE;
    end_writers(receive);
    /* Recorded first: whoever finds `switchover` after a crash ends the QEMU, whether or not it was tried. */
    if (!take(receive, RM_EVENT_LOAD, FALSE, error))
        return FALSE;
    receive->load_tried = TRUE;
    rm_fault_pause("destination-load");
    gint64 begin = g_get_monotonic_time();
    if (!receive->found.guest->ops->load(receive->found.guest, receive->state->map, receive->state_length,
                                         error) ||
        !take(receive, RM_EVENT_LOADED, FALSE, error))
        return FALSE;
    rm_metrics_observe(receive->daemon->metrics, RM_HISTOGRAM_LOAD, begin);
    g_message("session %s: state loaded, %" G_GUINT64_FORMAT " bytes", receive->entry.id,
              receive->state_length);
    return rm_control_reply(receive->control, message, rm_json_message(RM_MSG_PREPARED), error);
}

static gboolean on_commit(Receive *receive, json_object *message, GError **error)
{
    g_autoptr(GError) problem = NULL;
    gint64 begin = g_get_monotonic_time();
    gboolean run;
    if (!rm_json_bool(message, "run", &run, error))
        return FALSE;
    /* Not after it counts: a QEMU that has died since the load runs nothing, and the source still has the
     * guest. That it answers, it has just shown. */
    if (!receive->found.guest->ops->poll(receive->found.guest, error))
        return FALSE;
    rm_fault_pause("destination-commit");
    /* The one step that makes the guest ours, for it excludes the other: a query that aborts (fates.c). A
     * crash before it: whoever comes next aborts. After it: whoever comes next runs the guest, see settle.h.
     */
    if (!take(receive, RM_EVENT_COMMIT, run, error))
        return FALSE;
    rm_fault_pause("destination-committed");
    if (run && !receive->found.guest->ops->activate(receive->found.guest, error)) {
        rm_tell_stuck(receive->entry.id, *error);
        gboolean lives = rm_journal_vmm_lives(rm_journal_facts(receive->journal));
        if (!take(receive, lives ? RM_EVENT_ACTIVATE_FAILED : RM_EVENT_GONE, run, &problem))
            g_warning("session %s: %s", receive->entry.id, problem->message);
        return FALSE;
    }
    if (run)
        rm_metrics_observe(receive->daemon->metrics, RM_HISTOGRAM_COMMIT, begin);
    /* The guest runs by now. Before the record: until it is there, whoever comes next would do it. */
    receive->found.guest->ops->put_back(receive->found.guest);
    /* Without this record the next one to look would only try again to run what runs. */
    if (!take(receive, RM_EVENT_ACTIVATED, run, &problem))
        g_warning("session %s: %s", receive->entry.id, problem->message);
    rm_tell_moved(receive->entry.id, receive->found.info->name, run);
    json_object *reply = rm_json_message(RM_MSG_RUNNING);
    rm_json_add_bool(reply, "running", run);
    /* The guest is ours whether or not the source hears of it; it can ask. */
    rm_control_reply(receive->control, message, reply, NULL);
    return TRUE;
}

static gboolean on_bye(Receive *receive, json_object *message, GError **error)
{
    receive->ended = TRUE;
    return TRUE;
}

static const struct {
    const char *type;
    RmState state; /* the only one in which it may come */
    gboolean (*run)(Receive *receive, json_object *message, GError **error);
} requests[] = {
    {RM_MSG_TRANSPORT, RM_STATE_PRECOPY, on_transport}, {RM_MSG_REGISTER, RM_STATE_PRECOPY, on_register},
    {RM_MSG_RELEASE, RM_STATE_PRECOPY, on_release},     {RM_MSG_ROUND_END, RM_STATE_PRECOPY, on_round_end},
    {RM_MSG_VERIFY, RM_STATE_PRECOPY, on_verify},       {RM_MSG_STATE, RM_STATE_PRECOPY, on_state},
    {RM_MSG_LOAD, RM_STATE_PRECOPY, on_load},           {RM_MSG_COMMIT, RM_STATE_PREPARED, on_commit},
};

static gboolean dispatch(Receive *receive, json_object *message, GError **error)
{
    const char *type = rm_message_type(message);
    if (strcmp(type, RM_MSG_BYE) == 0)
        return on_bye(receive, message, error);
    for (guint i = 0; i < G_N_ELEMENTS(requests); i++) {
        if (strcmp(type, requests[i].type) != 0)
            continue;
        if (receive->at != requests[i].state || receive->dry_run)
            return rm_fail(error, RM_REASON_PROTOCOL, "`%s` at the wrong time", type);
        return requests[i].run(receive, message, error);
    }
    /* Unknown requests come from a newer source that can do without: it gets an error and decides itself. */
    g_autoptr(GError) unknown = g_error_new(RM_ERROR, RM_REASON_PROTOCOL, "unknown request `%.40s`", type);
    return rm_control_reply_failure(receive->control, message, RM_MSG_ERROR, unknown, error);
}

/* ---- accepting ---- */

/* The waiting VMM, its RAM mapped, compared with the source's, and emptied. */
static gboolean prepare_guest(Receive *receive, GError **error)
{
    const RmHello *hello = receive->hello;
    if (!rm_find_guest(receive->daemon, hello, receive->entry.cancel, &receive->found, error) ||
        !rm_earlier_check(receive->found.info->pid, error) ||
        !receive->found.guest->ops->blocks(receive->found.guest, TRUE, &receive->blocks, error) ||
        !rm_admit_guest(hello, receive->found.info, receive->blocks, error) ||
        (!hello->dry_run && !rm_blocks_claim(receive->blocks, error)))
        return FALSE;
    for (guint i = 0; i < receive->blocks->len && !hello->dry_run; i++) {
        if (!rm_block_empty(receive->blocks->pdata[i], error))
            return FALSE;
    }
    return TRUE;
}

/* Before anything is started or emptied for it; rm_journal_create() has the last word. */
static gboolean check_fresh(const RmHello *hello, GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_DESTINATION, hello->session, &problem);
    if (journal != NULL)
        return rm_fail(error, RM_REASON_PROTOCOL, "session %s has been here before", hello->session);
    if (problem == NULL)
        return TRUE;
    g_propagate_error(error, g_steal_pointer(&problem));
    return FALSE;
}

static gboolean accept_hello(Receive *receive, json_object *message, const char *peer, GError **error)
{
    RmHello *hello = receive->hello = rm_hello_decode(message, error);
    RmAccept *accept = receive->accept = rm_accept_new();
    rm_session_meter_begin(&receive->meter, receive->daemon->metrics);
    if (hello != NULL)
        rm_log_context_set(hello->session, hello->guest_name, NULL);
    if (hello == NULL || !rm_admit_terms(receive->daemon->options, hello, accept, error))
        return FALSE;
    receive->entry.id = g_strdup(hello->session);
    receive->entry.log = rm_log_context();
    receive->dry_run = hello->dry_run;
    receive->chunk_size = accept->chunk_size;
    if (!check_fresh(hello, error) || !rm_token_new(receive->entry.token, error) ||
        !rm_daemon_add(receive->daemon, &receive->entry, error))
        return FALSE;
    receive->added = TRUE;
    accept->boot = g_strdup(receive->daemon->boot);
    accept->token = rm_token_format(receive->entry.token);
    rm_admit_features(receive->daemon->options, hello, receive->entry.stream, accept);
    receive->entry.plain_data = rm_has_name(accept->features, RM_FEATURE_PLAIN_DATA);
    /* The journal is the last step before `accept`: what is refused leaves no file. */
    if (!prepare_guest(receive, error) || !start_transport(receive, error))
        return FALSE;
    const RmTransition *row =
        rm_table_step(RM_SIDE_DESTINATION, receive->at, hello->dry_run ? RM_EVENT_CHECKED : RM_EVENT_HELLO);
    gboolean guarded =
        hello->dry_run || rm_guard_destination_start(hello, accept, &receive->found, peer, row->to,
                                                     &receive->journal, &receive->guardian, error);
    if (hello->dry_run || receive->journal != NULL)
        set_at(receive, row->to);
    if (!guarded)
        return FALSE;
    rm_tell_accepted(hello, accept, receive->found.path, peer, receive->entry.stream);
    rm_pass_accepted(receive->entry.pass);
    rm_control_trust(receive->control);
    rm_fault_state(rm_state_name(RM_STATE_PRECOPY));
    return rm_control_reply(receive->control, message, rm_accept_encode(accept), error);
}

/* ---- the life of the connection ---- */

/* The next request; meanwhile the waiting QEMU is looked after. */
static gboolean next_request(Receive *receive, json_object **ret_message, GError **error)
{
    for (;;) {
        g_autoptr(GError) problem = NULL;
        if (rm_control_receive(receive->control, GUEST_POLL_MS, receive->entry.cancel, ret_message, &problem))
            return TRUE;
        if (!rm_control_error(receive->control, error))
            return FALSE;
        if (g_cancellable_is_cancelled(receive->entry.cancel))
            return rm_fail(error, RM_REASON_CANCELLED, "the destination ended the session");
        if (rm_error_reason(problem) != RM_REASON_PEER_TIMEOUT) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        if (receive->at == RM_STATE_PRECOPY &&
            !receive->found.guest->ops->poll(receive->found.guest, error)) {
            g_prefix_error(error, "the waiting QEMU: ");
            return FALSE;
        }
    }
}

static void tell_source(Receive *receive, const GError *problem)
{
    json_object *message = rm_json_message(RM_MSG_CANCEL);
    rm_json_add_string(message, "reason", rm_reason_name(rm_error_reason(problem)));
    rm_json_add_string(message, "detail", problem->message);
    rm_control_expect_end(receive->control);
    rm_control_send(receive->control, message, NULL);
}

static void serve_requests(Receive *receive)
{
    g_autoptr(GError) problem = NULL;
    while (!receive->ended && problem == NULL) {
        rm_autojson message = NULL;
        if (!next_request(receive, &message, &problem))
            break;
        if (!dispatch(receive, message, &problem))
            rm_control_reply_failure(receive->control, message, RM_MSG_FAILED, problem, NULL);
    }
    receive->reason = rm_error_reason(problem);
    if (problem == NULL || is_ours(receive))
        return;
    receive->cancelled = receive->reason == RM_REASON_CANCELLED;
    rm_tell_ended(receive->entry.id, problem);
    tell_source(receive, problem);
}

/* Nothing but commit makes the guest ours; without it a QEMU that was loaded, or that we started, is ended.
 */
static void end_guest(Receive *receive)
{
    g_autoptr(GError) error = NULL;
    gboolean burnt = receive->load_tried && !is_ours(receive);
    gboolean surplus = receive->found.started && !is_ours(receive);
    if (receive->found.guest == NULL || (!burnt && !surplus)) {
        if (receive->prepared && !is_ours(receive))
            receive->found.guest->ops->put_back(receive->found.guest);
        return;
    }
    if (!receive->found.guest->ops->quit(receive->found.guest, &error))
        g_warning("%s: %s", receive->found.path, error->message);
    else if (burnt)
        g_warning("%s: this QEMU has been ended, because one whose load was tried can't be asked again; "
                  "start a new one",
                  receive->found.path);
}

/* Before the QEMU is ended, so that a commit can't come in between. A record that fails leaves the session
 * open: nobody can commit it any more, and whoever looks next aborts it. If `committed` stands there all the
 * same (it could be neither synced nor taken back), the QEMU is left as it is, for whoever settles that. */
static void abort_journal(Receive *receive)
{
    g_autoptr(GError) error = NULL;
    if (!take(receive, receive->cancelled ? RM_EVENT_CANCELLED : RM_EVENT_FAILED, FALSE, &error) &&
        !rm_state_is_end(receive->at))
        g_warning("session %s: %s", receive->entry.id, error->message);
}

static void receive_clear(Receive *receive)
{
    if (receive->journal != NULL && !is_ours(receive) && !rm_state_is_end(receive->at))
        abort_journal(receive);
    /* A connection that was lost after the guest had come is no reason for anything. */
    rm_session_meter_end(&receive->meter, receive->at,
                         receive->at == RM_STATE_DONE ? RM_REASON_NONE : receive->reason, receive->dry_run);
    end_writers(receive);
    end_guest(receive);
    rm_control_free(g_steal_pointer(&receive->control));
    rm_rx_free(g_steal_pointer(&receive->rx));
    rm_block_free(receive->state);
    rm_hello_free(receive->hello);
    rm_accept_free(receive->accept);
    g_clear_pointer(&receive->blocks, g_ptr_array_unref);
    rm_guardian_end(receive->guardian); /* nothing is left to be done */
    rm_found_clear(receive->daemon, &receive->found);
    rm_journal_close(receive->journal); /* from here on nobody looks after the session */
    if (receive->added) {
        rm_daemon_remove(receive->daemon, &receive->entry);
        rm_journal_prune(RM_SIDE_DESTINATION);
    }
    g_object_unref(receive->entry.cancel);
    g_free(receive->entry.id);
}

static void on_lost(GCancellable *lost, GCancellable *cancel)
{
    g_cancellable_cancel(cancel);
}

void rm_receive_run(RmDaemon *daemon, GIOStream *stream, const char *first, const char *peer, RmPass *pass)
{
    Receive receive = {.daemon = daemon,
                       .entry = {.cancel = g_cancellable_new(), .stream = stream, .pass = pass}};
    g_autoptr(GError) error = NULL;
    rm_autojson message = NULL;
    rm_log_context_set(NULL, NULL, peer);
    receive.control = rm_control_new(stream, first, &(RmControlParams){.stranger = TRUE});
    rm_control_set_peer_name(receive.control, "source");
    GCancellable *lost = rm_control_lost(receive.control);
    gulong handler = g_cancellable_connect(lost, G_CALLBACK(on_lost), receive.entry.cancel, NULL);
    rm_fault_state(rm_state_name(RM_STATE_CONNECTING));

    if (!rm_control_receive(receive.control, HELLO_TIMEOUT_MS, receive.entry.cancel, &message, &error)) {
        rm_metrics_count_refusal(daemon->metrics, rm_error_reason(error));
        rm_pass_failed(pass, peer, "no hello came", error);
        if (rm_error_reason(error) == RM_REASON_PEER_TIMEOUT)
            tell_source(&receive, error);
    } else if (strcmp(rm_message_type(message), RM_MSG_QUERY) == 0) {
        rm_daemon_answer_query(daemon, &receive.entry, peer, receive.control, message);
    } else if (accept_hello(&receive, message, peer, &error)) {
        serve_requests(&receive);
    } else {
        rm_fault_state(rm_state_name(RM_STATE_REFUSED));
        rm_pass_failed(pass, peer, "refused", error);
        rm_session_meter_end(&receive.meter, RM_STATE_REFUSED, rm_error_reason(error), FALSE);
        rm_control_expect_end(receive.control);
        rm_control_reply_failure(receive.control, message, RM_MSG_REFUSE, error, NULL);
    }
    g_cancellable_disconnect(lost, handler);
    receive_clear(&receive);
}
