/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The walk: breadth first through every state that the composed system can reach, so that the first
 * counter-example found is a shortest one.
 *
 * Safety is checked in every state. Progress afterwards, on the graph of what happens without further faults:
 * it has no cycle but for an operator's repeated wish (so everything comes to rest), whoever rests waits for
 * nothing, and from every state a good one can be reached, if need be by `resolve` with the peer reachable.
 */
#include "system.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define NONE UINT32_MAX
#define BY_ITSELF (1u << 31) /* of an edge: not the operator's */

typedef struct {
    Model *model;
    GArray *states;  /* System */
    GArray *parents; /* uint32_t */
    GArray *first;   /* uint32_t: where a state's edges begin */
    GArray *edges;   /* uint32_t: to, and whether by itself; faults are left out */
    uint32_t *table; /* open addressing; index of a state, or NONE */
    size_t slots;
    uint32_t current;
    size_t edge_count;
    gboolean moved; /* the current state has an edge by itself */
    const char *problem;
    uint32_t at;
} Walk;

static System *state_at(Walk *walk, uint32_t index)
{
    return &g_array_index(walk->states, System, index);
}

static void insert(Walk *walk, uint32_t index)
{
    size_t slot = XXH3_64bits(state_at(walk, index), sizeof(System)) & (walk->slots - 1);
    while (walk->table[slot] != NONE)
        slot = (slot + 1) & (walk->slots - 1);
    walk->table[slot] = index;
}

static void grow(Walk *walk)
{
    g_free(walk->table);
    walk->slots *= 4;
    walk->table = g_new(uint32_t, walk->slots);
    memset(walk->table, 0xff, walk->slots * sizeof *walk->table);
    for (uint32_t i = 0; i < walk->states->len; i++)
        insert(walk, i);
}

static uint32_t add(Walk *walk, const System *system)
{
    size_t slot = XXH3_64bits(system, sizeof *system) & (walk->slots - 1);
    for (; walk->table[slot] != NONE; slot = (slot + 1) & (walk->slots - 1)) {
        if (memcmp(state_at(walk, walk->table[slot]), system, sizeof *system) == 0)
            return walk->table[slot];
    }
    uint32_t index = walk->states->len;
    walk->table[slot] = index;
    g_array_append_vals(walk->states, system, 1);
    g_array_append_vals(walk->parents, &walk->current, 1);
    if (walk->problem == NULL && (walk->problem = check_always(system)) != NULL)
        walk->at = index;
    if (walk->states->len * 2 > walk->slots)
        grow(walk);
    return index;
}

static void on_edge(Model *model, const System *next, Kind kind, G_GNUC_UNUSED const char *label)
{
    Walk *walk = model->user;
    uint32_t to = add(walk, next);
    walk->edge_count++;
    if (kind == KIND_FAULT || to == walk->current)
        return;
    uint32_t edge = to | (kind == KIND_STEP ? BY_ITSELF : 0);
    g_array_append_val(walk->edges, edge);
    walk->moved |= kind == KIND_STEP;
}

/* ---- counter-examples ---- */

typedef struct {
    const System *wanted;
    char label[160];
} Search;

static void on_search(Model *model, const System *next, G_GNUC_UNUSED Kind kind, const char *label)
{
    Search *search = model->user;
    if (memcmp(next, search->wanted, sizeof *next) == 0)
        g_strlcpy(search->label, label, sizeof search->label);
}

static void print_trace(Walk *walk)
{
    g_autoptr(GArray) path = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    for (uint32_t i = walk->at; i != NONE; i = g_array_index(walk->parents, uint32_t, i))
        g_array_append_val(path, i);
    Model searching = *walk->model;
    Search search;
    searching.emit = on_search;
    searching.labels = TRUE;
    searching.user = &search;
    printf("counter-example: %s\n", walk->problem);
    for (guint i = path->len - 1; i > 0; i--) {
        uint32_t from = g_array_index(path, uint32_t, i), to = g_array_index(path, uint32_t, i - 1);
        search = (Search){state_at(walk, to), ""};
        expand(&searching, state_at(walk, from));
        printf("  %s\n      ", search.label);
        system_print(state_at(walk, to));
    }
}

/* ---- progress ---- */

static void report(Walk *walk, const char *problem, uint32_t at)
{
    if (walk->problem != NULL)
        return;
    walk->problem = problem;
    walk->at = at;
}

static uint32_t edge_begin(Walk *walk, uint32_t state)
{
    return g_array_index(walk->first, uint32_t, state);
}

static uint32_t edge_end(Walk *walk, uint32_t state)
{
    return state + 1 < walk->first->len ? edge_begin(walk, state + 1) : walk->edges->len;
}

/* Kahn's: what is left over once all states without a predecessor have been taken away is on a cycle. */
static void check_cycles(Walk *walk)
{
    uint32_t count = walk->states->len, *degree = g_new0(uint32_t, count), *queue = g_new(uint32_t, count);
    uint32_t head = 0, tail = 0;
    for (uint32_t i = 0; i < walk->edges->len; i++) {
        uint32_t edge = g_array_index(walk->edges, uint32_t, i);
        if (edge & BY_ITSELF)
            degree[edge & ~BY_ITSELF]++;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (degree[i] == 0)
            queue[tail++] = i;
    }
    while (head < tail) {
        uint32_t state = queue[head++];
        for (uint32_t i = edge_begin(walk, state); i < edge_end(walk, state); i++) {
            uint32_t edge = g_array_index(walk->edges, uint32_t, i);
            if ((edge & BY_ITSELF) && --degree[edge & ~BY_ITSELF] == 0)
                queue[tail++] = edge & ~BY_ITSELF;
        }
    }
    for (uint32_t i = 0; i < count && tail < count; i++) {
        if (degree[i] > 0)
            report(walk, "it goes round in circles", i);
    }
    g_free(degree);
    g_free(queue);
}

/* Backwards from the good states. */
static void check_reaches_good(Walk *walk)
{
    uint32_t count = walk->states->len, *start = g_new0(uint32_t, count + 1);
    uint32_t *sources = g_new(uint32_t, walk->edges->len + 1), *queue = g_new(uint32_t, count);
    uint8_t *reaches = g_new0(uint8_t, count);
    uint32_t head = 0, tail = 0;
    for (uint32_t i = 0; i < walk->edges->len; i++)
        start[g_array_index(walk->edges, uint32_t, i) & ~BY_ITSELF]++;
    for (uint32_t i = 1; i <= count; i++)
        start[i] += start[i - 1];
    for (uint32_t state = 0; state < count; state++) {
        for (uint32_t i = edge_begin(walk, state); i < edge_end(walk, state); i++)
            sources[--start[g_array_index(walk->edges, uint32_t, i) & ~BY_ITSELF]] = state;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_good(state_at(walk, i))) {
            reaches[i] = 1;
            queue[tail++] = i;
        }
    }
    while (head < tail) {
        uint32_t state = queue[head++];
        for (uint32_t i = start[state]; i < start[state + 1]; i++) {
            if (!reaches[sources[i]]) {
                reaches[sources[i]] = 1;
                queue[tail++] = sources[i];
            }
        }
    }
    for (uint32_t i = 0; i < count && tail < count; i++) {
        if (!reaches[i])
            report(walk, "no good end can be reached any more, not even by resolve", i);
    }
    g_free(start);
    g_free(sources);
    g_free(queue);
    g_free(reaches);
}

static void explore(Walk *walk, unsigned kind)
{
    System first;
    walk->current = NONE;
    system_init(&first, kind);
    add(walk, &first);
    for (walk->current = 0; walk->current < walk->states->len && walk->problem == NULL; walk->current++) {
        System system = *state_at(walk, walk->current); /* the array moves as it grows */
        uint32_t begin = walk->edges->len;
        g_array_append_val(walk->first, begin);
        walk->moved = FALSE;
        expand(walk->model, &system);
        const char *problem = walk->moved ? NULL : check_quiet(&system);
        if (problem != NULL)
            report(walk, problem, walk->current);
    }
}

/* No state of one kind is ever one of another. */
static void walk_kind(Model *model, unsigned kind, gboolean verbose, WalkResult *result)
{
    Walk walk = {
        .model = model,
        .states = g_array_new(FALSE, FALSE, sizeof(System)),
        .parents = g_array_new(FALSE, FALSE, sizeof(uint32_t)),
        .first = g_array_new(FALSE, FALSE, sizeof(uint32_t)),
        .edges = g_array_new(FALSE, FALSE, sizeof(uint32_t)),
        .slots = 1 << 10,
    };
    grow(&walk);
    model->emit = on_edge;
    model->labels = FALSE;
    model->user = &walk;
    explore(&walk, kind);
    if (walk.problem == NULL)
        check_cycles(&walk);
    if (walk.problem == NULL)
        check_reaches_good(&walk);
    if (walk.problem != NULL && verbose)
        print_trace(&walk);
    result->problem = walk.problem;
    result->states += walk.states->len;
    result->edges += walk.edge_count;
    g_array_unref(walk.states);
    g_array_unref(walk.parents);
    g_array_unref(walk.first);
    g_array_unref(walk.edges);
    g_free(walk.table);
}

void walk(Model *model, gboolean verbose, WalkResult *ret_result)
{
    *ret_result = (WalkResult){0};
    for (unsigned kind = 0; kind < SYSTEM_KINDS && ret_result->problem == NULL; kind++)
        walk_kind(model, kind, verbose, ret_result);
}
