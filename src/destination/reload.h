/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * SIGHUP: what may change while the daemon runs.
 *
 * The command line is parsed anew, and so the configuration file is read. Of what is new, the credentials and
 * --tls-allow hold for connections from then on; of the rest it is said that it takes a restart. Whatever is
 * wrong, in the file or with the credentials, leaves everything as it was.
 */
#pragma once

#include "destination/daemon.h"

/* `argc`, `argv` are those that the daemon's options were parsed from. Logs what came of it. */
void rm_reload(RmDaemon *daemon, int argc, char **argv);
