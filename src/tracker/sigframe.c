/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Layout, from high to low addresses: the context's stack, its red zone (128 bytes below the stack pointer
 * that belong to the function), the XSAVE area (64-byte aligned, as XRSTOR wants it), the frame (8 below a
 * multiple of 16).
 *
 * The kernel takes vector state from a frame only if the size written there is not larger than what the
 * thread may use (the state for AMX tiles needs a permission): one that is too large is silently cut down to
 * x87 and SSE, and the upper halves of all vector registers would be lost. So the area is as long as the
 * components that every thread has, and longer only if the thread has live tiles.
 */
#include "tracker/sigframe.h"

#include "common/reason.h"

#include <cpuid.h>
#include <string.h>

#define RED_ZONE 128
#define XSTATE_ALIGN 64
#define LEGACY_AREA 512
#define XSAVE_HEADER 64
#define SW_RESERVED_AT 464 /* within the legacy area: struct _fpx_sw_bytes */
#define XSTATE_BV_AT 512
#define XFEATURE_TILEDATA 18

/* arch/x86/include/uapi/asm/sigcontext.h */
#define MAGIC1 0x46505853u
#define MAGIC2 0x46505845u

/* arch/x86/include/uapi/asm/ucontext.h */
#define UC_FP_XSTATE 1
#define UC_SIGCONTEXT_SS 2
#define UC_STRICT_RESTORE_SS 4

struct sw_bytes {
    uint32_t magic1;
    uint32_t extended_size; /* the area and the second magic word */
    uint64_t xfeatures;
    uint32_t xstate_size;
    uint32_t padding[7];
};
G_STATIC_ASSERT(sizeof(struct sw_bytes) == LEGACY_AREA - SW_RESERVED_AT);

struct frame {
    uint64_t return_address;
    uint64_t flags;
    uint64_t link;
    struct {
        uint64_t sp;
        uint32_t flags, padding;
        uint64_t size;
    } stack;
    struct {
        uint64_t r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags;
        uint16_t cs, gs, fs, ss;
        uint64_t err, trapno, oldmask, cr2, fpstate, reserved[8];
    } context;
    uint64_t sigmask;
    uint8_t siginfo[128];
};
G_STATIC_ASSERT(G_STRUCT_OFFSET(struct frame, context) == 48);
G_STATIC_ASSERT(G_STRUCT_OFFSET(struct frame, sigmask) == 48 + 256);

void rm_sigframe_clear(RmSigframe *frame)
{
    g_clear_pointer(&frame->bytes, g_free);
}

/* The components the operating system has switched on; 0 if this CPU has no XSAVE. */
static uint64_t enabled_features(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

/* Length of a standard-format XSAVE area with these components. */
static size_t area_size(uint64_t features)
{
    size_t size = LEGACY_AREA + XSAVE_HEADER;
    for (unsigned i = 2; i < 63; i++) {
        uint32_t length, offset, c, d;
        if (!(features >> i & 1))
            continue;
        __cpuid_count(0xd, i, length, offset, c, d);
        size = MAX(size, (size_t)offset + length);
    }
    return size;
}

static void fill_xstate(uint8_t *area, const uint8_t *xstate, size_t size, uint64_t features)
{
    struct sw_bytes sw = {
        .magic1 = MAGIC1,
        .extended_size = (uint32_t)(size + sizeof(uint32_t)),
        .xfeatures = features,
        .xstate_size = (uint32_t)size,
    };
    uint32_t magic2 = MAGIC2;
    memcpy(area, xstate, size);
    memcpy(area + SW_RESERVED_AT, &sw, sizeof sw);
    memcpy(area + size, &magic2, sizeof magic2);
}

static void fill_context(struct frame *frame, const struct user_regs_struct *r)
{
    frame->context.r8 = r->r8;
    frame->context.r9 = r->r9;
    frame->context.r10 = r->r10;
    frame->context.r11 = r->r11;
    frame->context.r12 = r->r12;
    frame->context.r13 = r->r13;
    frame->context.r14 = r->r14;
    frame->context.r15 = r->r15;
    frame->context.di = r->rdi;
    frame->context.si = r->rsi;
    frame->context.bp = r->rbp;
    frame->context.bx = r->rbx;
    frame->context.dx = r->rdx;
    frame->context.ax = r->rax;
    frame->context.cx = r->rcx;
    frame->context.sp = r->rsp;
    frame->context.ip = r->rip;
    frame->context.flags = r->eflags;
    frame->context.cs = (uint16_t)r->cs;
    frame->context.ss = (uint16_t)r->ss;
}

gboolean rm_sigframe_build(const struct user_regs_struct *context, uint64_t sigmask, const uint8_t *xstate,
                           size_t xstate_length, uint64_t restorer, RmSigframe *ret_frame, GError **error)
{
    uint64_t in_use = 0;
    if (xstate_length < LEGACY_AREA + XSAVE_HEADER)
        return rm_fail(error, RM_REASON_ATTACH,
                       "this CPU or kernel has no XSAVE state; the tracker needs it");
    memcpy(&in_use, xstate + XSTATE_BV_AT, sizeof in_use);
    uint64_t tiles = UINT64_C(1) << XFEATURE_TILEDATA;
    uint64_t features = (enabled_features() & ~tiles) | (in_use & tiles);
    size_t size = area_size(features);
    if (size > xstate_length || (in_use & ~features) != 0)
        return rm_fail(error, RM_REASON_ATTACH,
                       "the kernel describes %zu bytes of vector state (components %#" G_GINT64_MODIFIER
                       "x), the CPU %zu (%#" G_GINT64_MODIFIER "x); this tracker cannot save it safely",
                       xstate_length, in_use, size, features);

    uint64_t top = context->rsp - RED_ZONE;
    uint64_t area = (top - (size + sizeof(uint32_t))) & ~(uint64_t)(XSTATE_ALIGN - 1);
    uint64_t address = ((area - sizeof(struct frame)) & ~UINT64_C(15)) - 8;
    g_assert(address < area && area < top);
    size_t length = top - address;
    uint8_t *bytes = g_malloc0(length);
    struct frame frame = {
        .return_address = restorer,
        .flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS,
        /* We cannot know the thread's alternate signal stack. rt_sigreturn sets what the frame says and
         * ignores that being refused; a mode that does not exist is refused, and so the stack stays what it
         * is. */
        .stack = {.flags = 0x7f},
        .context.fpstate = area,
        .sigmask = sigmask,
    };
    fill_context(&frame, context);
    memcpy(bytes, &frame, sizeof frame);
    fill_xstate(bytes + (area - address), xstate, size, features);
    *ret_frame = (RmSigframe){.address = address, .bytes = bytes, .length = length};
    return TRUE;
}
