/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake guest. */
#include "guest/fake.h"

#include "common/autoptr.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATE_MAGIC "fake device state\n"

typedef struct {
    RmGuest base;
    GPtrArray *blocks; /* of RmBlock: the guest's own, mapped writable */
    RmGuestRun run;
    gboolean prepared, loaded, quit;
    char *name, *uuid;
    GHashTable *traits;
    GHashTable *failures; /* op -> reason */
    GString *calls;
    RmGuestFakeHook hook;
    gpointer hook_data;
    gboolean (*note)(gpointer data, json_object *found, GError **error);
    gpointer note_data;
} Fake;

static Fake *fake_of(RmGuest *guest)
{
    return (Fake *)((char *)guest - G_STRUCT_OFFSET(Fake, base));
}

/* Every operation begins here; FALSE if it has to fail. */
static gboolean begin(RmGuest *guest, const char *op, GError **error)
{
    Fake *self = fake_of(guest);
    if (strcmp(op, "poll") != 0 && strcmp(op, "run_state") != 0)
        g_string_append_printf(self->calls, "%s%s", self->calls->len > 0 ? " " : "", op);
    if (self->hook != NULL)
        self->hook(guest, op, self->hook_data);
    gpointer reason = g_hash_table_lookup(self->failures, op);
    if (reason != NULL) {
        g_hash_table_remove(self->failures, op);
        return rm_fail(error, GPOINTER_TO_INT(reason), "the fake guest was told to fail in %s", op);
    }
    if (self->quit && strcmp(op, "quit") != 0)
        return rm_fail(error, RM_REASON_GUEST_GONE, "the fake guest has quit");
    return TRUE;
}

static gboolean require(gboolean condition, const char *words, RmReason reason, GError **error)
{
    return condition || rm_fail(error, reason, "the fake guest is not %s", words);
}

static gboolean fake_describe(RmGuest *guest, RmGuestInfo **ret_info, GError **error)
{
    Fake *self = fake_of(guest);
    GHashTableIter iter;
    gpointer key, value;
    if (!begin(guest, "describe", error))
        return FALSE;
    RmGuestInfo *info = g_new0(RmGuestInfo, 1);
    info->name = g_strdup(self->name);
    info->uuid = g_strdup(self->uuid);
    info->pid = getpid();
    info->vmm = g_strdup("fake 1");
    info->traits = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_hash_table_iter_init(&iter, self->traits);
    while (g_hash_table_iter_next(&iter, &key, &value))
        g_hash_table_insert(info->traits, g_strdup(key), g_strdup(value));
    *ret_info = info;
    return TRUE;
}

static gboolean fake_run_state(RmGuest *guest, RmGuestRun *ret_run, GError **error)
{
    if (!begin(guest, "run_state", error))
        return FALSE;
    *ret_run = fake_of(guest)->run;
    return TRUE;
}

static gboolean fake_blocks(RmGuest *guest, gboolean writable, GPtrArray **ret_blocks, GError **error)
{
    Fake *self = fake_of(guest);
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    if (!begin(guest, "blocks", error))
        return FALSE;
    for (guint i = 0; i < self->blocks->len; i++) {
        const RmBlock *own = g_ptr_array_index(self->blocks, i);
        g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", own->fd);
        g_autoptr(RmBlock) block = rm_block_new(own->name, own->size);
        block->hva = (uint64_t)(uintptr_t)own->map;
        int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC); /* a file position of its own */
        if (fd < 0)
            return rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot open %s", path);
        if (!rm_block_open(block, fd, writable, error))
            return FALSE;
        g_ptr_array_add(blocks, g_steal_pointer(&block));
    }
    *ret_blocks = g_steal_pointer(&blocks);
    return TRUE;
}

static gboolean fake_preflight(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options,
                               GError **error)
{
    RmGuestRun run = fake_of(guest)->run;
    return begin(guest, "preflight", error) && require(run == RM_GUEST_RUNNING || run == RM_GUEST_PAUSED,
                                                       "running or paused", RM_REASON_GUEST_STATE, error);
}

static const char *fake_puncher(RmGuest *guest)
{
    return NULL;
}

static gboolean fake_check_save(RmGuest *guest, GError **error)
{
    return begin(guest, "check-save", error);
}

static gboolean fake_recheck(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options,
                             GError **error)
{
    return begin(guest, "recheck", error);
}

static gboolean fake_fence(RmGuest *guest, int64_t *ret_stall_us, GError **error)
{
    *ret_stall_us = 0;
    return begin(guest, "fence", error);
}

static gboolean fake_poll(RmGuest *guest, GError **error)
{
    return begin(guest, "poll", error);
}

static gboolean fake_stop(RmGuest *guest, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "stop", error) ||
        !require(self->run == RM_GUEST_RUNNING || self->run == RM_GUEST_PAUSED, "running or paused",
                 RM_REASON_GUEST_STATE, error))
        return FALSE;
    self->run = RM_GUEST_PAUSED;
    return TRUE;
}

static void fake_set_note(RmGuest *guest, gboolean (*note)(gpointer data, json_object *found, GError **error),
                          gpointer data)
{
    fake_of(guest)->note = note;
    fake_of(guest)->note_data = data;
}

static void fake_recall(RmGuest *guest, json_object *found)
{
    g_string_append_printf(fake_of(guest)->calls, "%srecall(%s)", fake_of(guest)->calls->len > 0 ? " " : "",
                           found != NULL ? json_object_to_json_string_ext(found, JSON_C_TO_STRING_PLAIN)
                                         : "");
}

static gboolean fake_note(Fake *self, GError **error)
{
    rm_autojson found = json_tokener_parse(RM_GUEST_FAKE_NOTE);
    return self->note == NULL || self->note(self->note_data, found, error);
}

/* The note is made once, as what is found is. */
static gboolean prepare(Fake *self, const char *op, GError **error)
{
    return self->prepared || (begin(&self->base, op, error) && (self->prepared = fake_note(self, error)));
}

static gboolean fake_prepare_save(RmGuest *guest, GError **error)
{
    return prepare(fake_of(guest), "prepare-save", error);
}

static gboolean fake_save(RmGuest *guest, GByteArray **ret_state, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "save", error) ||
        !require(self->run == RM_GUEST_PAUSED, "paused", RM_REASON_STATE_SAVE, error))
        return FALSE;
    self->run = RM_GUEST_SAVED;
    *ret_state = g_byte_array_new();
    g_byte_array_append(*ret_state, (const guint8 *)STATE_MAGIC, strlen(STATE_MAGIC));
    return TRUE;
}

static void fake_put_back(RmGuest *guest)
{
    fake_of(guest)->prepared = FALSE;
    begin(guest, "put-back", NULL);
}

static gboolean fake_resume(RmGuest *guest, gboolean run, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "resume", error) ||
        !require(self->run != RM_GUEST_WAITING, "a source", RM_REASON_RESUME, error))
        return FALSE;
    if (run)
        self->run = RM_GUEST_RUNNING;
    return TRUE;
}

static gboolean fake_prepare_load(RmGuest *guest, GError **error)
{
    return require(fake_of(guest)->run == RM_GUEST_WAITING, "waiting", RM_REASON_GUEST_STATE, error) &&
           prepare(fake_of(guest), "prepare-load", error);
}

static gboolean fake_load(RmGuest *guest, const uint8_t *state, gsize length, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "load", error) ||
        !require(self->run == RM_GUEST_WAITING, "waiting", RM_REASON_GUEST_STATE, error) ||
        !(self->prepared || fake_note(self, error)))
        return FALSE;
    self->run = RM_GUEST_OTHER; /* used up, whether or not it succeeds */
    if (length != strlen(STATE_MAGIC) || memcmp(state, STATE_MAGIC, length) != 0)
        return rm_fail(error, RM_REASON_STATE_LOAD, "this is not a fake guest's state");
    self->loaded = TRUE;
    self->run = RM_GUEST_PAUSED;
    return TRUE;
}

static gboolean fake_activate(RmGuest *guest, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "activate", error) || !require(self->loaded, "loaded", RM_REASON_RESUME, error))
        return FALSE;
    self->run = RM_GUEST_RUNNING;
    return TRUE;
}

static gboolean fake_quit(RmGuest *guest, GError **error)
{
    Fake *self = fake_of(guest);
    if (!begin(guest, "quit", error))
        return FALSE;
    self->quit = TRUE;
    self->run = RM_GUEST_OTHER;
    return TRUE;
}

static int fake_connection(RmGuest *guest)
{
    return -1;
}

static void fake_free(RmGuest *guest)
{
    Fake *self = fake_of(guest);
    g_ptr_array_unref(self->blocks);
    g_hash_table_unref(self->traits);
    g_hash_table_unref(self->failures);
    g_string_free(self->calls, TRUE);
    g_free(self->name);
    g_free(self->uuid);
    g_free(self);
}

static const RmGuestOps fake_ops = {
    .name = "fake",
    .describe = fake_describe,
    .run_state = fake_run_state,
    .blocks = fake_blocks,
    .preflight = fake_preflight,
    .puncher = fake_puncher,
    .check_save = fake_check_save,
    .recheck = fake_recheck,
    .fence = fake_fence,
    .poll = fake_poll,
    .stop = fake_stop,
    .prepare_save = fake_prepare_save,
    .save = fake_save,
    .put_back = fake_put_back,
    .set_note = fake_set_note,
    .recall = fake_recall,
    .resume = fake_resume,
    .prepare_load = fake_prepare_load,
    .load = fake_load,
    .activate = fake_activate,
    .quit = fake_quit,
    .connection = fake_connection,
    .free = fake_free,
};

static gboolean add_block(Fake *self, const char *name, uint64_t size, GError **error)
{
    g_autoptr(RmBlock) block = rm_block_new(name, size);
    rm_autofd fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make a memory file for %s", name);
    if (!rm_block_open(block, rm_fd_steal(&fd), TRUE, error))
        return FALSE;
    g_ptr_array_add(self->blocks, g_steal_pointer(&block));
    return TRUE;
}

RmGuest *rm_guest_fake_new(RmGuestRun run, const char *const *names, const uint64_t *sizes, unsigned n,
                           GError **error)
{
    Fake *self = g_new0(Fake, 1);
    self->base.ops = &fake_ops;
    self->run = run;
    self->blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    self->traits = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    self->failures = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    self->calls = g_string_new(NULL);
    rm_guest_fake_set_identity(&self->base, "fake", "");
    rm_guest_fake_set_trait(&self->base, "machine", "fake");
    g_autoptr(RmGuest) guest = &self->base;
    for (unsigned i = 0; i < n; i++) {
        if (!add_block(self, names[i], sizes[i], error))
            return NULL;
    }
    return g_steal_pointer(&guest);
}

uint8_t *rm_guest_fake_memory(RmGuest *guest, unsigned index)
{
    return ((RmBlock *)g_ptr_array_index(fake_of(guest)->blocks, index))->map;
}

void rm_guest_fake_set_identity(RmGuest *guest, const char *name, const char *uuid)
{
    Fake *self = fake_of(guest);
    g_free(self->name);
    g_free(self->uuid);
    self->name = g_strdup(name);
    self->uuid = g_strdup(uuid);
}

void rm_guest_fake_set_trait(RmGuest *guest, const char *trait, const char *value)
{
    g_hash_table_insert(fake_of(guest)->traits, g_strdup(trait), g_strdup(value));
}

void rm_guest_fake_fail(RmGuest *guest, const char *op, RmReason reason)
{
    g_hash_table_insert(fake_of(guest)->failures, g_strdup(op), GINT_TO_POINTER(reason));
}

void rm_guest_fake_set_hook(RmGuest *guest, RmGuestFakeHook hook, gpointer data)
{
    fake_of(guest)->hook = hook;
    fake_of(guest)->hook_data = data;
}

const char *rm_guest_fake_calls(RmGuest *guest)
{
    return fake_of(guest)->calls->str;
}

RmGuestRun rm_guest_fake_run(RmGuest *guest)
{
    return fake_of(guest)->run;
}

gboolean rm_guest_fake_has_quit(RmGuest *guest)
{
    return fake_of(guest)->quit;
}
