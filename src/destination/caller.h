/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who calls, and for what: a connection from its first byte to whom it belongs to.
 *
 * The first byte tells: '{' is a control connection, which lives as long as its session (receive.c) or asks a
 * query; 'R' a data channel, which proves a session's token and is handed to its transport; 0x16 is TLS, and
 * the first byte inside tells the same again. All this in the connection's own thread: within ten seconds
 * from its beginning to the end of the handshake, and another ten from there, with a peer that is known by
 * then.
 *
 * Where TLS is set up, nothing is taken in clear: a control connection is told so, in clear, in one line; a
 * data channel is closed, unless its session has agreed to data in clear. A data channel inside TLS shows the
 * certificate that its session's control connection showed: a token alone, which another host that the CA
 * knows may have got hold of, is not enough.
 */
#pragma once

#include "destination/daemon.h"

/* Serves a fresh connection to its end; blocking. `pass` stays the caller's. */
void rm_caller_serve(RmDaemon *daemon, GSocketConnection *connection, RmPass *pass);
