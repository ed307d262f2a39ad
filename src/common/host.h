/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* This host and its processes, told apart from others of the same name or number. */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

/* The kernel's boot id: another one after each boot. "?" where /proc doesn't tell. */
const char *rm_boot_id(void);

/* When process `pid` was started, in clock ticks since boot (/proc/PID/stat, field 22): with the boot id and
 * the number it names one process for ever. 0 if there is no such process, or it has
 * ended. */
uint64_t rm_process_start(pid_t pid);
