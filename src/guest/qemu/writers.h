/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who else has the guest's RAM files: what they write is invisible to the dirty tracker. */
#pragma once

#include "memory/block.h"

/* Looks through /proc for mappings and descriptors of the blocks' files outside QEMU (`pid`) and this
 * process, and for second mappings inside QEMU. Reason ram-other-writers, by pid and name; privilege if a
 * process cannot be looked at. */
gboolean rm_writers_check(pid_t pid, GPtrArray *blocks, GError **error);
