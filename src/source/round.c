/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A round: protect, fence, read, send, land.
 *
 * Why no page can be stale (design facts 1, 2, 6, 7):
 *  - A CPU's write to a page is reported by the next scan after it, whose round sends the page: the tracker's
 * contract.
 *  - Direct I/O may land in a page after it was protected, unseen. So a round first protects everything it
 * will read, then fences, then reads: what was submitted before the protection has landed by then, what is
 * submitted after it marks the page anew. A round that goes without a fence (slow disk, --max-stall)
 * remembers its pages as suspect, and a later fenced round, or the one after `stop` (itself a fence), sends
 * them again. The stopped rounds leave no suspect.
 *  - Round 1 sends what the file holds, not what page tables say. Its protection is the tracker's arming, so
 * its fence comes before it asks: on hugetlbfs what is populated is found by content, and a huge page of
 * zeroes with direct I/O in flight would be left out, and never reported.
 *  - A page that was sent and is a hole now is a zero page: reported as a zero range. One that is populated
 * again after we looked is unprotected, so the next scan reports it.
 *  - Two versions of one page never race: the next round begins only after `round-end-ok`, which the
 * destination sends when every channel has reaped the round's end and every zero range is done. The populated
 * extents are asked for before the scan: a page that appears between the two isn't in this round, and is
 * found in the next one, because nothing has protected it.
 */
#include "common/autoptr.h"
#include "common/fault.h"
#include "memory/chunk.h"
#include "source/session.h"

#include <string.h>

/* How long a peer that is alive may take over the end of a round: as long as it likes while the guest runs.
 */
#define STOPPED_TIMEOUT_MS 120000

static RmBlock *block_at(RmSession *session, guint i)
{
    return session->blocks->pdata[i];
}

void rm_rounds_init(RmSession *session)
{
    session->rounds = g_new0(RmBlockRounds, session->blocks->len);
    for (guint i = 0; i < session->blocks->len; i++) {
        RmBlockRounds *rounds = &session->rounds[i];
        uint64_t pages = rm_block_pages(block_at(session, i));
        rounds->todo = rm_bitmap_new(pages);
        rounds->suspect = rm_bitmap_new(pages);
        rounds->scratch = rm_bitmap_new(pages);
        rounds->populated = rm_populated_new();
        rounds->verified = g_new0(uint8_t, rm_chunk_count(block_at(session, i), session->accept->chunk_size));
    }
}

void rm_rounds_free(RmSession *session)
{
    for (guint i = 0; session->rounds != NULL && i < session->blocks->len; i++) {
        RmBlockRounds *rounds = &session->rounds[i];
        rm_bitmap_free(rounds->todo);
        rm_bitmap_free(rounds->suspect);
        rm_bitmap_free(rounds->scratch);
        rm_populated_free(rounds->populated);
        g_free(rounds->verified);
    }
    g_clear_pointer(&session->rounds, g_free);
}

static void mark_extents(const GArray *extents, RmBitmap *map)
{
    for (guint i = 0; i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        rm_bitmap_set(map, extent->start >> RM_PAGE_SHIFT, (extent->end - extent->start) >> RM_PAGE_SHIFT);
    }
}

/* Pages outside the extents are holes: not to be read (that would allocate them), zero at the destination. */
static void settle_hole(RmSession *session, guint i, uint64_t first, uint64_t end, GArray *zeroes)
{
    RmBlockRounds *rounds = &session->rounds[i];
    RmBitmap *sent = rm_sender_sent(session->sender, i);
    uint64_t chunk_pages = session->accept->chunk_size / RM_PAGE;
    if (first >= end)
        return;
    rm_bitmap_clear(rounds->todo, first, end - first);
    rm_bitmap_clear(rounds->suspect, first, end - first);
    rm_bitmap_foreach_run (sent, first, end, from, to) {
        RmZeroRange range = {i, from, to - from};
        g_array_append_val(zeroes, range);
        memset(rounds->verified + from / chunk_pages, 0, (to - 1) / chunk_pages - from / chunk_pages + 1);
        rm_bitmap_clear(sent, from, to - from);
    }
}

static void settle_holes(RmSession *session, guint i, GArray *zeroes)
{
    const GArray *extents = session->rounds[i].populated->extents;
    uint64_t position = 0;
    for (guint k = 0; k < extents->len; k++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, k);
        settle_hole(session, i, position, extent->start >> RM_PAGE_SHIFT, zeroes);
        position = extent->end >> RM_PAGE_SHIFT;
    }
    settle_hole(session, i, position, rm_block_pages(block_at(session, i)), zeroes);
}

gboolean rm_round_add_punched(RmSession *session, guint i, const GArray *extents, RmBitmap *pages,
                              GError **error)
{
    if (session->watches == NULL || rm_fault("no-punch-watch"))
        return TRUE;
    const RmExtent whole = {0, block_at(session, i)->size};
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_array_append_val(all, whole);
    return rm_punch_watch_collect(session->watches->pdata[i], extents != NULL ? extents : all,
                                  rm_sender_sent(session->sender, i), pages, error);
}

/* Protects and collects this round's pages in each block's `todo`. */
static gboolean scan(RmSession *session, RmRoundKind kind, GError **error)
{
    for (guint i = 0; i < session->blocks->len; i++) {
        RmBlockRounds *rounds = &session->rounds[i];
        rm_bitmap_clear_all(rounds->todo);
        if (!rm_populated_refresh(rounds->populated, block_at(session, i), kind == RM_ROUND_STOPPED, error))
            return FALSE;
        const GArray *extents = rounds->populated->extents;
        if (kind == RM_ROUND_FIRST)
            mark_extents(extents, rounds->todo); /* armed by the tracker a moment ago */
        else if (!session->tracker->ops->scan(session->tracker, i, extents, rounds->todo, error) ||
                 !rm_round_add_punched(session, i, extents, rounds->todo, error))
            return FALSE;
    }
    return TRUE;
}

static uint64_t count_all(RmSession *session, gboolean suspects)
{
    uint64_t pages = 0;
    for (guint i = 0; i < session->blocks->len; i++) {
        const RmBitmap *map = suspects ? session->rounds[i].suspect : session->rounds[i].todo;
        pages += rm_bitmap_count(map, 0, map->n_bits);
    }
    return pages;
}

/* Round 1 fences always, or all of RAM would be suspect. Later rounds go without after a stall over
 * --max-stall, until suspects are what stands between us and the switchover. */
static gboolean wants_fence(RmSession *session, RmRoundKind kind)
{
    if (kind == RM_ROUND_FIRST || session->last_stall_us <= (int64_t)session->options->max_stall_ms * 1000)
        return TRUE;
    double budget = session->rate * (double)session->options->downtime_limit_ms / 2000.0;
    return (double)count_all(session, TRUE) * RM_PAGE > budget;
}

static gboolean fence(RmSession *session, RmRoundKind kind, RmRoundStats *stats, GError **error)
{
    if (kind == RM_ROUND_STOPPED) {
        stats->fenced = TRUE;
    } else if (wants_fence(session, kind)) {
        if (!session->guest->ops->fence(session->guest, &stats->fence_us, error))
            return FALSE;
        stats->fenced = TRUE;
        session->metrics.fence_us += stats->fence_us;
        session->metrics.fence_max_us = MAX(session->metrics.fence_max_us, stats->fence_us);
        if (stats->fence_us > (int64_t)session->options->max_stall_ms * 1000 && session->last_stall_us == 0) {
            g_autofree char *text = g_strdup_printf(
                "the guest's disks held a round for %.0f ms, over --max-stall %u ms: most rounds "
                "now go without waiting for them and send more in the end",
                (double)stats->fence_us / 1000, (unsigned)session->options->max_stall_ms);
            rm_reporter_warning(session->reporter, RM_REASON_NONE, text);
        }
        session->last_stall_us = stats->fence_us;
    }
    for (guint i = 0; i < session->blocks->len; i++) {
        RmBlockRounds *rounds = &session->rounds[i];
        if (stats->fenced) {
            rm_bitmap_or(rounds->todo, rounds->suspect);
            rm_bitmap_clear_all(rounds->suspect);
        } else {
            rm_bitmap_or(rounds->suspect, rounds->todo);
        }
    }
    return TRUE;
}

static void push_block(RmSession *session, guint i)
{
    RmBlock *block = block_at(session, i);
    RmBlockRounds *rounds = &session->rounds[i];
    uint64_t chunk_pages = session->accept->chunk_size / RM_PAGE, pages = rm_block_pages(block);
    for (uint64_t page = rm_bitmap_next_set(rounds->todo, 0, pages); page < pages;
         page = rm_bitmap_next_set(rounds->todo, page, pages)) {
        uint64_t chunk = page / chunk_pages;
        rounds->verified[chunk] = 0;
        rm_sender_push(session->sender, i, chunk, rounds->todo);
        page = MIN((chunk + 1) * chunk_pages, pages);
    }
}

static void show_progress(RmSession *session)
{
    RmSenderCounts counts = rm_sender_counts(session->sender);
    uint64_t all = session->round_pages * RM_PAGE;
    uint64_t done = counts.sent_bytes - session->round_base.sent_bytes +
                    (counts.zero_pages - session->round_base.zero_pages) * RM_PAGE;
    RmProgress progress = {
        .round = session->round,
        .done_bytes = counts.sent_bytes + counts.zero_pages * RM_PAGE,
        .remaining_bytes = all - MIN(done, all),
        .rate = session->rate,
        .dirty_rate = session->dirty_rate,
        .expected_downtime_ms = (double)session->metrics.expected_downtime_us / 1000,
    };
    rm_reporter_progress(session->reporter, &progress);
}

static gboolean tick(gpointer data, GError **error)
{
    RmSession *session = data;
    show_progress(session);
    return rm_session_check(session, error) && session->guest->ops->poll(session->guest, error) &&
           rm_converge_check_time(session, error);
}

/* ---- the end of a round: who takes part, in this order ---- */

typedef struct {
    RmRoundKind kind;
    GArray *zeroes;
} RoundEnd;

/* Everything posted is off our hands, on every channel. */
static gboolean end_drain(RmSession *session, RoundEnd *end, GError **error)
{
    if (!rm_sender_flush(session->sender, session->round, tick, session, error))
        return FALSE;
    rm_sender_take_zeroes(session->sender, end->zeroes);
    return TRUE;
}

/* Everything has landed, and zero ranges are zero, at the receiver. */
static gboolean end_land(RmSession *session, RoundEnd *end, GError **error)
{
    unsigned timeout_ms = end->kind == RM_ROUND_STOPPED ? STOPPED_TIMEOUT_MS : 0;
    guint done = 0;
    do {
        guint n = MIN(end->zeroes->len - done, RM_ZERO_RANGES_MAX);
        gboolean more = done + n < end->zeroes->len;
        /* An empty array has no memory to point into. */
        const RmZeroRange *ranges = n > 0 ? &g_array_index(end->zeroes, RmZeroRange, done) : NULL;
        rm_autojson reply = NULL;
        if (!rm_control_request(session->control, rm_round_end_encode(session->round, ranges, n, more),
                                timeout_ms, session->cancel, &reply, error) ||
            !rm_message_expect(reply, RM_MSG_ROUND_END_OK, error))
            return FALSE;
        done += n;
    } while (done < end->zeroes->len);
    return TRUE;
}

static gboolean end_verify(RmSession *session, RoundEnd *end, GError **error)
{
    return end->kind == RM_ROUND_STOPPED || !session->options->verify ||
           rm_verify_clean(session, FALSE, error);
}

typedef struct {
    const char *name;
    gboolean (*run)(RmSession *session, RoundEnd *end, GError **error);
} EndHook;

static const EndHook end_hooks[] = {
    {"drain", end_drain},
    {"land", end_land},
    {"verify", end_verify},
};

static gboolean run_end_hooks(RmSession *session, RoundEnd *end, GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(end_hooks); i++) {
        if (!end_hooks[i].run(session, end, error)) {
            g_debug("round %u: %s failed", session->round, end_hooks[i].name);
            return FALSE;
        }
    }
    return TRUE;
}

/* ---- the round ---- */

static void account(RmSession *session, RmRoundStats *stats, const RmSenderCounts *before,
                    int64_t scan_end_us)
{
    RmSenderCounts after = rm_sender_counts(session->sender);
    stats->sent_bytes = after.sent_bytes - before->sent_bytes;
    stats->zero_pages = after.zero_pages - before->zero_pages;
    stats->registrations = after.registrations - before->registrations;
    stats->registration_us = after.registration_us - before->registration_us;
    session->metrics.sent_bytes = after.sent_bytes;
    session->metrics.zero_pages = after.zero_pages;
    session->metrics.registrations = after.registrations;
    session->metrics.registration_us = after.registration_us;
    session->metrics.rounds = session->round;
    /* Short rounds measure latency, not bandwidth; but a guest that only has short ones must be moved, too.
     */
    gboolean telling = stats->sent_bytes >= (1u << 20) || (stats->sent_bytes > 0 && session->rate == 0);
    if (telling && stats->send_us > 0) {
        double rate = (double)stats->sent_bytes * 1e6 / (double)stats->send_us;
        session->rate = session->rate > 0 ? 0.5 * session->rate + 0.5 * rate : rate;
    }
    if (session->last_scan_end_us > 0 && scan_end_us > session->last_scan_end_us && !stats->stopped)
        session->dirty_rate =
            (double)stats->dirty_pages * RM_PAGE * 1e6 / (double)(scan_end_us - session->last_scan_end_us);
    session->last_scan_end_us = scan_end_us;
}

void rm_round_clear(RmRound *round)
{
    g_clear_pointer(&round->zeroes, g_array_unref);
}

gboolean rm_round_begin(RmSession *session, RmRoundKind kind, RmRound *round, GError **error)
{
    *round = (RmRound){
        .kind = kind,
        .stats = {.round = ++session->round, .stopped = kind == RM_ROUND_STOPPED},
        .before = rm_sender_counts(session->sender),
        .zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange)),
    };
    RmRoundStats *stats = &round->stats;
    if (kind == RM_ROUND_FIRST && !fence(session, kind, stats, error))
        return FALSE;
    int64_t scan_begin = g_get_monotonic_time();
    if (!scan(session, kind, error))
        return FALSE;
    round->scanned_us = g_get_monotonic_time();
    stats->scan_us = round->scanned_us - scan_begin;
    stats->dirty_pages = count_all(session, FALSE);
    if (kind != RM_ROUND_FIRST && !fence(session, kind, stats, error))
        return FALSE;

    round->fenced_us = g_get_monotonic_time();
    for (guint i = 0; i < session->blocks->len; i++) {
        if (!block_at(session, i)->hugetlb)
            settle_holes(session, i, round->zeroes);
    }
    session->round_pages = count_all(session, FALSE);
    session->round_base = round->before;
    for (guint i = 0; i < session->blocks->len; i++)
        push_block(session, i);
    rm_sender_post(session->sender); /* what the stopped guest wrote travels while its state is saved */
    return TRUE;
}

gboolean rm_round_end(RmSession *session, RmRound *round, GError **error)
{
    RoundEnd end = {round->kind, round->zeroes};
    if (!run_end_hooks(session, &end, error))
        return FALSE;
    round->stats.send_us = g_get_monotonic_time() - round->fenced_us;
    account(session, &round->stats, &round->before, round->scanned_us);
    show_progress(session);
    rm_reporter_round(session->reporter, &round->stats);
    return TRUE;
}

gboolean rm_round_run(RmSession *session, RmRoundKind kind, RmRoundStats *ret_stats, GError **error)
{
    g_auto(RmRound) round = {0};
    if (!rm_round_begin(session, kind, &round, error) || !rm_round_end(session, &round, error))
        return FALSE;
    *ret_stats = round.stats;
    return TRUE;
}

gboolean rm_round_pending(RmSession *session, uint64_t *ret_dirty, uint64_t *ret_suspect, GError **error)
{
    uint64_t dirty = 0;
    for (guint i = 0; i < session->blocks->len; i++) {
        RmBlockRounds *rounds = &session->rounds[i];
        rm_bitmap_clear_all(rounds->scratch);
        if (!rm_populated_refresh(rounds->populated, block_at(session, i), FALSE, error) ||
            !session->tracker->ops->peek(session->tracker, i, rounds->populated->extents, rounds->scratch,
                                         error) ||
            !rm_round_add_punched(session, i, rounds->populated->extents, rounds->scratch, error))
            return FALSE;
        dirty += rm_bitmap_count(rounds->scratch, 0, rounds->scratch->n_bits);
    }
    *ret_dirty = dirty * RM_PAGE;
    *ret_suspect = count_all(session, TRUE) * RM_PAGE;
    return TRUE;
}

gboolean rm_round_send_block(RmSession *session, RmBlock *block, GArray *regions, GError **error)
{
    g_autoptr(RmBitmap) pages = rm_bitmap_new(rm_block_pages(block));
    g_autoptr(GArray) zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    RoundEnd end = {RM_ROUND_STOPPED, zeroes};
    rm_bitmap_set(pages, 0, pages->n_bits);
    session->round++;
    uint32_t index = rm_sender_add_block(session->sender, block, regions);
    for (uint64_t chunk = 0; chunk < rm_chunk_count(block, session->accept->chunk_size); chunk++)
        rm_sender_push(session->sender, index, chunk, pages);
    if (!run_end_hooks(session, &end, error)) {
        rm_session_end_data(session); /* its threads may still read the bitmap */
        return FALSE;
    }
    return TRUE;
}
