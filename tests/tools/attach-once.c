/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* attach-once PID TID: attaches once, as the tracker does, and prints how long it took and its fault points.
 */
#include "common/reason.h"
#include "tracker/attach.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: attach-once PID TID\n");
        return 2;
    }
    g_autoptr(GError) error = NULL;
    RmAttachStats stats = {0};
    int fd = rm_attach_userfaultfd(atoi(argv[1]), atoi(argv[2]), O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY,
                                   &stats, &error);
    if (fd < 0) {
        printf("%s: %s\n", rm_reason_name(rm_error_reason(error)), error->message);
        return 1;
    }
    close(fd);
    printf("steps %u us %" G_GINT64_FORMAT "\n", stats.steps, stats.stopped_us);
    return 0;
}
