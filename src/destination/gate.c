/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The accounts: addresses, half-open connections, floods.
 *
 * To end a connection its socket is shut down: the thread that serves it finds that out, and gives the pass
 * back. The gate does that through a descriptor of its own: the thread may be closing the socket this moment,
 * and the number of a closed one may be another session's by now.
 */
#include "destination/gate.h"

#include "common/fault.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HALF_OPEN_MAX 96
#define HALF_OPEN_MIN 8
#define ENDING_WAIT_US 100000
#define SWEEP_EACH_S 2

typedef struct {
    char *name; /* the key, and for the log */
    guint connections, half_open, sessions;
    gint64 full_at;       /* the bucket of failures, see rm_bucket_take() */
    gint64 blocked_until; /* 0: not blocked */
    gint64 grace_until;
    gint64 seen;
    guint64 turned_away; /* since it was blocked */
} Address;

struct RmPass {
    RmGate *gate;
    Address *address;
    int fd;     /* ours, while it is half-open; else -1 */
    GList link; /* in gate->half_open, while it is half-open */
    gboolean half_open, ended, known, session;
};

struct RmGate {
    RmGateLimits limits;   /* immutable */
    gint64 (*clock)(void); /* immutable */
    RmLogRate strangers, refusals;

    GMutex lock; /* all below */
    GCond left;
    GHashTable *addresses; /* name -> Address */
    GQueue half_open;      /* RmPass, oldest first */
    guint ending;          /* ended, not given back */
    guint blocked;         /* addresses */
    gint64 flood_last;     /* when a connection last was ended; 0: no flood */
    guint64 flood_ended;   /* in this flood */
    RmGateCounts counts;   /* those that only grow */
    guint timer;           /* 0: no sweep is due */
};

void rm_gate_limits(RmGateLimits *limits, guint connections)
{
    guint half_open = CLAMP(connections / 4, HALF_OPEN_MIN, HALF_OPEN_MAX);
    gint64 block_us = (gint64)rm_fault_number("block-for", 60) * G_USEC_PER_SEC;
    *limits = (RmGateLimits){
        .half_open = half_open,
        .half_open_of_address = half_open / 2,
        .ending = 8,
        .addresses = 1024,
        .failures = 100,
        .failure_us = G_USEC_PER_SEC,
        .block_us = block_us,
        .grace_us = (gint64)600 * G_USEC_PER_SEC,
        .quiet_us = block_us / 6,
    };
}

static void address_free(gpointer data)
{
    Address *address = data;
    g_free(address->name);
    g_free(address);
}

RmGate *rm_gate_new(const RmGateLimits *limits, gint64 (*clock)(void))
{
    RmGate *gate = g_new0(RmGate, 1);
    gate->limits = *limits;
    gate->clock = clock != NULL ? clock : g_get_monotonic_time;
    g_mutex_init(&gate->lock);
    g_cond_init(&gate->left);
    gate->addresses = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, address_free);
    g_queue_init(&gate->half_open);
    return gate;
}

void rm_gate_free(RmGate *gate)
{
    if (gate == NULL)
        return;
    if (gate->timer != 0)
        g_source_remove(gate->timer);
    g_hash_table_unref(gate->addresses);
    g_mutex_clear(&gate->lock);
    g_cond_clear(&gate->left);
    g_free(gate);
}

/* ---- addresses ---- */

/* The part of an IPv6 address that one subscriber has. On a link everybody has the same one: there the whole
 * address counts. */
static char *ipv6_name(struct sockaddr_in6 *native)
{
    if (IN6_IS_ADDR_V4MAPPED(&native->sin6_addr)) {
        g_autoptr(GInetAddress) inner =
            g_inet_address_new_from_bytes(native->sin6_addr.s6_addr + 12, G_SOCKET_FAMILY_IPV4);
        return g_inet_address_to_string(inner);
    }
    gboolean whole = IN6_IS_ADDR_LINKLOCAL(&native->sin6_addr) || IN6_IS_ADDR_LOOPBACK(&native->sin6_addr);
    if (!whole)
        memset(native->sin6_addr.s6_addr + 8, 0, 8);
    g_autoptr(GInetAddress) inet =
        g_inet_address_new_from_bytes(native->sin6_addr.s6_addr, G_SOCKET_FAMILY_IPV6);
    g_autofree char *text = g_inet_address_to_string(inet);
    if (!whole)
        return g_strconcat(text, "/64", NULL);
    return native->sin6_scope_id != 0 ? g_strdup_printf("%s%%%u", text, native->sin6_scope_id)
                                      : g_steal_pointer(&text);
}

char *rm_gate_address(GSocketAddress *peer)
{
    struct sockaddr_storage native;
    if (peer == NULL || !g_socket_address_to_native(peer, &native, sizeof native, NULL))
        return g_strdup("an unknown address"); /* it has ended already */
    if (native.ss_family == AF_INET6)
        return ipv6_name((struct sockaddr_in6 *)&native);
    if (native.ss_family == AF_INET)
        return g_inet_address_to_string(g_inet_socket_address_get_address(G_INET_SOCKET_ADDRESS(peer)));
    return g_strdup("this host");
}

static gboolean is_exempt(const Address *address, gint64 now)
{
    return address->sessions > 0 || now < address->grace_until;
}

/* Under the lock, as all that follows. */
static void unblock(RmGate *gate, Address *address)
{
    g_message("%s: let in again; %" G_GUINT64_FORMAT " of its connections were closed", address->name,
              address->turned_away);
    address->blocked_until = 0;
    address->full_at = 0;
    gate->blocked--;
}

/* The one that will be missed least: nobody's session, not blocked, not heard of for longest. */
static void forget_one(RmGate *gate)
{
    GHashTableIter iter;
    gpointer value;
    Address *found = NULL;
    int found_rank = 0;
    gint64 now = gate->clock();
    g_hash_table_iter_init(&iter, gate->addresses);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        Address *address = value;
        int rank = is_exempt(address, now) ? 2 : address->blocked_until != 0 ? 1 : 0;
        if (address->connections == 0 &&
            (found == NULL || rank < found_rank || (rank == found_rank && address->seen < found->seen))) {
            found = address;
            found_rank = rank;
        }
    }
    if (found == NULL) /* each has a connection, of which the number is bounded */
        return;
    if (found->blocked_until != 0)
        unblock(gate, found);
    g_hash_table_remove(gate->addresses, found->name);
}

static Address *get_address(RmGate *gate, GSocketAddress *peer)
{
    g_autofree char *name = rm_gate_address(peer);
    Address *address = g_hash_table_lookup(gate->addresses, name);
    if (address == NULL) {
        if (g_hash_table_size(gate->addresses) >= gate->limits.addresses)
            forget_one(gate);
        address = g_new0(Address, 1);
        address->name = g_steal_pointer(&name);
        g_hash_table_insert(gate->addresses, address->name, address);
    }
    address->seen = gate->clock();
    return address;
}

/* ---- what has its time ---- */

static void sweep(RmGate *gate)
{
    GHashTableIter iter;
    gpointer value;
    gint64 now = gate->clock();
    if (gate->flood_last != 0 && now >= gate->flood_last + gate->limits.quiet_us) {
        g_message("the flood of connections has ended; %" G_GUINT64_FORMAT
                  " were closed before they had said what they are",
                  gate->flood_ended);
        gate->flood_last = 0;
        gate->flood_ended = 0;
    }
    if (gate->blocked == 0)
        return;
    g_hash_table_iter_init(&iter, gate->addresses);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        Address *address = value;
        if (address->blocked_until != 0 && now >= address->blocked_until)
            unblock(gate, address);
    }
}

void rm_gate_sweep(RmGate *gate)
{
    g_mutex_lock(&gate->lock);
    sweep(gate);
    g_mutex_unlock(&gate->lock);
}

static gboolean on_timer(gpointer data)
{
    RmGate *gate = data;
    g_mutex_lock(&gate->lock);
    sweep(gate);
    gboolean again = gate->blocked > 0 || gate->flood_last != 0;
    if (!again)
        gate->timer = 0;
    g_mutex_unlock(&gate->lock);
    return again;
}

/* So that the end is logged when it comes, and not with the next connection. */
static void sweep_later(RmGate *gate)
{
    if (gate->timer == 0)
        gate->timer = g_timeout_add_seconds(SWEEP_EACH_S, on_timer, gate);
}

void rm_gate_count(RmGate *gate, RmGateCounts *ret_counts)
{
    g_mutex_lock(&gate->lock);
    *ret_counts = gate->counts;
    ret_counts->half_open = gate->half_open.length;
    ret_counts->addresses = g_hash_table_size(gate->addresses);
    ret_counts->blocked = gate->blocked;
    g_mutex_unlock(&gate->lock);
}

/* ---- half-open connections ---- */

/* Says why, if that can be said, and that quickly: a source reads it as the end of its session, which names
 * the reason. */
static void send_away(const RmGate *gate, int fd)
{
    static const char line[] = "{\"type\":\"cancel\",\"reason\":\"limit\",\"detail\":\"too many connections "
                               "from this address, or failures of them; try again in a minute; the log of "
                               "rdmamigd has more\"}\n";
    if (!gate->limits.tls)
        (void)!send(fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_RDWR);
}

static void close_half(RmGate *gate, RmPass *pass)
{
    g_queue_unlink(&gate->half_open, &pass->link);
    pass->half_open = FALSE;
    pass->address->half_open--;
    close(pass->fd);
    pass->fd = -1;
}

/* The oldest of the address that has most, or of `address`, if that is given; such with an accepted
 * certificate last. */
static RmPass *choose(RmGate *gate, const Address *address)
{
    RmPass *found = NULL;
    guint found_rank = 0;
    for (GList *item = gate->half_open.head; item != NULL; item = item->next) {
        RmPass *pass = item->data;
        guint rank = pass->address->half_open + (pass->known ? 0 : gate->limits.half_open);
        if ((address == NULL || pass->address == address) && rank > found_rank) {
            found = pass;
            found_rank = rank;
        }
    }
    return found;
}

static void end_one(RmGate *gate, const Address *address)
{
    RmPass *pass = choose(gate, address);
    if (gate->flood_last == 0)
        g_warning("too many connections that don't say what they are (%u, %u of them from %s): the oldest "
                  "are closed",
                  gate->half_open.length, pass->address->half_open, pass->address->name);
    gate->flood_last = gate->clock();
    gate->flood_ended++;
    gate->counts.ended++;
    gate->ending++;
    pass->ended = TRUE;
    send_away(gate, pass->fd);
    close_half(gate, pass);
    sweep_later(gate);
}

static gboolean is_blocked(RmGate *gate, Address *address)
{
    sweep(gate);
    if (address->blocked_until == 0 || is_exempt(address, gate->clock()))
        return FALSE;
    address->turned_away++;
    gate->counts.turned_away++;
    return TRUE;
}

RmPass *rm_gate_enter(RmGate *gate, GSocketAddress *peer, int fd)
{
    gint64 until = g_get_monotonic_time() + ENDING_WAIT_US;
    RmPass *pass = NULL;
    g_mutex_lock(&gate->lock);
    Address *address = get_address(gate, peer);
    if (is_blocked(gate, address)) {
        send_away(gate, fd);
        g_mutex_unlock(&gate->lock);
        return NULL;
    }
    address->connections++; /* is not forgotten meanwhile */
    /* Accepting goes no faster than ending does: else a flood would pile up threads, and the thread of an
     * honest peer would not get to read its hello before it is the oldest. */
    while (gate->ending > gate->limits.ending && g_cond_wait_until(&gate->left, &gate->lock, until))
        ;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own >= 0) {
        if (address->half_open >= gate->limits.half_open_of_address)
            end_one(gate, address);
        else if (gate->half_open.length >= gate->limits.half_open)
            end_one(gate, NULL);
        pass = g_new0(RmPass, 1);
        *pass = (RmPass){.gate = gate, .address = address, .fd = own, .half_open = TRUE};
        pass->link.data = pass;
        g_queue_push_tail_link(&gate->half_open, &pass->link);
        address->half_open++;
    } else {
        address->connections--;
    }
    g_mutex_unlock(&gate->lock);
    return pass;
}

void rm_pass_known(RmPass *pass)
{
    g_mutex_lock(&pass->gate->lock);
    pass->known = TRUE;
    g_mutex_unlock(&pass->gate->lock);
}

gboolean rm_pass_identify(RmPass *pass)
{
    g_mutex_lock(&pass->gate->lock);
    if (pass->half_open)
        close_half(pass->gate, pass);
    gboolean ok = !pass->ended;
    g_mutex_unlock(&pass->gate->lock);
    return ok;
}

void rm_pass_accepted(RmPass *pass)
{
    g_mutex_lock(&pass->gate->lock);
    if (!pass->session)
        pass->address->sessions++;
    pass->session = TRUE;
    g_mutex_unlock(&pass->gate->lock);
}

/* Whether it is one that nobody makes who means well, or has just set up a guest wrongly. */
static gboolean is_strangers(RmReason reason)
{
    return reason == RM_REASON_PROTOCOL || reason == RM_REASON_TOKEN || reason == RM_REASON_TLS;
}

/* Under the lock. */
static void block(RmGate *gate, Address *address, RmReason reason)
{
    const RmGateLimits *limits = &gate->limits;
    address->blocked_until = gate->clock() + limits->block_us;
    address->turned_away = 0;
    gate->blocked++;
    g_warning("%s: %u failures within a short time, the last one: %s; its connections are closed at once for "
              "%u s",
              address->name, limits->failures, rm_reason_name(reason),
              (guint)(limits->block_us / G_USEC_PER_SEC));
    sweep_later(gate);
}

void rm_pass_count_failure(RmPass *pass, RmReason reason)
{
    RmGate *gate = pass->gate;
    Address *address = pass->address;
    const RmGateLimits *limits = &gate->limits;
    if (!is_strangers(reason))
        return;
    g_mutex_lock(&gate->lock);
    gint64 now = gate->clock();
    if (!pass->ended) { /* else it failed because of us */
        gate->counts.failures++;
        if (!rm_bucket_take(&address->full_at, now, limits->failures, limits->failure_us) &&
            address->blocked_until == 0 && !is_exempt(address, now))
            block(gate, address, reason);
    }
    g_mutex_unlock(&gate->lock);
}

void rm_pass_failed(RmPass *pass, const char *peer, const char *what, const GError *error)
{
    RmGate *gate = pass->gate;
    RmReason reason = rm_error_reason(error);
    if (reason == RM_REASON_PEER_LOST || reason == RM_REASON_CANCELLED)
        g_debug("%s: %s: %s", peer, what, error->message);
    else
        rm_log_rate_event(is_strangers(reason) ? &gate->strangers : &gate->refusals, RM_LOG_REFUSED, reason,
                          "%s: %s: %s: %s", peer, what, rm_reason_name(reason), error->message);
    rm_pass_count_failure(pass, reason);
}

void rm_pass_leave(RmPass *pass)
{
    RmGate *gate = pass->gate;
    g_mutex_lock(&gate->lock);
    if (pass->half_open)
        close_half(gate, pass);
    if (pass->ended) {
        gate->ending--;
        g_cond_signal(&gate->left);
    }
    if (pass->session) {
        pass->address->sessions--;
        pass->address->grace_until = gate->clock() + gate->limits.grace_us;
    }
    pass->address->connections--;
    g_mutex_unlock(&gate->lock);
    g_free(pass);
}
