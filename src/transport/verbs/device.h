/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What an RDMA device can do, and which one is meant.
 *
 * rdma_cm chooses device, port and GID by IP address. So a choice by name (--rdma-device, --gid-index) is
 * turned into the IP address behind the GID, which is then bound to; whatever was chosen, by whom ever, is
 * checked against the wish once it is known.
 */
#pragma once

#include <gio/gio.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

/* Probed once a connection; all obeyed. */
typedef struct {
    uint32_t max_qp_wr;   /* work requests in one queue */
    uint32_t max_cqe;     /* completions in one completion queue */
    uint32_t max_mr;      /* memory regions, of all processes together */
    uint64_t max_mr_size; /* bytes in one region, a multiple of RM_PAGE */
    uint64_t max_msg_sz;  /* bytes in one write, a multiple of RM_PAGE */
} RmVerbsLimits;

gboolean rm_verbs_limits_probe(struct ibv_context *context, uint8_t port, RmVerbsLimits *ret_limits,
                               GError **error);

/* Whether there is a device with an active port; if not, why (caller frees). */
gboolean rm_verbs_device_present(char **ret_why);

/* A device as the operator named it. */
typedef struct {
    char *name;    /* NULL: any */
    unsigned port; /* 0: any */
    int gid_index; /* -1: any */
} RmVerbsWish;

/* Parses "DEV[:PORT]", or NULL. Reason usage. */
gboolean rm_verbs_wish_parse(RmVerbsWish *wish, const char *device, int gid_index, GError **error);
void rm_verbs_wish_clear(RmVerbsWish *wish);

/* The local address that leads rdma_cm to what is wished for; *ret_address is NULL if the wish is for
 * nothing, or the device's GIDs are no IP addresses (InfiniBand: the address of its IPoIB interface leads
 * there). Reason transport-unavailable if there is no such device, port or GID. */
gboolean rm_verbs_wish_address(const RmVerbsWish *wish, GSocketAddress **ret_address, GError **error);

/* Whether what rdma_cm took is what is wished for; the GID is looked at once the queue pair is connected. */
gboolean rm_verbs_wish_check(const RmVerbsWish *wish, struct rdma_cm_id *id, GError **error);

/* The way a connected queue pair goes: "mlx5_0 port 1, RoCE v2, GID index 3 (::ffff:10.9.0.1), path MTU 4096
 * bytes". */
typedef struct {
    char *text;
    unsigned mtu;      /* bytes */
    unsigned overhead; /* bytes around the payload of each packet */
    int gid_index;     /* -1: none (InfiniBand without a GRH) */
} RmVerbsPath;

void rm_verbs_path_query(struct rdma_cm_id *id, RmVerbsPath *ret_path);
void rm_verbs_path_clear(RmVerbsPath *path);
