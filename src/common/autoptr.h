/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Scoped file descriptors (GLib has g_autofd only from 2.76 on). */
#pragma once

#include <glib.h>
#include <json-c/json.h>
#include <unistd.h>

static inline void rm_fd_clear(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static inline int rm_fd_steal(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

static inline void rm_json_clear(json_object **object)
{
    json_object_put(*object);
    *object = NULL;
}

#define rm_autofd __attribute__((cleanup(rm_fd_clear))) int
#define rm_autojson __attribute__((cleanup(rm_json_clear))) json_object *
