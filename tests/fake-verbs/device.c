/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake device, its limits, domains and regions. */
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

FakeFabric fake_fabric;
FakeVerbsKnobs fake_verbs_knobs;

/* ---- what tests ask ---- */

void fake_verbs_lock(void)
{
    g_mutex_lock(&fake_fabric.lock);
}

void fake_verbs_unlock(void)
{
    g_cond_broadcast(&fake_fabric.changed);
    g_mutex_unlock(&fake_fabric.lock);
}

void fake_verbs_reset(void)
{
    fake_fabric_start();
    fake_verbs_lock();
    fake_verbs_knobs = (FakeVerbsKnobs){.max_qp_wr = 1024,
                                        .max_cqe = 4096,
                                        .max_mr = 65536,
                                        .max_mr_size = UINT64_MAX,
                                        .max_msg_sz = 1u << 30};
    FakeVerbsCounts *counts = &fake_fabric.counts;
    counts->mrs_most = counts->mrs;
    counts->in_flight_most = counts->chunk_most = 0;
    counts->local_most = counts->local_bytes;
    counts->remote_most = counts->remote_bytes;
    counts->writes = counts->sends = counts->longest = counts->longest_mr = counts->unsignalled = 0;
    g_array_set_size(fake_fabric.registered, 0);
    g_clear_pointer(&fake_fabric.violation, g_free);
    fake_verbs_unlock();
}

FakeVerbsCounts fake_verbs_counts(void)
{
    fake_verbs_lock();
    FakeVerbsCounts counts = fake_fabric.counts;
    fake_verbs_unlock();
    return counts;
}

const char *fake_verbs_violation(void)
{
    fake_verbs_lock();
    const char *violation = fake_fabric.violation;
    fake_verbs_unlock();
    return violation;
}

gboolean fake_verbs_was_registered(const void *address, uint64_t length, int access)
{
    const uint8_t *from = address, *to = from + length;
    gboolean found = FALSE;
    fake_verbs_lock();
    for (guint i = 0; i < fake_fabric.registered->len && !found; i++) {
        const FakeMr *mr = &g_array_index(fake_fabric.registered, FakeMr, i);
        const uint8_t *start = mr->mr.addr;
        found = start < to && from < start + mr->mr.length && (access == 0 || (mr->access & access) != 0);
    }
    fake_verbs_unlock();
    return found;
}

void fake_violation(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (fake_fabric.violation == NULL)
        fake_fabric.violation = g_strdup_vprintf(format, args);
    va_end(args);
}

/* ---- the device ---- */

struct ibv_device **ibv_get_device_list(int *ret_n)
{
    fake_fabric_start();
    *ret_n = fake_verbs_knobs.no_device ? 0 : 1;
    struct ibv_device **list = g_new0(struct ibv_device *, 2);
    list[0] = *ret_n > 0 ? &fake_fabric.device : NULL;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    g_free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    fake_verbs_lock();
    fake_fabric.counts.contexts++;
    fake_verbs_unlock();
    return &fake_fabric.context;
}

int ibv_close_device(struct ibv_context *context)
{
    fake_verbs_lock();
    fake_fabric.counts.contexts--;
    fake_verbs_unlock();
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    const FakeVerbsKnobs *knobs = &fake_verbs_knobs;
    *attributes = (struct ibv_device_attr){.max_mr_size = knobs->max_mr_size,
                                           .max_qp_wr = knobs->max_qp_wr,
                                           .max_cqe = knobs->max_cqe,
                                           .max_mr = knobs->max_mr,
                                           .max_sge = 1,
                                           .phys_port_cnt = 1};
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)compat;
    if (port != 1)
        return EINVAL;
    attributes->state = IBV_PORT_ACTIVE;
    attributes->max_msg_sz = fake_verbs_knobs.max_msg_sz;
    attributes->gid_tbl_len = 3;
    return 0;
}

/* 0: fe80::1 over RoCE v1, 1: ::ffff:10.0.0.1 over RoCE v2, 2: empty. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size)
{
    static const uint8_t gids[2][16] = {{0xfe, 0x80, [15] = 1}, {[10] = 0xff, 0xff, 10, 0, 0, 1}};
    if (index >= G_N_ELEMENTS(gids))
        return ENODATA;
    *entry = (struct ibv_gid_entry){.gid_index = index, .port_num = port, .ndev_ifindex = 2};
    entry->gid_type = index == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    memcpy(entry->gid.raw, gids[index], sizeof entry->gid.raw);
    return 0;
}

/* ---- domains and regions ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = g_new0(struct ibv_pd, 1);
    pd->context = context;
    fake_verbs_lock();
    fake_fabric.counts.pds++;
    fake_verbs_unlock();
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    GHashTableIter iter;
    gpointer value;
    gboolean used = FALSE;
    fake_verbs_lock();
    g_hash_table_iter_init(&iter, fake_fabric.mrs);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        used = used || ((FakeMr *)value)->mr.pd == pd;
    for (guint i = 0; i < fake_fabric.qps->len; i++)
        used = used || ((FakeQp *)fake_fabric.qps->pdata[i])->qp.pd == pd;
    if (used && !fake_verbs_knobs.keep_queue_pairs)
        fake_violation("a domain was freed before its regions or its queue pair");
    fake_fabric.counts.pds -= !used;
    fake_verbs_unlock();
    if (used)
        return EBUSY;
    g_free(pd);
    return 0;
}

/* Under the lock. An errno, or 0. */
static int register_problem(uint64_t length, int access)
{
    FakeVerbsKnobs *knobs = &fake_verbs_knobs;
    if (knobs->register_fail_in > 0 && --knobs->register_fail_in == 0)
        return knobs->register_errno;
    if (length == 0 || length > knobs->max_mr_size)
        return EINVAL;
    if ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    return fake_fabric.counts.mrs >= (unsigned)knobs->max_mr ? ENOMEM : 0;
}

static void count_bytes(const FakeMr *mr, int64_t sign)
{
    FakeVerbsCounts *counts = &fake_fabric.counts;
    if (mr->access == 0)
        counts->local_bytes += (uint64_t)(sign * (int64_t)mr->mr.length);
    else if (mr->access & IBV_ACCESS_REMOTE_WRITE)
        counts->remote_bytes += (uint64_t)(sign * (int64_t)mr->mr.length);
    counts->local_most = MAX(counts->local_most, counts->local_bytes);
    counts->remote_most = MAX(counts->remote_most, counts->remote_bytes);
}

static struct ibv_mr *register_region(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                      int access)
{
    if (fake_verbs_knobs.register_delay_us > 0)
        g_usleep(fake_verbs_knobs.register_delay_us);
    uint8_t *page = (uint8_t *)((uintptr_t)address & ~(uintptr_t)4095);
    gsize bytes = ((uint8_t *)address + length - page + 4095) & ~(gsize)4095;
    fake_verbs_lock();
    int code = register_problem(length, access);
    if (code == 0 &&
        madvise(page, bytes, access & IBV_ACCESS_LOCAL_WRITE ? 23 : 22) != 0) /* MADV_POPULATE_WRITE, _READ */
        code = errno;
    FakeMr *mr = NULL;
    if (code == 0) {
        FakeVerbsCounts *counts = &fake_fabric.counts;
        uint32_t key;
        do {
            key = g_rand_int(fake_fabric.rand);
        } while (g_hash_table_contains(fake_fabric.mrs, GUINT_TO_POINTER(key)));
        mr = g_new0(FakeMr, 1);
        mr->mr = (struct ibv_mr){
            .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = key, .rkey = key};
        mr->iova = iova;
        mr->access = access;
        g_hash_table_insert(fake_fabric.mrs, GUINT_TO_POINTER(key), mr);
        g_array_append_val(fake_fabric.registered, *mr);
        counts->mrs++;
        counts->mrs_most = MAX(counts->mrs_most, counts->mrs);
        counts->longest_mr = MAX(counts->longest_mr, length);
        count_bytes(mr, 1);
    }
    fake_verbs_unlock();
    errno = code;
    return mr != NULL ? &mr->mr : NULL;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return register_region(pd, address, length, (uintptr_t)address, access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
{
    return register_region(pd, address, length, iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access)
{
    return register_region(pd, address, length, iova, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *region)
{
    FakeMr *mr = (FakeMr *)region;
    fake_verbs_lock();
    for (guint i = 0; i < fake_fabric.qps->len; i++) {
        const FakeQp *qp = fake_fabric.qps->pdata[i];
        for (GList *item = qp->sends.head; item != NULL && !qp->broken; item = item->next) {
            const FakeSend *send = item->data;
            if (!send->done && send->taken == NULL && send->piece.lkey == mr->mr.lkey)
                fake_violation("a region was freed under a request that reads it");
            if (!send->done && qp->peer != NULL && !qp->peer->broken &&
                send->request.opcode == IBV_WR_RDMA_WRITE && send->request.wr.rdma.rkey == mr->mr.rkey)
                fake_violation("a region was freed under a write into it");
        }
    }
    g_hash_table_remove(fake_fabric.mrs, GUINT_TO_POINTER(mr->mr.lkey));
    fake_fabric.counts.mrs--;
    count_bytes(mr, -1);
    fake_verbs_unlock();
    g_free(mr);
    return 0;
}

FakeMr *fake_mr_find(struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t length, int access)
{
    FakeMr *mr = g_hash_table_lookup(fake_fabric.mrs, GUINT_TO_POINTER(key));
    gboolean good = mr != NULL && mr->mr.pd == pd && (mr->access & access) == access && at >= mr->iova &&
                    length <= mr->mr.length && at - mr->iova <= mr->mr.length - length;
    return good ? mr : NULL;
}

/* ---- names ---- */

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return "success";
    case IBV_WC_WR_FLUSH_ERR:
        return "Work Request Flushed Error";
    case IBV_WC_RETRY_EXC_ERR:
        return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "RNR retry counter exceeded";
    case IBV_WC_REM_ACCESS_ERR:
        return "remote access error";
    case IBV_WC_LOC_PROT_ERR:
        return "local protection error";
    default:
        return "some error";
    }
}
