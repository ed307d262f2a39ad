/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp transport's receiver on two small blocks: it writes within them, and exactly as many bytes as it
 * says. The blocks lie between pages that nobody may touch, where a write would fail with "no memory".
 */
#include "fuzz.h"

#include "common/reason.h"
#include "transport/tcp/destination.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK (UINT64_C(1) << 20)

static RmBlock *block_between_traps(const char *name, uint64_t size)
{
    RmBlock *block = rm_block_new(name, size);
    uint8_t *area =
        mmap(NULL, size + 2 * RM_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_assert_true(area != MAP_FAILED && mprotect(area + RM_PAGE, size, PROT_READ | PROT_WRITE) == 0);
    block->map = area + RM_PAGE;
    return block;
}

static void drop(gpointer data)
{
    RmBlock *block = data;
    munmap(block->map - RM_PAGE, block->size + 2 * RM_PAGE);
    block->map = NULL;
    rm_block_free(block);
}

/* Over the loopback, since a TCP socket's options are set; ret_fds as fuzz_socket() has them. */
static void tcp_pair(int ret_fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    static int listener = -1;
    if (listener < 0) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        g_assert_true(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
    }
    g_assert_cmpint(getsockname(listener, (struct sockaddr *)&address, &length), ==, 0);
    ret_fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* From another address each time: every connection leaves a TIME_WAIT, and there would soon be as many as
     * ports. */
    static uint32_t calls;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f010000 + calls++ % 0xf00000)}};
    g_assert_cmpint(bind(ret_fds[1], (struct sockaddr *)&from, sizeof from), ==, 0);
    g_assert_cmpint(connect(ret_fds[1], (struct sockaddr *)&address, length), ==, 0);
    ret_fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    g_assert_cmpint(ret_fds[0], >=, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    g_autoptr(GError) error = NULL;
    sigset_t alarm, before;
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func(drop);
    g_ptr_array_add(blocks, block_between_traps("ram", 2 * CHUNK));
    g_ptr_array_add(blocks, block_between_traps("odd", CHUNK + RM_PAGE));
    /* libFuzzer's clock interrupts connect(), which can't be called again. */
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, &before);
    tcp_pair(fds);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (size > 0 && send(fds[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
        size = 0; /* larger than a socket's buffer */
    shutdown(fds[1], SHUT_WR);
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fds[0], NULL);
    g_autoptr(GSocketConnection) stream = g_socket_connection_factory_create_connection(socket);
    g_autoptr(RmRx) rx = rm_tcp_destination_new();
    RmRxParams params = {
        .channels = 1, .blocks = blocks, .chunk_size = CHUNK, .timeout_ms = 20000, .gid_index = -1};
    g_assert_true(rx->ops->start(rx, &params, NULL) && rx->ops->adopt(rx, G_IO_STREAM(stream), 0, NULL));
    for (uint32_t round = 1; rx->ops->wait_round(rx, round, NULL, &error); round++)
        ;
    g_assert_nonnull(error); /* the input has an end */
    g_assert_cmpint(rm_error_reason(error), !=, RM_REASON_MEMORY_SHORT);
    rx->ops->stop(rx);
    g_assert_cmpuint(rx->ops->payload_bytes(rx), <=, size);
    close(fds[1]);
    return 0;
}
