/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What all guest providers share. */
#include "guest/guest.h"

void rm_guest_info_free(RmGuestInfo *info)
{
    if (info == NULL)
        return;
    g_free(info->name);
    g_free(info->uuid);
    g_free(info->vmm);
    g_clear_pointer(&info->traits, g_hash_table_unref);
    g_free(info);
}
