/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control channel against a peer that says anything: each call ends, requests are handed out once with an
 * id that can be answered, a reply goes to the request that was made, and all that the channel itself says
 * are messages.
 */
#include "fuzz.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"

#include <string.h>

static RmControl *control_over(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    g_assert_nonnull(socket);
    g_autoptr(GSocketConnection) connection = g_socket_connection_factory_create_connection(socket);
    return rm_control_new(G_IO_STREAM(connection), NULL, &(RmControlParams){0});
}

static void check_said(int fd)
{
    g_autoptr(GString) said = g_string_new(NULL);
    char bytes[4096];
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;)
        g_string_append_len(said, bytes, n);
    g_auto(GStrv) lines = g_strsplit(said->str, "\n", -1);
    for (char **line = lines; *line != NULL && **line != '\0'; line++) {
        rm_autojson message = rm_json_parse(*line, strlen(*line), RM_MESSAGE_DEPTH, NULL);
        const char *type = NULL;
        g_assert_true(message != NULL && rm_json_string(message, "type", &type, NULL));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    if (!fuzz_socket(data, size, fds))
        return 0;
    g_autoptr(RmControl) control = control_over(fds[0]);
    g_autoptr(GError) error = NULL;
    rm_autojson reply = NULL;
    uint64_t asked = rm_control_begin(control, rm_json_message("fuzz"), NULL);
    for (json_object *request = NULL; rm_control_receive(control, 0, NULL, &request, &error);) {
        uint64_t id = 1;
        const char *type = NULL;
        g_assert_true(rm_json_string(request, "type", &type, NULL));
        g_assert_true(rm_json_uint_opt(request, "id", &id, NULL) && id != 0);
        rm_control_reply(control, request, rm_json_message("ok"), NULL);
        json_object_put(request);
    }
    g_assert_nonnull(error); /* the input has an end */
    g_assert_false(rm_control_error(control, NULL) && !g_error_matches(error, RM_ERROR, RM_REASON_PEER_LOST));
    if (asked != 0 && rm_control_finish(control, asked, 0, NULL, &reply, NULL)) {
        uint64_t id = 0;
        g_assert_true(rm_json_uint(reply, RM_REPLY, &id, NULL) && id == asked);
    }
    g_clear_pointer(&control, rm_control_free);
    check_said(fds[1]);
    close(fds[1]);
    return 0;
}
