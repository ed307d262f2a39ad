/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Mutual TLS with X.509, for the control connection and the tcp data channels.
 *
 * A folder of credentials is laid out as QEMU and libvirt have it: ca-cert.pem, and of the source
 * client-cert.pem and client-key.pem, of the destination server-cert.pem and server-key.pem. Both ends show a
 * certificate, and each checks the other's: signed by its ca-cert.pem, within its dates, meant for what it is
 * used for (GIO does not look at the extended key usage: we do), and of the right name. The source compares
 * it with the host that it called, or --tls-hostname; the destination with its list of allowed names, if it
 * has one.
 *
 * There is no list of revoked certificates: GIO knows none, so a folder with ca-crl.pem is refused rather
 * than its content ignored. Whom the destination's list of names leaves out is kept out.
 *
 * With TLS 1.3 the source's handshake ends before the destination has judged the source's certificate: that
 * it was let in is known from the first reply only. Whoever reads the first reply maps an end of the stream
 * to reason tls (rm_tls_explain()); control/link.c does so for the control connection.
 */
#pragma once

#include <gio/gio.h>

typedef enum { RM_TLS_SOURCE, RM_TLS_DESTINATION } RmTlsEnd;

/* Immutable; any thread. */
typedef struct RmTls RmTls;

/* Reads and checks `dir`: that the files are there and can be read, that key and certificate belong together,
 * that the certificate is of that CA, valid now, and meant for this end; warns of a key that others may read.
 * Reason tls: the message names the file and what to do. */
RmTls *rm_tls_load(const char *dir, RmTlsEnd end, GError **error);
RmTls *rm_tls_ref(RmTls *tls);
void rm_tls_unref(RmTls *tls); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmTls, rm_tls_unref)

/* The handshake of the end that called, over `connection`, within timeout_ms; `host` is the name or address
 * that the destination's certificate must have. Returns the GTlsConnection. Reasons tls (the message names
 * the certificate's names, dates or purpose, and what was expected), peer-timeout, peer-lost, cancelled. */
GIOStream *rm_tls_connect(RmTls *tls, GSocketConnection *connection, const char *host, unsigned timeout_ms,
                          GCancellable *cancel, GError **error);

/* The same of the end that was called. `allowed`: the names of which a source must have one (a leading "*."
 * stands for one label), NULL-terminated; NULL allows every certificate of the CA. */
GIOStream *rm_tls_accept(RmTls *tls, GSocketConnection *connection, char *const *allowed, unsigned timeout_ms,
                         GCancellable *cancel, GError **error);

/* Of a source's stream that ended before the destination's first word: that the destination did not accept
 * the certificate, with its names; caller frees. NULL if `stream` has no TLS, or is a destination's. */
char *rm_tls_explain(GIOStream *stream);

/* The first name of the peer's certificate, for the log; NULL if `stream` has no TLS. Caller frees. */
char *rm_tls_peer_name(GIOStream *stream);
/* Whether both streams' peers showed the same certificate; TRUE if neither has TLS. */
gboolean rm_tls_same_peer(GIOStream *one, GIOStream *other);

/* The socket below a GSocketConnection, or below a GTlsConnection over one; owned by the stream. */
GSocket *rm_tls_socket(GIOStream *stream);
