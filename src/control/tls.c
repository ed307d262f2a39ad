/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Mutual TLS by GIO.
 *
 * A handshake runs in one of GIO's threads, while the caller's turns a main context of its own, in which the
 * peer's certificate is judged, and which ends the handshake when its time is up: a peer that sends a byte
 * now and then would get round any time limit of the socket's.
 *
 * The peer's certificate is judged twice by the same function. In the handshake, so that the peer is told by
 * an alert; GIO asks there only if the connection is a server's, or if there is something wrong already
 * (there always is at a client: GIO is not told whom we called, for we compare the names). And after it,
 * because nobody is asked in a handshake that resumes an earlier session, which may be of before the list of
 * names was changed.
 */
#include "control/tls.h"

#include "common/autoptr.h"
#include "common/printable.h"
#include "common/reason.h"
#include "control/certificate.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct RmTls {
    gatomicrefcount references;
    /* immutable */
    RmTlsEnd end;
    char *ca_path;
    GTlsCertificate *certificate; /* with its key, and maybe those that lead to the CA */
    char *names;                  /* of it, for messages */
    GTlsDatabase *database;       /* the CA */
    int database_fd;              /* what the database reads */
};

static const struct {
    const char *certificate, *key;
    const char *role, *usage;
} ends[] = {
    [RM_TLS_SOURCE] = {"client-cert.pem", "client-key.pem", "source", "clientAuth"},
    [RM_TLS_DESTINATION] = {"server-cert.pem", "server-key.pem", "destination", "serverAuth"},
};

/* ---- loading ---- */

static gboolean check_folder(const char *dir, GError **error)
{
    g_autofree char *crl = g_build_filename(dir, "ca-crl.pem", NULL);
    struct stat info;
    if (!g_tls_backend_supports_tls(g_tls_backend_get_default()))
        return rm_fail(error, RM_REASON_TLS,
                       "this host has no TLS for GLib programs: install the package glib-networking");
    if (stat(dir, &info) < 0)
        return rm_set_errno(error, RM_REASON_TLS, errno, "--tls-creds: %s", dir);
    if (!S_ISDIR(info.st_mode))
        return rm_fail(error, RM_REASON_TLS,
                       "--tls-creds: %s is no folder; give the one that ca-cert.pem is in", dir);
    if (lstat(crl, &info) == 0)
        return rm_fail(
            error, RM_REASON_TLS,
            "%s: lists of revoked certificates are not looked at, so it would be wrong to go on as if "
            "this one were; remove it, and leave the revoked hosts out of the destination's --tls-allow",
            crl);
    return TRUE;
}

/* The file's path goes to *ret_path in any case. */
static char *read_file(const char *dir, const char *name, RmTlsEnd end, char **ret_path, gsize *ret_length,
                       GError **error)
{
    g_autoptr(GError) problem = NULL;
    char *text = NULL;
    *ret_path = g_build_filename(dir, name, NULL);
    if (!g_file_get_contents(*ret_path, &text, ret_length, &problem))
        rm_fail(error, RM_REASON_TLS,
                "%s; a %s needs ca-cert.pem, %s and %s there, as contrib/make-certs.sh makes them",
                problem->message, ends[end].role, ends[end].certificate, ends[end].key);
    return text;
}

static void warn_of_mode(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && (info.st_mode & (S_IRWXO | S_IWGRP)) != 0)
        g_warning("%s: others can read or change this key (mode %03o): chmod 600 it, or issue a new one",
                  path, info.st_mode & 0777);
}

/* Of all in the file; a certificate of ours that is unfit is found by itself, one of a CA only here. */
static gboolean check_ca(const char *path, GError **error)
{
    g_autoptr(GError) problem = NULL;
    GList *list = g_tls_certificate_list_new_from_file(path, &problem);
    gboolean usable = FALSE;
    g_autofree char *date = NULL;
    if (problem != NULL)
        return rm_fail(error, RM_REASON_TLS, "%s: %s", path, problem->message);
    if (list == NULL)
        return rm_fail(error, RM_REASON_TLS, "%s: there is no certificate in it", path);
    for (GList *item = list; item != NULL && !usable; item = item->next) {
        g_autoptr(RmCertificate) certificate = rm_certificate_new(item->data, NULL);
        g_free(date);
        date = certificate != NULL ? rm_certificate_date_problem(certificate) : g_strdup("can't be read");
        usable = date == NULL;
    }
    g_list_free_full(list, g_object_unref);
    return usable || rm_fail(error, RM_REASON_TLS, "%s: the CA's certificate %s", path, date);
}

static GTlsCertificateFlags chain_flags(RmTls *tls, GTlsCertificate *certificate, gboolean server)
{
    return g_tls_database_verify_chain(tls->database, certificate,
                                       server ? G_TLS_DATABASE_PURPOSE_AUTHENTICATE_SERVER
                                              : G_TLS_DATABASE_PURPOSE_AUTHENTICATE_CLIENT,
                                       NULL, NULL, G_TLS_DATABASE_VERIFY_NONE, NULL, NULL);
}

/* What every certificate must be, whoever's: FALSE with an error that begins with `what`. */
static gboolean check(RmTls *tls, GTlsCertificate *certificate, const RmCertificate *read, gboolean server,
                      const char *what, GError **error)
{
    RmTlsEnd end = server ? RM_TLS_DESTINATION : RM_TLS_SOURCE;
    GTlsCertificateFlags flags = chain_flags(tls, certificate, server);
    g_autofree char *date = rm_certificate_date_problem(read);
    if (flags & G_TLS_CERTIFICATE_UNKNOWN_CA)
        return rm_fail(error, RM_REASON_TLS, "%s is not signed by %s: both ends need certificates of one CA",
                       what, tls->ca_path);
    if (date != NULL)
        return rm_fail(error, RM_REASON_TLS, "%s %s: issue a new one, or set this host's clock", what, date);
    if (flags & (G_TLS_CERTIFICATE_NOT_ACTIVATED | G_TLS_CERTIFICATE_EXPIRED))
        return rm_fail(error, RM_REASON_TLS, "%s is signed by one that is out of date", what);
    if (flags != 0)
        return rm_fail(error, RM_REASON_TLS, "%s is not valid by %s, or its key or digest is too weak", what,
                       tls->ca_path);
    if (!rm_certificate_is_for(read, server))
        return rm_fail(error, RM_REASON_TLS,
                       "%s is not meant for a %s: issue one whose extended key usage has %s", what,
                       ends[end].role, ends[end].usage);
    return TRUE;
}

/* GIO's database reads its file again for each handshake. What is in use must not change because somebody
 * writes to the folder, so it gets a copy that has no place in any folder. */
static gboolean open_database(RmTls *tls, const char *ca, gsize length, GError **error)
{
    g_autoptr(GError) problem = NULL;
    tls->database_fd = memfd_create("rdmamig-ca", MFD_CLOEXEC);
    if (tls->database_fd < 0 || write(tls->database_fd, ca, length) != (ssize_t)length)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "a copy of %s", tls->ca_path);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", tls->database_fd);
    tls->database = g_tls_file_database_new(path, &problem);
    return tls->database != NULL || rm_fail(error, RM_REASON_TLS, "%s: %s", tls->ca_path, problem->message);
}

static gboolean load(RmTls *tls, const char *dir, GError **error)
{
    g_autofree char *ca = NULL, *certificate = NULL, *key = NULL, *certificate_path = NULL, *key_path = NULL;
    g_autoptr(GError) problem = NULL;
    gsize ca_length = 0, length, key_length = 0;
    ca = read_file(dir, "ca-cert.pem", tls->end, &tls->ca_path, &ca_length, error);
    if (ca == NULL || !check_ca(tls->ca_path, error))
        return FALSE;
    certificate = read_file(dir, ends[tls->end].certificate, tls->end, &certificate_path, &length, error);
    if (certificate == NULL)
        return FALSE;
    key = read_file(dir, ends[tls->end].key, tls->end, &key_path, &key_length, error);
    if (key == NULL)
        return FALSE;
    g_autoptr(GTlsCertificate) alone = g_tls_certificate_new_from_pem(certificate, -1, &problem);
    if (alone == NULL)
        return rm_fail(error, RM_REASON_TLS, "%s: %s", certificate_path, problem->message);
    g_autoptr(RmCertificate) own = rm_certificate_new(alone, error);
    if (own == NULL || !rm_certificate_has_key(own, key, key_length, error)) {
        g_prefix_error(error, "%s, with %s: ", key_path, ends[tls->end].certificate);
        return FALSE;
    }
    g_autofree char *both = g_strconcat(certificate, "\n", key, NULL);
    tls->certificate = g_tls_certificate_new_from_pem(both, -1, &problem);
    if (tls->certificate == NULL)
        return rm_fail(error, RM_REASON_TLS, "%s and %s: %s", certificate_path, key_path, problem->message);
    if (!open_database(tls, ca, ca_length, error))
        return FALSE;
    tls->names = rm_certificate_describe(own);
    g_autofree char *what = g_strdup_printf("%s: the certificate", certificate_path);
    if (!check(tls, tls->certificate, own, tls->end == RM_TLS_DESTINATION, what, error))
        return FALSE;
    warn_of_mode(key_path);
    return TRUE;
}

RmTls *rm_tls_load(const char *dir, RmTlsEnd end, GError **error)
{
    g_autofree char *path = g_canonicalize_filename(dir, NULL);
    g_autoptr(RmTls) tls = g_new0(RmTls, 1);
    g_atomic_ref_count_init(&tls->references);
    tls->end = end;
    tls->database_fd = -1;
    if (!check_folder(path, error) || !load(tls, path, error))
        return NULL;
    return g_steal_pointer(&tls);
}

RmTls *rm_tls_ref(RmTls *tls)
{
    g_atomic_ref_count_inc(&tls->references);
    return tls;
}

void rm_tls_unref(RmTls *tls)
{
    if (tls == NULL || !g_atomic_ref_count_dec(&tls->references))
        return;
    g_clear_object(&tls->certificate);
    g_clear_object(&tls->database);
    rm_fd_clear(&tls->database_fd);
    g_free(tls->ca_path);
    g_free(tls->names);
    g_free(tls);
}

/* ---- the peer's certificate ---- */

typedef struct {
    RmTls *tls;
    const char *host;     /* of the destination; NULL at the destination */
    char *const *allowed; /* of sources; NULL: all */
    GError *verdict;      /* against the peer's certificate */
    GCancellable *stop;
    gboolean timed_out;
    GAsyncResult *result;
} Handshake;

static gboolean judge(Handshake *this, GTlsCertificate *peer, GError **error)
{
    gboolean server = this->tls->end == RM_TLS_SOURCE; /* what the peer is */
    const char *whose = ends[server ? RM_TLS_DESTINATION : RM_TLS_SOURCE].role;
    g_autoptr(RmCertificate) certificate = peer != NULL ? rm_certificate_new(peer, error) : NULL;
    if (certificate == NULL)
        return peer != NULL || rm_fail(error, RM_REASON_TLS, "the %s showed no certificate", whose);
    g_autofree char *names = rm_certificate_describe(certificate);
    g_autofree char *what = g_strdup_printf("the %s's certificate (%s)", whose, names);
    if (!check(this->tls, peer, certificate, server, what, error))
        return FALSE;
    if (server && !rm_certificate_is_of(certificate, this->host))
        return rm_fail(
            error, RM_REASON_TLS,
            "the destination's certificate has %s, and not %s: call it by one of its names, or tell which "
            "it has with --tls-hostname",
            names, this->host);
    if (!server && this->allowed != NULL && !rm_certificate_is_allowed(certificate, this->allowed))
        return rm_fail(error, RM_REASON_TLS, "the source's certificate has %s: --tls-allow has none of them",
                       names);
    return TRUE;
}

static gboolean on_certificate(GTlsConnection *connection, GTlsCertificate *peer, GTlsCertificateFlags flags,
                               gpointer data)
{
    Handshake *this = data;
    g_clear_error(&this->verdict);
    return judge(this, peer, &this->verdict);
}

/* ---- the handshake ---- */

static gboolean on_time_up(gpointer data)
{
    Handshake *this = data;
    this->timed_out = TRUE;
    g_cancellable_cancel(this->stop);
    return G_SOURCE_REMOVE;
}

static void on_cancelled(GCancellable *cancel, GCancellable *stop)
{
    g_cancellable_cancel(stop);
}

static void on_done(GObject *connection, GAsyncResult *result, gpointer data)
{
    ((Handshake *)data)->result = g_object_ref(result);
}

static gboolean turn(Handshake *this, GTlsConnection *connection, unsigned timeout_ms, GError **error)
{
    g_autoptr(GMainContext) context = g_main_context_new();
    g_autoptr(GSource) timer = g_timeout_source_new(timeout_ms);
    g_main_context_push_thread_default(context);
    g_source_set_callback(timer, on_time_up, this, NULL);
    g_source_attach(timer, context);
    g_tls_connection_handshake_async(connection, G_PRIORITY_DEFAULT, this->stop, on_done, this);
    while (this->result == NULL)
        g_main_context_iteration(context, TRUE);
    g_source_destroy(timer);
    gboolean ok = g_tls_connection_handshake_finish(connection, this->result, error);
    g_object_unref(this->result);
    g_main_context_pop_thread_default(context);
    return ok;
}

static gboolean explain(Handshake *this, const GError *problem, GCancellable *cancel, unsigned timeout_ms,
                        GError **error)
{
    gboolean source = this->tls->end == RM_TLS_SOURCE;
    if (this->verdict != NULL) {
        g_propagate_error(error, g_steal_pointer(&this->verdict));
        return FALSE;
    }
    if (g_cancellable_is_cancelled(cancel))
        return rm_fail(error, RM_REASON_CANCELLED, "cancelled");
    if (this->timed_out)
        return rm_fail(error, RM_REASON_PEER_TIMEOUT, "the TLS handshake was not over within %u ms",
                       timeout_ms);
    if (!source && g_error_matches(problem, G_TLS_ERROR, G_TLS_ERROR_CERTIFICATE_REQUIRED))
        return rm_fail(error, RM_REASON_TLS, "the source showed no certificate");
    return rm_fail(
        error, problem->domain == G_IO_ERROR ? RM_REASON_PEER_LOST : RM_REASON_TLS,
        "the TLS handshake failed: %s%s", problem->message,
        source ? "; rdmamigd may have no --tls-creds there, or not accept this host's: its log says why"
               : "");
}

static GIOStream *shake_hands(Handshake *this, GIOStream *stream, unsigned timeout_ms, GCancellable *cancel,
                              GError **error)
{
    GTlsConnection *connection = G_TLS_CONNECTION(stream);
    g_autoptr(GError) problem = NULL;
    gulong on_cancel = 0;
    g_tls_connection_set_database(connection, this->tls->database);
    gulong handler = g_signal_connect(connection, "accept-certificate", G_CALLBACK(on_certificate), this);
    this->stop = g_cancellable_new();
    if (cancel != NULL)
        on_cancel = g_cancellable_connect(cancel, G_CALLBACK(on_cancelled), this->stop, NULL);
    gboolean ok = turn(this, connection, timeout_ms, &problem);
    if (cancel != NULL)
        g_cancellable_disconnect(cancel, on_cancel);
    g_signal_handler_disconnect(connection, handler);
    if (ok) {
        g_clear_error(&this->verdict);
        ok = judge(this, g_tls_connection_get_peer_certificate(connection), error);
    } else {
        explain(this, problem, cancel, timeout_ms, error);
    }
    g_clear_error(&this->verdict);
    g_object_unref(this->stop);
    return ok ? g_object_ref(stream) : NULL;
}

GIOStream *rm_tls_connect(RmTls *tls, GSocketConnection *connection, const char *host, unsigned timeout_ms,
                          GCancellable *cancel, GError **error)
{
    Handshake this = {.tls = tls, .host = host};
    g_autoptr(GError) problem = NULL;
    g_autoptr(GIOStream) stream = g_tls_client_connection_new(G_IO_STREAM(connection), NULL, &problem);
    if (stream == NULL) {
        rm_fail(error, RM_REASON_TLS, "TLS can't be begun: %s", problem->message);
        return NULL;
    }
    g_tls_connection_set_certificate(G_TLS_CONNECTION(stream), tls->certificate);
    g_object_set_data_full(G_OBJECT(stream), "rm-tls", rm_tls_ref(tls), (GDestroyNotify)rm_tls_unref);
    return shake_hands(&this, stream, timeout_ms, cancel, error);
}

GIOStream *rm_tls_accept(RmTls *tls, GSocketConnection *connection, char *const *allowed, unsigned timeout_ms,
                         GCancellable *cancel, GError **error)
{
    Handshake this = {.tls = tls, .allowed = allowed};
    g_autoptr(GError) problem = NULL;
    g_autoptr(GIOStream) stream =
        g_tls_server_connection_new(G_IO_STREAM(connection), tls->certificate, &problem);
    if (stream == NULL) {
        rm_fail(error, RM_REASON_TLS, "TLS can't be begun: %s", problem->message);
        return NULL;
    }
    g_object_set(stream, "authentication-mode", G_TLS_AUTHENTICATION_REQUIRED, NULL);
    return shake_hands(&this, stream, timeout_ms, cancel, error);
}

/* ---- what a stream is ---- */

char *rm_tls_explain(GIOStream *stream)
{
    RmTls *tls = G_IS_TLS_CLIENT_CONNECTION(stream) ? g_object_get_data(G_OBJECT(stream), "rm-tls") : NULL;
    return tls == NULL ? NULL
                       : g_strdup_printf("it did not accept this host's certificate (%s); its log "
                                         "says why",
                                         tls->names);
}

char *rm_tls_peer_name(GIOStream *stream)
{
    GTlsCertificate *peer =
        G_IS_TLS_CONNECTION(stream) ? g_tls_connection_get_peer_certificate(G_TLS_CONNECTION(stream)) : NULL;
    g_autoptr(RmCertificate) certificate = peer != NULL ? rm_certificate_new(peer, NULL) : NULL;
    if (certificate == NULL)
        return NULL;
    const char *first = rm_certificate_names(certificate)[0];
    return rm_printable(first != NULL ? first : "a certificate without names", 256);
}

gboolean rm_tls_same_peer(GIOStream *one, GIOStream *other)
{
    if (!G_IS_TLS_CONNECTION(one) || !G_IS_TLS_CONNECTION(other))
        return !G_IS_TLS_CONNECTION(one) && !G_IS_TLS_CONNECTION(other);
    GTlsCertificate *of_one = g_tls_connection_get_peer_certificate(G_TLS_CONNECTION(one));
    GTlsCertificate *of_other = g_tls_connection_get_peer_certificate(G_TLS_CONNECTION(other));
    return of_one != NULL && of_other != NULL && g_tls_certificate_is_same(of_one, of_other);
}

GSocket *rm_tls_socket(GIOStream *stream)
{
    if (G_IS_SOCKET_CONNECTION(stream))
        return g_socket_connection_get_socket(G_SOCKET_CONNECTION(stream));
    g_autoptr(GIOStream) base = NULL; /* the other one keeps it */
    g_object_get(stream, "base-io-stream", &base, NULL);
    return g_socket_connection_get_socket(G_SOCKET_CONNECTION(base));
}
