/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A stranger: asks for one RDMA connection, and says what came of it. Links nothing of the project.
 *
 *     stranger ADDRESS PORT [PRIVATE-DATA-IN-HEX]
 *
 * Prints "rejected", "connected" or "failed: WHY"; the exit status is 0 for the first two.
 */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

#define PRIVATE_MAX 56 /* rdma_cm's, over InfiniBand and RoCE */

static int failed(const char *what)
{
    printf("failed: %s: %s\n", what, strerror(errno));
    return 1;
}

/* The number of bytes, or -1. */
static int parse_hex(const char *text, unsigned char *bytes)
{
    int n = 0;
    for (; *text != '\0' && n < PRIVATE_MAX; text += 2, n++)
        if (sscanf(text, "%2hhx", &bytes[n]) != 1)
            return -1;
    return *text == '\0' ? n : -1;
}

int main(int argc, char **argv)
{
    unsigned char data[PRIVATE_MAX];
    int length = argc > 3 ? parse_hex(argv[3], data) : 0;
    if (argc < 3 || argc > 4 || length < 0) {
        fprintf(stderr, "usage: stranger ADDRESS PORT [PRIVATE-DATA-IN-HEX]\n");
        return 2;
    }
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *address;
    struct ibv_qp_init_attr queues = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct rdma_conn_param parameters = {.private_data = data, .private_data_len = (uint8_t)length};
    struct rdma_cm_id *id;
    if (rdma_getaddrinfo(argv[1], argv[2], &hints, &address) != 0)
        return failed("address");
    if (rdma_create_ep(&id, address, NULL, &queues) != 0)
        return failed("route");
    if (rdma_connect(id, &parameters) == 0)
        printf("connected\n");
    else if (errno == ECONNREFUSED)
        printf("rejected\n");
    else
        return failed("connection");
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(address);
    return 0;
}
