/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages bent at random: no input crashes a parser or a decoder, and what they accept holds together. The
 * seed is fixed, so that a failure comes again; MUTATIONS in the environment raises the number of rounds.
 */
#include "common/autoptr.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"
#include "control/line.h"
#include "control/message.h"

#include <string.h>

#define CHUNK_SIZE (UINT64_C(1) << 20)

static const char *const seeds[] = {
    "{\"type\":\"hello\",\"protocol\":1,\"protocol_min\":1,\"session\":\"6fa459ea-ee8a-4ca4-894e-"
    "db77e160355e\","
    "\"guest\":{\"name\":\"g\",\"uuid\":\"u\",\"vmm\":\"qemu\",\"traits\":{\"machine\":\"pc\",\"cpus\":\"2\"}"
    "},"
    "\"blocks\":[{\"name\":\"pc.ram\",\"size\":8388608,\"page_size\":4096,\"backing\":\"b:0.1:2\"},"
    "{\"name\":\"rom\",\"size\":4096,\"page_size\":4096,\"backing\":\"\"}],\"populated\":8388608,"
    "\"chunk_size\":1048576,\"channels\":2,\"transports\":[\"tcp\",\"verbs\"],\"features\":[\"release\"],"
    "\"pin\":\"all\","
    "\"dry_run\":false,\"id\":1}",
    "{\"type\":\"accept\",\"protocol\":1,\"chunk_size\":1048576,\"channels\":2,\"transport\":\"tcp\","
    "\"token\":\"00ff\","
    "\"boot\":\"x\",\"address\":{\"port\":24780,\"host\":\"::1\"},\"features\":[\"release\"],\"window\":"
    "8388608,"
    "\"reply\":1}",
    "{\"type\":\"register\",\"block\":0,\"chunks\":[[0,0,256],[7,1792,1793,1800,2048]],\"id\":"
    "18446744073709551615}",
    "{\"type\":\"release\",\"block\":0,\"chunks\":[[0,0,256],[2,512,768]],\"mark\":7,\"id\":3}",
    "{\"type\":\"round-end\",\"round\":1,\"more\":true,\"zero\":[0,0,1,0,2047,1,1,0,1],\"id\":2}",
    "{\"type\":\"verify\",\"digests\":[0,0,\"00112233445566778899aabbccddeeff\",1,0,"
    "\"ffeeddccbbaa99887766554433221100\"]}",
    "{\"type\":\"x\",\"s\":\"\\u00e9\\ud83d\\ude00\\\"\\\\\\n "
    "\xc3\xa9\",\"n\":[-1,1.5,1e3,null,true,{\"a\":[[]]}]}",
};

static const char *const pieces[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\n",
    "-",
    "0",
    "00",
    "1e9",
    "1.0",
    "null",
    "true",
    "NaN",
    "\"type\"",
    "\"id\":",
    "\"reply\":",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "-9223372036854775809",
    "4294967296",
    "2048",
    "\xff",
    "\xc0\x80",
    "[[[[[[[[",
    "{\"a\":{\"a\":",
};

static GRand *rnd;
static GPtrArray *blocks;
static unsigned accepted, decoded;

static guint pick(gsize below)
{
    return g_rand_int_range(rnd, 0, MAX(below, 1));
}

static void mutate(GString *text)
{
    gsize at = pick(text->len + 1);
    gsize length = pick(12); /* MIN() would pick twice */
    length = MIN(length, text->len - at);
    switch (pick(6)) {
    case 0:
        if (at < text->len)
            text->str[at] ^= 1 << pick(8);
        break;
    case 1:
        g_string_erase(text, at, length);
        break;
    case 2:
        g_string_insert(text, at, pieces[pick(G_N_ELEMENTS(pieces))]);
        break;
    case 3: { /* a slice of it once more, somewhere else */
        g_autofree char *slice = g_strndup(text->str + at, length);
        g_string_insert(text, pick(text->len + 1), slice);
        break;
    }
    case 4: /* one number for another */
        for (; at < text->len && !g_ascii_isdigit(text->str[at]); at++)
            ;
        for (length = 0; at + length < text->len && g_ascii_isdigit(text->str[at + length]); length++)
            ;
        g_string_erase(text, at, length);
        g_string_insert(text, at, pieces[18 + pick(12)]);
        break;
    default:
        g_string_insert_c(text, at, g_rand_int_range(rnd, 0, 256));
    }
}

/* All decoders see it, whatever its type says; a false positive shows in what they let through. */
static void decode(json_object *message)
{
    g_autoptr(RmHello) hello = rm_hello_decode(message, NULL);
    g_autoptr(RmAccept) accept = rm_accept_decode(message, NULL);
    g_autoptr(RmRegister) request = rm_register_decode(message, blocks, CHUNK_SIZE, NULL);
    uint32_t mark = 0;
    g_autoptr(RmRegister) release = rm_release_decode(message, blocks, CHUNK_SIZE, 2, &mark, NULL);
    g_assert_cmpint(release != NULL, ==, mark > 0);
    for (guint i = 0; release != NULL && i < release->chunks->len; i++) {
        const RmRegisterChunk *one = release->chunks->pdata[0], *other = release->chunks->pdata[i];
        g_assert_cmpuint(one->chunk % 2, ==, other->chunk % 2); /* one channel's */
    }
    g_autoptr(RmRoundEnd) end = rm_round_end_decode(message, blocks, NULL);
    g_autoptr(GArray) digests = rm_verify_decode(message, blocks, CHUNK_SIZE, NULL);
    decoded += hello != NULL || accept != NULL || request != NULL || release != NULL || end != NULL ||
               digests != NULL;

    for (guint i = 0; request != NULL && i < request->chunks->len; i++) {
        const RmRegisterChunk *chunk = request->chunks->pdata[i];
        const RmBlock *block = blocks->pdata[request->block];
        for (guint k = 0; k < chunk->extents->len; k++) {
            const RmExtent *extent = &g_array_index(chunk->extents, RmExtent, k);
            g_assert_cmpuint(extent->start, <, extent->end);
            g_assert_cmpuint(extent->start, >=, chunk->chunk * CHUNK_SIZE);
            g_assert_cmpuint(extent->end, <=, MIN((chunk->chunk + 1) * CHUNK_SIZE, block->size));
        }
    }
    for (guint i = 0; end != NULL && i < end->zeroes->len; i++) {
        const RmZeroRange *range = &g_array_index(end->zeroes, RmZeroRange, i);
        g_assert_cmpuint(range->block, <, blocks->len);
        const RmBlock *block = blocks->pdata[range->block];
        g_assert_cmpuint(range->count, <=, block->size / 4096);
        g_assert_cmpuint(range->page + range->count, <=, block->size / 4096);
    }
    for (guint i = 0; hello != NULL && i < hello->blocks->len; i++) {
        const RmHelloBlock *block = hello->blocks->pdata[i];
        g_assert_cmpuint(block->size, >, 0);
        g_assert_cmpuint(block->size % block->page_size, ==, 0);
    }
}

static void check(const char *text, gsize length)
{
    g_autoptr(GError) error = NULL;
    rm_autojson message = rm_json_parse(text, length, RM_MESSAGE_DEPTH, &error);
    if (message == NULL) {
        g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
        return;
    }
    g_assert_no_error(error);
    accepted++;
    decode(message);

    /* what was understood can be said again, and means the same */
    const char *said = json_object_to_json_string_ext(message, JSON_C_TO_STRING_PLAIN);
    rm_autojson again = rm_json_parse(said, strlen(said), RM_MESSAGE_DEPTH, &error);
    g_assert_no_error(error);
    g_assert_true(json_object_equal(message, again));
}

static unsigned rounds(unsigned otherwise)
{
    const char *wish = g_getenv("MUTATIONS");
    return wish != NULL ? g_ascii_strtoull(wish, NULL, 10) : otherwise;
}

static void test_messages(void)
{
    blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(blocks, rm_block_new("pc.ram", 8 << 20));
    g_ptr_array_add(blocks, rm_block_new("rom", 4096));
    for (size_t i = 0; i < G_N_ELEMENTS(seeds); i++)
        check(seeds[i], strlen(seeds[i]));
    g_assert_cmpuint(accepted, ==, G_N_ELEMENTS(seeds)); /* else the mutations start from rubble */
    g_assert_cmpuint(decoded, ==, G_N_ELEMENTS(seeds) - 1);

    unsigned n = rounds(60000);
    for (unsigned i = 0; i < n; i++) {
        g_autoptr(GString) text = g_string_new(seeds[pick(G_N_ELEMENTS(seeds))]);
        for (guint times = 1 + pick(4); times > 0; times--)
            mutate(text);
        /* an exact copy, so that the address sanitizer sees a read past its end */
        g_autofree char *copy = g_memdup2(text->str, text->len);
        check(copy != NULL ? copy : "", text->len);
    }
    g_test_message("%u of %u accepted, %u decoded", accepted, n, decoded);
    g_assert_cmpuint(accepted, >, n / 100);
    g_assert_cmpuint(accepted, <, n);
    g_ptr_array_unref(blocks);
}

/* A stream cut at random places has the same lines as the stream whole. */
static void test_lines(void)
{
    unsigned n = rounds(3000);
    for (unsigned i = 0; i < n; i++) {
        g_autoptr(GString) stream = g_string_new(NULL);
        for (guint count = 1 + pick(60); count > 0; count--) {
            for (guint length = pick(30); length > 0; length--)
                g_string_append_c(stream, pick(256));
            if (pick(2))
                g_string_append_c(stream, '\n');
        }
        g_auto(RmLineBuffer) lines = {0};
        rm_line_buffer_init(&lines, 1 << 20);
        g_autoptr(GString) seen = g_string_new(NULL);
        for (gsize at = 0; at < stream->len;) {
            gsize size = 1 + pick(40);
            size = MIN(size, stream->len - at);
            rm_line_buffer_append(&lines, stream->str + at, size);
            at += size;
            const char *line;
            gsize length;
            while (rm_line_buffer_next(&lines, &line, &length) == RM_LINE_OK) {
                g_assert_null(memchr(line, '\n', length));
                g_string_append_len(seen, line, length);
                g_string_append_c(seen, '\n');
            }
        }
        gsize whole = seen->len;
        g_assert_cmpuint(whole + rm_line_buffer_pending(&lines), ==, stream->len);
        g_assert_cmpmem(seen->str, whole, stream->str, whole);
        g_assert_null(memchr(stream->str + whole, '\n', stream->len - whole));
    }
}

static void test_line_limit(void)
{
    g_auto(RmLineBuffer) lines = {0};
    rm_line_buffer_init(&lines, 4);
    const char *line;
    gsize length;
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_NONE);
    rm_line_buffer_append(&lines, "1234\n\n123", 9);
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_OK);
    g_assert_cmpmem(line, length, "1234", 4);
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_OK);
    g_assert_cmpuint(length, ==, 0);
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_NONE);
    rm_line_buffer_append(&lines, "4", 1);
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_NONE);
    rm_line_buffer_append(&lines, "5\n", 2);
    g_assert_cmpint(rm_line_buffer_next(&lines, &line, &length), ==, RM_LINE_TOO_LONG);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    rnd = g_rand_new_with_seed(24780);
    g_test_add_func("/mutations/messages", test_messages);
    g_test_add_func("/mutations/lines", test_lines);
    g_test_add_func("/mutations/line-limit", test_line_limit);
    int status = g_test_run();
    g_rand_free(rnd);
    return status;
}
