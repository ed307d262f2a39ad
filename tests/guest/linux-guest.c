/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The first and only program of a Linux test guest: loads the modules in /modules and then takes, checks and
 * gives back memory for ever, so that a balloon has something to do and a lost page is noticed.
 *
 * Its output is that of boot.S: A once, then a letter for each turn, and '!' for each turn in which a page
 * did not hold what was written to it. In a turn
 *  - part of what it keeps is checked, and part of that written anew;
 *  - a piece of random size is taken, filled, checked, and given back to the kernel.
 * KEEP= and PIECE= on the kernel's command line are MiB of each, for the kernel hands what it does not know
 * on.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE 4096u
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t state = 88172645463325252u; /* xorshift64 */

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void say(char letter)
{
    if (write(STDOUT_FILENO, &letter, 1) != 1)
        reboot(RB_POWER_OFF);
}

static int compare(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In the order of their names. */
static void load_modules(void)
{
    struct dirent **names;
    int n = scandir("/modules", &names, NULL, compare);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (names[i]->d_name[0] != '.' && syscall(SYS_finit_module, fd, "", 0) != 0)
            dprintf(STDOUT_FILENO, "\nno module %s: %m\n", path);
        close(fd);
    }
}

/* The first and the last word of a page, and one between: what is cheap under emulation, and sees a lost
 * page. */
static void fill(uint8_t *page, uint64_t value)
{
    uint64_t *words = (uint64_t *)page;
    words[0] = value;
    words[1 + value % (WORDS - 2)] = ~value;
    words[WORDS - 1] = value;
}

static int holds(const uint8_t *page, uint64_t value)
{
    const uint64_t *words = (const uint64_t *)page;
    return words[0] == value && words[1 + value % (WORDS - 2)] == ~value && words[WORDS - 1] == value;
}

static uint8_t *take(size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* Returns the number of wrong pages. */
static unsigned churn(size_t most)
{
    unsigned wrong = 0;
    size_t pages = 1 + random_number() % (most / PAGE);
    uint64_t value = random_number();
    uint8_t *piece = take(pages * PAGE);
    if (piece == NULL)
        return 0; /* the balloon is large */
    for (size_t i = 0; i < pages; i++) {
        for (unsigned at = 0; at < PAGE; at += 512)
            wrong += piece[i * PAGE + at] != 0; /* the kernel's word: a new page is zero */
        fill(piece + i * PAGE, value + i);
    }
    for (size_t i = 0; i < pages; i++)
        wrong += !holds(piece + i * PAGE, value + i);
    munmap(piece, pages * PAGE);
    return wrong;
}

typedef struct {
    uint8_t *pages;
    uint64_t *values;
    size_t count, next;
} Kept;

static unsigned check_part(Kept *kept, size_t part)
{
    unsigned wrong = 0;
    for (size_t i = 0; i < part; i++) {
        size_t at = kept->next++ % kept->count;
        wrong += !holds(kept->pages + at * PAGE, kept->values[at]);
        if (random_number() % 4 == 0) {
            kept->values[at] = random_number();
            fill(kept->pages + at * PAGE, kept->values[at]);
        }
    }
    return wrong;
}

static size_t parameter(const char *name, size_t mib)
{
    const char *text = getenv(name);
    return (text != NULL ? strtoul(text, NULL, 10) : mib) * MIB;
}

int main(void)
{
    Kept kept = {.count = parameter("KEEP", 32) / PAGE};
    size_t piece = parameter("PIECE", 16);
    char letter = 'A';
    load_modules();
    kept.pages = take(kept.count * PAGE);
    kept.values = calloc(kept.count, sizeof *kept.values);
    if (kept.pages == NULL || kept.values == NULL)
        reboot(RB_POWER_OFF);
    for (size_t i = 0; i < kept.count; i++)
        fill(kept.pages + i * PAGE, kept.values[i] = random_number());
    for (;;) {
        unsigned wrong = check_part(&kept, kept.count / 4) + churn(piece);
        if (wrong > 0)
            say('!');
        say(letter);
        letter = letter == 'Z' ? 'B' : (char)(letter + 1);
    }
}
