/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * attach-victim [signals]: a program with a thread for each way of being interrupted, which checks itself.
 * What it must never see: a register changed, a sleep that ends early, EINTR although no handler ran, a
 * signal lost or out of order, another signal mask or alternate stack, a wake-up lost.
 *
 * Commands on stdin, one a line; each is answered by a line:
 *   report   "bad=N eintr=N FIRST-PROBLEM|NAME:TID:ROUNDS ..."
 *   quiet    stops sending signals, waits, and reports
 * With `signals`, a further thread queues numbered real-time signals to all others all the time.
 *
 * The main thread is the one that sleeps in read(2), for the next command.
 */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 15
#define SIGNAL SIGRTMIN
#define WAKE (SIGRTMIN + 1)
#define ALT_STACK (64 * 1024)

struct worker {
    const char *name;
    void (*round)(struct worker *worker);
    pthread_t thread;
    pid_t tid;
    atomic_ulong rounds;
    atomic_ulong handled; /* handlers run in this thread */
    atomic_ulong received;
    unsigned long sent; /* the sender's */
    sigset_t mask;
    stack_t altstack;
    struct timespec start;
    unsigned long handled_before;
    bool eintr; /* signal(7): may fail with EINTR for no more than a stop; counted, and judged by the test */
    bool busy;  /* does not sleep by itself */
    int fd;
    timer_t timer;
    sem_t ready;
};

extern int victim_vector_spin(const void *in, void *out, uint64_t n, int avx512);
extern int victim_rseq_spin(struct rseq *rseq, uint64_t n);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned n_bad;
static char first_bad[256];
static __thread struct worker *self;
static atomic_bool stop_sending;
static atomic_uint n_interrupted;
static int semaphores;

static void __attribute__((format(printf, 2, 3))) bad(const struct worker *worker, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    if (n_bad++ == 0)
        snprintf(first_bad, sizeof first_bad, "%s: %s", worker->name, text);
    pthread_mutex_unlock(&lock);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    struct worker *worker = self;
    atomic_fetch_add(&worker->handled, 1);
    if (number == SIGNAL && (unsigned long)info->si_value.sival_int != atomic_fetch_add(&worker->received, 1))
        bad(worker, "signal %d instead of %lu", info->si_value.sival_int, atomic_load(&worker->received) - 1);
}

/* ---- what each wait has in common ---- */

static void begin(struct worker *worker)
{
    worker->handled_before = atomic_load(&worker->handled);
    clock_gettime(CLOCK_MONOTONIC, &worker->start);
}

static long elapsed_us(const struct worker *worker)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - worker->start.tv_sec) * 1000000 + (now.tv_nsec - worker->start.tv_nsec) / 1000;
}

/* `result`: 0 or an errno value; `expected` is what it must be after the full time. */
static void end(struct worker *worker, int result, int expected)
{
    long us = elapsed_us(worker);
    if (result == EINTR) {
        if (atomic_load(&worker->handled) == worker->handled_before && worker->eintr)
            atomic_fetch_add(&n_interrupted, 1);
        else if (atomic_load(&worker->handled) == worker->handled_before)
            bad(worker, "EINTR without a signal after %ld us", us);
    } else if (result != expected) {
        bad(worker, "result %d (%s)", result, strerror(result));
    } else if (us < WAIT_MS * 1000) {
        bad(worker, "early: %ld us", us);
    }
}

static void check_thread(struct worker *worker)
{
    sigset_t mask;
    stack_t altstack;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i <= 64; i++)
        if (sigismember(&mask, i) != sigismember(&worker->mask, i))
            bad(worker, "signal %d is %s", i, sigismember(&mask, i) ? "blocked" : "not blocked");
    sigaltstack(NULL, &altstack);
    if (altstack.ss_sp != worker->altstack.ss_sp || altstack.ss_size != worker->altstack.ss_size ||
        altstack.ss_flags != 0)
        bad(worker, "alternate stack changed (flags %#x)", (unsigned)altstack.ss_flags);
}

static int outcome(long result)
{
    return result < 0 ? errno : 0;
}

static const struct timespec wait_time = {0, WAIT_MS * 1000000};

static struct timespec deadline(const struct worker *worker)
{
    struct timespec t = worker->start;
    t.tv_nsec += wait_time.tv_nsec;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* A mask that differs from the thread's own, for calls that set one while they sleep. */
static const sigset_t *other_mask(void)
{
    static __thread sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    return &mask;
}

/* ---- the ways to wait ---- */

static void do_nanosleep(struct worker *worker)
{
    end(worker, outcome(nanosleep(&wait_time, NULL)), 0);
}

static void do_sleep_until(struct worker *worker)
{
    struct timespec t = deadline(worker);
    end(worker, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL), 0);
}

/* As the C library makes it: the number right before the instruction. Returns 0 or a negative errno. */
static long futex_wait(int *word, int op, const struct timespec *timeout)
{
    register const struct timespec *r10 __asm__("r10") = timeout;
    register uint64_t r8 __asm__("r8") = 0;
    register uint64_t r9 __asm__("r9") = FUTEX_BITSET_MATCH_ANY;
    long result;
    __asm__ volatile("mov %[nr], %%eax\n\tsyscall"
                     : "=a"(result)
                     : [nr] "i"(SYS_futex), "D"(word), "S"(op), "d"(0), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void do_futex(struct worker *worker)
{
    static int word;
    end(worker, (int)-futex_wait(&word, FUTEX_WAIT_PRIVATE, &wait_time), ETIMEDOUT);
}

static void do_futex_until(struct worker *worker)
{
    static int word;
    struct timespec t = deadline(worker);
    end(worker, (int)-futex_wait(&word, FUTEX_WAIT_BITSET_PRIVATE, &t), ETIMEDOUT);
}

static void do_poll(struct worker *worker)
{
    struct pollfd fds = {worker->fd, POLLIN, 0};
    end(worker, outcome(poll(&fds, 1, WAIT_MS)), 0);
}

static void do_ppoll(struct worker *worker)
{
    struct pollfd fds = {worker->fd, POLLIN, 0};
    end(worker, outcome(ppoll(&fds, 1, &wait_time, other_mask())), 0);
}

/* The kernel cannot write the time left to this memory, and so returns EINTR rather than starting again by
 * itself. */
static void do_ppoll_constant(struct worker *worker)
{
    struct pollfd fds = {worker->fd, POLLIN, 0};
    end(worker, outcome(syscall(SYS_ppoll, &fds, 1, &wait_time, other_mask(), 8)), 0);
}

static void do_select(struct worker *worker)
{
    struct timeval t = {0, WAIT_MS * 1000};
    end(worker, outcome(select(0, NULL, NULL, NULL, &t)), 0);
}

static void do_epoll(struct worker *worker)
{
    struct epoll_event event;
    end(worker, outcome(epoll_wait(worker->fd, &event, 1, WAIT_MS)), 0);
}

static void do_epoll_mask(struct worker *worker)
{
    struct epoll_event event;
    end(worker, outcome(epoll_pwait(worker->fd, &event, 1, WAIT_MS, other_mask())), 0);
}

static void do_sigtimedwait(struct worker *worker)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    end(worker, outcome(sigtimedwait(&set, NULL, &wait_time)), EAGAIN);
}

static void do_semtimedop(struct worker *worker)
{
    struct sembuf op = {0, -1, 0};
    end(worker, outcome(semtimedop(semaphores, &op, 1, &wait_time)), EAGAIN);
}

static void do_recv(struct worker *worker)
{
    char byte;
    end(worker, outcome(recv(worker->fd, &byte, 1, 0)), EAGAIN);
}

/* Woken by a signal that only the mask of sigsuspend lets in: a wake-up that is lost stops this thread for
 * good. */
static void do_sigsuspend(struct worker *worker)
{
    struct itimerspec once = {.it_value = wait_time};
    sigset_t set = worker->mask;
    sigdelset(&set, WAKE);
    timer_settime(worker->timer, 0, &once, NULL);
    end(worker, outcome(sigsuspend(&set)), EINTR);
}

static void do_syscalls(struct worker *worker)
{
    for (int i = 0; i < 2000; i++)
        if (syscall(SYS_gettid) != worker->tid || syscall(SYS_close, -1) != -1 || errno != EBADF)
            bad(worker, "wrong result of a system call");
}

static void do_vectors(struct worker *worker)
{
    static uint8_t in[2048];
    static bool filled;
    uint8_t out[2048 + 16] = {0};
    bool avx512 = __builtin_cpu_supports("avx512bw");
    for (unsigned i = 0; !filled && i < sizeof in; i++)
        in[i] = (uint8_t)(i * 37 + i / 64 + 1);
    filled = true;
    int failed = victim_vector_spin(in, out, 1000000, avx512);
    if (failed != 0)
        bad(worker, "register check %d", failed);
    for (unsigned i = 0; i < (avx512 ? 32 : 16); i++)
        if (memcmp(out + 64 * i, in + 64 * i, avx512 ? 64 : 32) != 0)
            bad(worker, "vector register %u", i);
    if (avx512 && (memcmp(out + 2048, in, 8) != 0 || memcmp(out + 2056, in + 64, 8) != 0))
        bad(worker, "mask register");
}

static void do_rseq(struct worker *worker)
{
    struct rseq *rseq = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    if (__rseq_size == 0)
        do_nanosleep(worker); /* the C library registers none here */
    else if (victim_rseq_spin(rseq, 500000) == 2)
        bad(worker, "restartable sequence went on after an interruption");
}

static struct worker workers[] = {
    {"nanosleep", do_nanosleep},
    {"sleep-until", do_sleep_until},
    {"futex", do_futex},
    {"futex-until", do_futex_until},
    {"poll", do_poll},
    {"ppoll", do_ppoll},
    {"ppoll-constant", do_ppoll_constant, .eintr = true},
    {"select", do_select},
    {"epoll", do_epoll, .eintr = true},
    {"epoll-mask", do_epoll_mask, .eintr = true},
    {"sigtimedwait", do_sigtimedwait, .eintr = true},
    {"semtimedop", do_semtimedop, .eintr = true},
    {"recv", do_recv, .eintr = true},
    {"sigsuspend", do_sigsuspend},
    {"syscalls", do_syscalls, .busy = true},
    {"vectors", do_vectors, .busy = true},
    {"rseq", do_rseq, .busy = true},
};
#define N_WORKERS (sizeof workers / sizeof workers[0])

/* ---- set-up ---- */

static void prepare(struct worker *worker)
{
    /* Socket time-outs count timer ticks, and the kernel's count of them lags when the host takes the CPU away: by itself
     * such a wait may end some milliseconds early. Twice the time leaves room for that, and none for a lost restart. */
    struct timeval timeout = {0, 2 * WAIT_MS * 1000};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = WAKE};
    int pair[2];
    self = worker;
    worker->tid = (pid_t)syscall(SYS_gettid);
    sigemptyset(&worker->mask);
    sigaddset(&worker->mask, SIGUSR2);
    sigaddset(&worker->mask, WAKE);
    pthread_sigmask(SIG_SETMASK, &worker->mask, NULL);
    worker->altstack = (stack_t){.ss_sp = malloc(ALT_STACK), .ss_size = ALT_STACK};
    sigaltstack(&worker->altstack, NULL);
    event._sigev_un._tid = worker->tid;
    timer_create(CLOCK_MONOTONIC, &event, &worker->timer);
    if (worker->round == do_epoll || worker->round == do_epoll_mask) {
        worker->fd = epoll_create1(EPOLL_CLOEXEC);
    } else {
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        worker->fd = pair[0];
    }
}

static void *work(void *data)
{
    struct worker *worker = data;
    prepare(worker);
    sem_post(&worker->ready);
    for (;;) {
        begin(worker);
        worker->round(worker);
        check_thread(worker);
        atomic_fetch_add(&worker->rounds, 1);
        if (worker->busy)
            usleep(1000); /* leaves the processors to others, too */
    }
    return NULL;
}

static void *send_signals(void *data)
{
    unsigned seed = 1;
    while (!atomic_load(&stop_sending)) {
        struct timespec pause = {0, 200000 + rand_r(&seed) % 3000000};
        nanosleep(&pause, NULL);
        struct worker *worker = &workers[(unsigned)rand_r(&seed) % N_WORKERS];
        union sigval value = {.sival_int = (int)worker->sent};
        if (pthread_sigqueue(worker->thread, SIGNAL, value) == 0)
            worker->sent++;
    }
    return NULL;
}

static void report(void)
{
    pthread_mutex_lock(&lock);
    printf("bad=%u eintr=%u %s|main:%d:0", n_bad, atomic_load(&n_interrupted), first_bad, (int)getpid());
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < N_WORKERS; i++)
        printf(" %s:%d:%lu", workers[i].name, (int)workers[i].tid, atomic_load(&workers[i].rounds));
    putchar('\n');
    fflush(stdout);
}

/* Every signal sent must have arrived. */
static void quieten(pthread_t sender, bool sending)
{
    unsigned long total = 0;
    if (sending) {
        atomic_store(&stop_sending, true);
        pthread_join(sender, NULL);
    }
    usleep(300000);
    for (unsigned i = 0; i < N_WORKERS; i++) {
        total += workers[i].sent;
        if (atomic_load(&workers[i].received) != workers[i].sent)
            bad(&workers[i], "%lu signals sent, %lu received", workers[i].sent,
                atomic_load(&workers[i].received));
    }
    if (sending && total == 0)
        bad(&workers[0], "no signal was sent");
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    bool sending = argc > 1 && strcmp(argv[1], "signals") == 0;
    pthread_t sender = 0;
    char line[64];
    size_t used = 0;
    ssize_t n;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigaction(SIGNAL, &action, NULL);
    sigaction(WAKE, &action, NULL);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    for (unsigned i = 0; i < N_WORKERS; i++) {
        sem_init(&workers[i].ready, 0, 0);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return 1;
        sem_wait(&workers[i].ready);
    }
    if (sending)
        pthread_create(&sender, NULL, send_signals, NULL);
    report();
    while ((n = read(STDIN_FILENO, line + used, 1)) == 1) {
        if (line[used] != '\n') {
            used = used < sizeof line - 2 ? used + 1 : 0;
            continue;
        }
        line[used] = '\0';
        used = 0;
        if (strcmp(line, "quiet") == 0) {
            quieten(sender, sending);
            sending = false;
        }
        report();
    }
    semctl(semaphores, 0, IPC_RMID);
    if (n < 0)
        perror("read"); /* EINTR: seen by the test as the end of this process */
    return n < 0;
}
