/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Encoders and decoders of the control channel's messages. */
#include "control/message.h"

#include "common/autoptr.h"
#include "common/host.h"
#include "common/reason.h"
#include "control/json.h"
#include "memory/chunk.h"

#include <string.h>
#include <sys/sysmacros.h>

const char *rm_fate_name(RmFate fate)
{
    static const char *const names[] = {"unknown", "aborted", "committed"};
    return names[fate];
}

const char *rm_message_type(json_object *message)
{
    const char *type = "";
    rm_json_string_opt(message, "type", &type, NULL);
    return type;
}

gboolean rm_message_expect(json_object *reply, const char *type, GError **error)
{
    if (strcmp(rm_message_type(reply), type) == 0)
        return TRUE;
    return rm_fail(error, RM_REASON_PROTOCOL, "the peer answered `%.40s` where `%s` was due",
                   rm_message_type(reply), type);
}

char *rm_backing_id(const RmBlock *block)
{
    return g_strdup_printf("%s:%u.%u:%" G_GUINT64_FORMAT, rm_boot_id(), major(block->dev), minor(block->dev),
                           (guint64)block->ino);
}

/* ---- hello ---- */

static void hello_block_free(gpointer data)
{
    RmHelloBlock *block = data;
    g_free(block->name);
    g_free(block->backing);
    g_free(block);
}

RmHello *rm_hello_new(void)
{
    RmHello *hello = g_new0(RmHello, 1);
    hello->traits = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    hello->blocks = g_ptr_array_new_with_free_func(hello_block_free);
    hello->transports = g_ptr_array_new_with_free_func(g_free);
    hello->features = g_ptr_array_new_with_free_func(g_free);
    return hello;
}

void rm_hello_free(RmHello *hello)
{
    if (hello == NULL)
        return;
    g_free(hello->session);
    g_free(hello->guest_name);
    g_free(hello->guest_uuid);
    g_free(hello->vmm);
    g_hash_table_unref(hello->traits);
    g_ptr_array_unref(hello->blocks);
    g_ptr_array_unref(hello->transports);
    g_ptr_array_unref(hello->features);
    g_free(hello);
}

RmHelloBlock *rm_hello_add_block(RmHello *hello, const char *name, uint64_t size, uint64_t page_size,
                                 const char *backing)
{
    RmHelloBlock *block = g_new0(RmHelloBlock, 1);
    block->name = g_strdup(name);
    block->size = size;
    block->page_size = page_size;
    block->backing = g_strdup(backing);
    g_ptr_array_add(hello->blocks, block);
    return block;
}

static json_object *encode_names(const GPtrArray *names)
{
    json_object *list = json_object_new_array();
    for (guint i = 0; i < names->len; i++)
        json_object_array_add(list, json_object_new_string(names->pdata[i]));
    return list;
}

gboolean rm_has_name(const GPtrArray *names, const char *name)
{
    return g_ptr_array_find_with_equal_func((GPtrArray *)names, name, g_str_equal, NULL);
}

/* At most 16 names; what is no name is passed over, since it can only be a newer build's. */
static void decode_names(json_object *list, GPtrArray *names)
{
    for (size_t i = 0; i < MIN(json_object_array_length(list), 16); i++) {
        json_object *name = json_object_array_get_idx(list, i);
        if (json_object_is_type(name, json_type_string))
            g_ptr_array_add(names, g_strndup(json_object_get_string(name), RM_NAME_MAX));
    }
}

/* Those of a member that older builds don't send. */
static void decode_names_opt(json_object *message, const char *key, GPtrArray *names)
{
    json_object *list = NULL;
    if (json_object_object_get_ex(message, key, &list) && json_object_is_type(list, json_type_array))
        decode_names(list, names);
}

json_object *rm_hello_encode(const RmHello *hello)
{
    json_object *message = rm_json_message(RM_MSG_HELLO);
    rm_json_add_uint(message, "protocol", hello->protocol);
    rm_json_add_uint(message, "protocol_min", hello->protocol_min);
    rm_json_add_string(message, "session", hello->session);

    json_object *guest = json_object_new_object();
    rm_json_add_string(guest, "name", hello->guest_name);
    rm_json_add_string(guest, "uuid", hello->guest_uuid);
    rm_json_add_string(guest, "vmm", hello->vmm);
    json_object *traits = json_object_new_object();
    GHashTableIter iter;
    gpointer key, value;
    g_hash_table_iter_init(&iter, hello->traits);
    while (g_hash_table_iter_next(&iter, &key, &value))
        rm_json_add_string(traits, key, value);
    rm_json_add(guest, "traits", traits);
    rm_json_add(message, "guest", guest);

    json_object *blocks = json_object_new_array();
    for (guint i = 0; i < hello->blocks->len; i++) {
        const RmHelloBlock *block = hello->blocks->pdata[i];
        json_object *item = json_object_new_object();
        rm_json_add_string(item, "name", block->name);
        rm_json_add_uint(item, "size", block->size);
        rm_json_add_uint(item, "page_size", block->page_size);
        rm_json_add_string(item, "backing", block->backing);
        json_object_array_add(blocks, item);
    }
    rm_json_add(message, "blocks", blocks);
    rm_json_add_uint(message, "populated", hello->populated);
    rm_json_add_uint(message, "chunk_size", hello->chunk_size);
    rm_json_add_uint(message, "channels", hello->channels);
    rm_json_add(message, "transports", encode_names(hello->transports));
    rm_json_add(message, "features", encode_names(hello->features));
    rm_json_add_string(message, "pin", hello->pin_all ? "all" : "lazy");
    rm_json_add_bool(message, "dry_run", hello->dry_run);
    return message;
}

/* A required string of at most RM_NAME_MAX bytes, copied. */
static gboolean take_name(json_object *object, const char *key, char **ret_name, GError **error)
{
    const char *text;
    if (!rm_json_string(object, key, &text, error))
        return FALSE;
    if (strlen(text) > RM_NAME_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "`%s` is longer than %d bytes", key, RM_NAME_MAX);
    *ret_name = g_strdup(text);
    return TRUE;
}

static gboolean decode_guest(json_object *message, RmHello *hello, GError **error)
{
    json_object *guest, *traits;
    if (!rm_json_object(message, "guest", &guest, error) ||
        !take_name(guest, "name", &hello->guest_name, error) ||
        !take_name(guest, "uuid", &hello->guest_uuid, error) ||
        !take_name(guest, "vmm", &hello->vmm, error) || !rm_json_object(guest, "traits", &traits, error))
        return FALSE;
    if (json_object_object_length(traits) > RM_TRAITS_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "more than %d traits", RM_TRAITS_MAX);
    json_object_object_foreach(traits, key, value)
    {
        char *copy;
        if (strlen(key) > RM_NAME_MAX)
            return rm_fail(error, RM_REASON_PROTOCOL, "a trait's name is longer than %d bytes", RM_NAME_MAX);
        (void)value;
        if (!take_name(traits, key, &copy, error))
            return FALSE;
        g_hash_table_insert(hello->traits, g_strdup(key), copy);
    }
    return TRUE;
}

static gboolean decode_block(json_object *item, RmHello *hello, GError **error)
{
    g_autofree char *name = NULL, *backing = NULL;
    uint64_t size, page_size;
    if (!json_object_is_type(item, json_type_object))
        return rm_fail(error, RM_REASON_PROTOCOL, "a member of `blocks` is not an object");
    if (!take_name(item, "name", &name, error) || !take_name(item, "backing", &backing, error) ||
        !rm_json_uint(item, "size", &size, error) || !rm_json_uint(item, "page_size", &page_size, error))
        return FALSE;
    if (page_size < RM_PAGE || (page_size & (page_size - 1)) != 0 || size == 0 || size > RM_BLOCK_SIZE_MAX ||
        size % page_size != 0)
        return rm_fail(error, RM_REASON_PROTOCOL, "block `%s` has the impossible size %" G_GUINT64_FORMAT,
                       name, size);
    rm_hello_add_block(hello, name, size, page_size, backing);
    return TRUE;
}

static gboolean decode_blocks(json_object *message, RmHello *hello, GError **error)
{
    json_object *blocks;
    if (!rm_json_array(message, "blocks", &blocks, error))
        return FALSE;
    size_t n = json_object_array_length(blocks);
    if (n == 0 || n > RM_BLOCKS_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "%zu RAM blocks; 1 to %d are possible", n, RM_BLOCKS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (!decode_block(json_object_array_get_idx(blocks, i), hello, error))
            return FALSE;
    }
    return TRUE;
}

RmHello *rm_hello_decode(json_object *message, GError **error)
{
    g_autoptr(RmHello) hello = rm_hello_new();
    json_object *transports;
    const char *pin = "lazy";
    if (!rm_message_expect(message, RM_MSG_HELLO, error) ||
        !rm_json_uint(message, "protocol", &hello->protocol, error) ||
        !rm_json_uint(message, "protocol_min", &hello->protocol_min, error) ||
        !take_name(message, "session", &hello->session, error) || !decode_guest(message, hello, error) ||
        !decode_blocks(message, hello, error) ||
        !rm_json_uint(message, "populated", &hello->populated, error) ||
        !rm_json_uint(message, "chunk_size", &hello->chunk_size, error) ||
        !rm_json_uint(message, "channels", &hello->channels, error) ||
        !rm_json_array(message, "transports", &transports, error) ||
        !rm_json_string_opt(message, "pin", &pin, error) ||
        !rm_json_bool_opt(message, "dry_run", &hello->dry_run, error))
        return NULL;
    if (!g_uuid_string_is_valid(hello->session)) {
        rm_fail(error, RM_REASON_PROTOCOL, "`session` is not a UUID");
        return NULL;
    }
    decode_names(transports, hello->transports);
    decode_names_opt(message, "features", hello->features);
    hello->pin_all = strcmp(pin, "all") == 0;
    return g_steal_pointer(&hello);
}

/* ---- accept ---- */

RmAccept *rm_accept_new(void)
{
    RmAccept *accept = g_new0(RmAccept, 1);
    accept->available = g_ptr_array_new_with_free_func(g_free);
    accept->features = g_ptr_array_new_with_free_func(g_free);
    return accept;
}

void rm_accept_free(RmAccept *accept)
{
    if (accept == NULL)
        return;
    g_free(accept->transport);
    g_free(accept->token);
    g_free(accept->boot);
    json_object_put(accept->address);
    g_ptr_array_unref(accept->available);
    g_ptr_array_unref(accept->features);
    g_free(accept);
}

json_object *rm_accept_encode(const RmAccept *accept)
{
    json_object *message = rm_json_message(RM_MSG_ACCEPT);
    rm_json_add_uint(message, "protocol", accept->protocol);
    rm_json_add_uint(message, "chunk_size", accept->chunk_size);
    rm_json_add_uint(message, "channels", accept->channels);
    rm_json_add_string(message, "transport", accept->transport);
    rm_json_add_string(message, "token", accept->token);
    rm_json_add_string(message, "boot", accept->boot);
    rm_json_add(message, "available", encode_names(accept->available));
    rm_json_add(message, "features", encode_names(accept->features));
    rm_json_add_uint(message, "window", accept->window);
    rm_json_add(message, "address",
                accept->address != NULL ? json_object_get(accept->address) : json_object_new_object());
    return message;
}

RmAccept *rm_accept_decode(json_object *message, GError **error)
{
    g_autoptr(RmAccept) accept = rm_accept_new();
    json_object *address;
    if (!rm_message_expect(message, RM_MSG_ACCEPT, error) ||
        !rm_json_uint(message, "protocol", &accept->protocol, error) ||
        !rm_json_uint(message, "chunk_size", &accept->chunk_size, error) ||
        !rm_json_uint(message, "channels", &accept->channels, error) ||
        !take_name(message, "transport", &accept->transport, error) ||
        !take_name(message, "token", &accept->token, error) ||
        !take_name(message, "boot", &accept->boot, error) ||
        !rm_json_uint_opt(message, "window", &accept->window, error) ||
        !rm_json_object(message, "address", &address, error))
        return NULL;
    accept->address = json_object_get(address);
    decode_names_opt(message, "available", accept->available);
    decode_names_opt(message, "features", accept->features);
    return g_steal_pointer(&accept);
}

/* ---- round-end ---- */

void rm_round_end_free(RmRoundEnd *end)
{
    if (end == NULL)
        return;
    g_array_unref(end->zeroes);
    g_free(end);
}

json_object *rm_round_end_encode(uint64_t round, const RmZeroRange *ranges, unsigned n, gboolean more)
{
    json_object *message = rm_json_message(RM_MSG_ROUND_END);
    rm_json_add_uint(message, "round", round);
    rm_json_add_bool(message, "more", more);
    json_object *zero = json_object_new_array();
    for (unsigned i = 0; i < n; i++) {
        json_object_array_add(zero, json_object_new_uint64(ranges[i].block));
        json_object_array_add(zero, json_object_new_uint64(ranges[i].page));
        json_object_array_add(zero, json_object_new_uint64(ranges[i].count));
    }
    rm_json_add(message, "zero", zero);
    return message;
}

RmRoundEnd *rm_round_end_decode(json_object *message, GPtrArray *blocks, GError **error)
{
    g_autoptr(RmRoundEnd) end = g_new0(RmRoundEnd, 1);
    json_object *zero;
    end->zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    if (!rm_json_uint(message, "round", &end->round, error) ||
        !rm_json_bool(message, "more", &end->more, error) || !rm_json_array(message, "zero", &zero, error))
        return NULL;
    size_t n = json_object_array_length(zero);
    if (n % 3 != 0 || n / 3 > RM_ZERO_RANGES_MAX || end->round == 0 || end->round > G_MAXUINT32) {
        rm_fail(error, RM_REASON_PROTOCOL, "bad round-end: round %" G_GUINT64_FORMAT ", %zu numbers",
                end->round, n);
        return NULL;
    }
    for (size_t i = 0; i < n; i += 3) {
        RmZeroRange range;
        if (!rm_json_array_uint(zero, i, &range.block, error) ||
            !rm_json_array_uint(zero, i + 1, &range.page, error) ||
            !rm_json_array_uint(zero, i + 2, &range.count, error) ||
            !rm_message_check_block(range.block, blocks, error))
            return NULL;
        uint64_t pages = rm_block_pages(blocks->pdata[range.block]);
        if (range.count == 0 || range.page >= pages || range.count > pages - range.page) {
            rm_fail(error, RM_REASON_PROTOCOL, "zero range past the end of block %" G_GUINT64_FORMAT,
                    range.block);
            return NULL;
        }
        g_array_append_val(end->zeroes, range);
    }
    return g_steal_pointer(&end);
}

/* ---- verify ---- */

json_object *rm_verify_encode(const RmVerifyItem *items, unsigned n)
{
    json_object *message = rm_json_message(RM_MSG_VERIFY);
    json_object *digests = json_object_new_array();
    for (unsigned i = 0; i < n; i++) {
        char text[33];
        rm_digest_format(items[i].digest, text);
        json_object_array_add(digests, json_object_new_uint64(items[i].block));
        json_object_array_add(digests, json_object_new_uint64(items[i].chunk));
        json_object_array_add(digests, json_object_new_string(text));
    }
    rm_json_add(message, "digests", digests);
    return message;
}

GArray *rm_verify_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, GError **error)
{
    g_autoptr(GArray) items = g_array_new(FALSE, FALSE, sizeof(RmVerifyItem));
    json_object *digests;
    if (!rm_json_array(message, "digests", &digests, error))
        return NULL;
    size_t n = json_object_array_length(digests);
    if (n % 3 != 0 || n / 3 > RM_VERIFY_MAX) {
        rm_fail(error, RM_REASON_PROTOCOL, "bad verify: %zu members", n);
        return NULL;
    }
    for (size_t i = 0; i < n; i += 3) {
        RmVerifyItem item;
        json_object *text = json_object_array_get_idx(digests, i + 2);
        if (!rm_json_array_uint(digests, i, &item.block, error) ||
            !rm_json_array_uint(digests, i + 1, &item.chunk, error) ||
            !rm_message_check_block(item.block, blocks, error) ||
            !rm_message_check_chunk(item.chunk, blocks->pdata[item.block], chunk_size, error))
            return NULL;
        if (!json_object_is_type(text, json_type_string) ||
            !rm_digest_parse(json_object_get_string(text), &item.digest)) {
            rm_fail(error, RM_REASON_PROTOCOL, "a digest is not 32 hexadecimal digits");
            return NULL;
        }
        g_array_append_val(items, item);
    }
    return g_steal_pointer(&items);
}
