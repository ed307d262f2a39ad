/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options of a connection. */
#include "transport/verbs/packets.h"

#include <errno.h>

static void set(struct rdma_cm_id *id, int option, RmChoice choice, const char *name)
{
    if ((!choice.given && choice.value == 0) ||
        rdma_set_option(id, RDMA_OPTION_ID, option, &choice.value, sizeof choice.value) == 0)
        return;
    if (choice.given)
        g_warning("%s %u: %s; it stays as the system has it", name, choice.value, g_strerror(errno));
    else
        g_debug("%s stays as the system has it: %s", name,
                g_strerror(errno)); /* before Linux 5.2, or iWARP */
}

void rm_verbs_packets_set(struct rdma_cm_id *id, const RmPacketOptions *options)
{
    set(id, RDMA_OPTION_ID_TOS, options->tos, "--tos");
    set(id, RDMA_OPTION_ID_ACK_TIMEOUT, options->ack_timeout, "--rdma-ack-timeout");
}

void rm_verbs_packets_tell(unsigned channel, const RmPacketOptions *options)
{
    g_autoptr(GString) text = g_string_new(NULL);
    if (options->retries.given)
        g_string_append_printf(text, ", %u retries", options->retries.value);
    if (options->ack_timeout.value != 0)
        g_string_append_printf(text, ", ACK time-out %u (%" G_GUINT64_FORMAT " us)",
                               options->ack_timeout.value,
                               rm_verbs_ack_timeout_us(options->ack_timeout.value));
    if (options->tos.given)
        g_string_append_printf(text, ", TOS %u", options->tos.value);
    if (text->len > 0)
        g_info("data channel %u: %s", channel, text->str + 2);
}
