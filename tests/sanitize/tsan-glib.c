/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tells ThreadSanitizer what GLib's locks order. Linked into that build only.
 *
 * TSan sees what was compiled with it, and pthreads. GLib is not compiled with it, and its GMutex, GCond and
 * GRWLock are futexes: without help everything that they guard looks like a race. So these functions stand
 * before GLib's, call them, and say: who gets the lock has seen all that was done before it was given back.
 * GThread is pthreads underneath, and g_atomic_* and g_once_init_enter()'s quick way are inlined into our own
 * code, so that they need no help.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <gio/gio.h>
#include <limits.h>
#include <sanitizer/tsan_interface.h>
#include <stdarg.h>
#include <stdio.h>

/* `real` becomes GLib's own function; TSan is not to look at how. */
#define QUIET __attribute__((no_sanitize("thread")))
#define REAL(name)                                                                                           \
    static __typeof__(name) *real;                                                                           \
    if (__atomic_load_n(&real, __ATOMIC_RELAXED) == NULL)                                                    \
    __atomic_store_n(&real, (__typeof__(name) *)dlsym(RTLD_NEXT, #name), __ATOMIC_RELAXED)

/* Whoever drops the last reference has seen all that was done under the others. */
QUIET gboolean(g_atomic_ref_count_dec)(gatomicrefcount *count)
{
    REAL(g_atomic_ref_count_dec);
    __tsan_release(count);
    gboolean last = real(count);
    if (last)
        __tsan_acquire(count);
    return last;
}

QUIET void g_mutex_lock(GMutex *mutex)
{
    REAL(g_mutex_lock);
    real(mutex);
    __tsan_acquire(mutex);
}

QUIET gboolean g_mutex_trylock(GMutex *mutex)
{
    REAL(g_mutex_trylock);
    gboolean taken = real(mutex);
    if (taken)
        __tsan_acquire(mutex);
    return taken;
}

QUIET void g_mutex_unlock(GMutex *mutex)
{
    REAL(g_mutex_unlock);
    __tsan_release(mutex);
    real(mutex);
}

QUIET void g_cond_wait(GCond *cond, GMutex *mutex)
{
    REAL(g_cond_wait);
    __tsan_release(mutex);
    real(cond, mutex);
    __tsan_acquire(mutex);
}

QUIET gboolean g_cond_wait_until(GCond *cond, GMutex *mutex, gint64 end_time)
{
    REAL(g_cond_wait_until);
    __tsan_release(mutex);
    gboolean signalled = real(cond, mutex, end_time);
    __tsan_acquire(mutex);
    return signalled;
}

/* A reader gives back nothing that another reader must have seen, but the next writer must. */
QUIET void g_rw_lock_reader_lock(GRWLock *lock)
{
    REAL(g_rw_lock_reader_lock);
    real(lock);
    __tsan_acquire(lock);
}

QUIET void g_rw_lock_reader_unlock(GRWLock *lock)
{
    REAL(g_rw_lock_reader_unlock);
    __tsan_release(lock);
    real(lock);
}

QUIET void g_rw_lock_writer_lock(GRWLock *lock)
{
    REAL(g_rw_lock_writer_lock);
    real(lock);
    __tsan_acquire(lock);
}

QUIET void g_rw_lock_writer_unlock(GRWLock *lock)
{
    REAL(g_rw_lock_writer_unlock);
    __tsan_release(lock);
    real(lock);
}

/* The quick way of g_once_init_enter() is inlined: an atomic read of the same place, which sees this. */
QUIET void(g_once_init_leave)(volatile void *location, gsize result)
{
    REAL(g_once_init_leave);
    __tsan_release((void *)location);
    real(location, result);
}

QUIET gboolean(g_once_init_enter)(volatile void *location)
{
    REAL(g_once_init_enter);
    gboolean first = real(location);
    __tsan_acquire((void *)location);
    return first;
}

/* What is handed over through a queue. */
QUIET void g_async_queue_push(GAsyncQueue *queue, gpointer data)
{
    REAL(g_async_queue_push);
    __tsan_release(queue);
    real(queue, data);
}

QUIET gpointer g_async_queue_pop(GAsyncQueue *queue)
{
    REAL(g_async_queue_pop);
    gpointer data = real(queue);
    __tsan_acquire(queue);
    return data;
}

typedef struct {
    GFunc function;
    gpointer data;
} Pool; /* never freed: the pool's threads may outlive it */

QUIET static void pool_run(gpointer item, gpointer data)
{
    Pool *pool = data;
    __tsan_acquire(pool);
    pool->function(item, pool->data);
}

QUIET GThreadPool *g_thread_pool_new(GFunc function, gpointer data, gint most, gboolean exclusive,
                                     GError **error)
{
    REAL(g_thread_pool_new);
    Pool *pool = g_new(Pool, 1);
    *pool = (Pool){function, data};
    return real(pool_run, pool, most, exclusive, error);
}

QUIET gboolean g_thread_pool_push(GThreadPool *threads, gpointer item, GError **error)
{
    REAL(g_thread_pool_push);
    __tsan_release(threads->user_data);
    return real(threads, item, error);
}

/* Not GLib's, but as unseen: to TSan, a descriptor from openat() is still that of whoever had its number
 * before. open() it sees. */
int openat(int folder, const char *path, int flags, ...)
{
    char name[PATH_MAX + 32];
    mode_t mode = 0;
    if (__OPEN_NEEDS_MODE(flags)) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    if (folder == AT_FDCWD || path[0] == '/')
        return open(path, flags, mode);
    snprintf(name, sizeof name, "/proc/self/fd/%d/%s", folder, path);
    return open(name, flags, mode);
}
