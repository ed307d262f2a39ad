/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a certificate says of itself: whom it names, when it holds, what it is meant for. Read by GnuTLS from
 * the DER that GIO has, since GIO tells none of it in the versions that we build with.
 *
 * A certificate's names are those of its subjectAltName, DNS names and IP addresses; the common name counts
 * only if there is no subjectAltName at all.
 */
#pragma once

#include <gio/gio.h>

typedef struct RmCertificate RmCertificate;

RmCertificate *rm_certificate_new(GTlsCertificate *certificate, GError **error); /* reason tls */
void rm_certificate_free(RmCertificate *certificate);                            /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmCertificate, rm_certificate_free)

/* NULL-terminated, borrowed: as they stand there, IP addresses in GLib's notation. Not fit for a terminal:
 * rm_certificate_describe(). */
char *const *rm_certificate_names(const RmCertificate *certificate);
/* "names a.example.com, 10.0.0.1" or "no names", printable; caller frees. */
char *rm_certificate_describe(const RmCertificate *certificate);

/* Outside its dates: what is wrong, as "has expired on DATE"; NULL if it is valid now. Caller frees. */
char *rm_certificate_date_problem(const RmCertificate *certificate);
/* Whether it may be used as a TLS server (FALSE: client): it says so, or does not restrict itself. */
gboolean rm_certificate_is_for(const RmCertificate *certificate, gboolean server);

/* Whether it is the certificate of `host`, a name or an address (whose scope does not matter). A name like
 * "*.example.com" in it stands for one label. */
gboolean rm_certificate_is_of(const RmCertificate *certificate, const char *host);
/* Whether one of its names is allowed: equal to one of `allowed` (without regard to case), or under one that
 * begins with "*." with exactly one label in front. A wildcard in the certificate allows nothing: it is
 * nobody's name. */
gboolean rm_certificate_is_allowed(const RmCertificate *certificate, char *const *allowed);

/* Whether the key in PEM, not encrypted, is this certificate's. Reason tls. */
gboolean rm_certificate_has_key(const RmCertificate *certificate, const char *pem, gsize length,
                                GError **error);
