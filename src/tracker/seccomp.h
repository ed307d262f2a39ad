/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a thread's seccomp filters would do to a system call, found out without trying: a filter may kill the
 * whole process for one it does not expect, and then the guest is gone.
 */
#pragma once

#include <glib.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>

/* Runs one filter of `length` instructions over `data`. What is not a valid filter counts as
 * SECCOMP_RET_KILL_PROCESS. */
uint32_t rm_seccomp_run(const struct sock_filter *filter, unsigned length, const struct seccomp_data *data);

/* For messages: "kill", "errno", … */
const char *rm_seccomp_action_name(uint32_t action);
