/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Certificates, as GnuTLS reads them. */
#include "control/certificate.h"

#include "common/printable.h"
#include "common/reason.h"

#include <gnutls/x509.h>
#include <string.h>

#define NAME_MAX_BYTES 1024 /* of one name; longer ones are nobody's we know */
#define DESCRIPTION_MAX 400

struct RmCertificate {
    gnutls_x509_crt_t crt;
    GPtrArray *names; /* char*, NULL-terminated */
};

/* ---- names ---- */

static void add_name(RmCertificate *this, const char *text, gsize length)
{
    if (length > 0 && memchr(text, '\0', length) == NULL) /* what is behind a NUL would be hidden from us */
        g_ptr_array_add(this->names, g_strndup(text, length));
}

static void add_address(RmCertificate *this, const char *bytes, gsize length)
{
    if (length != 4 && length != 16)
        return;
    g_autoptr(GInetAddress) address = g_inet_address_new_from_bytes(
        (const guint8 *)bytes, length == 4 ? G_SOCKET_FAMILY_IPV4 : G_SOCKET_FAMILY_IPV6);
    g_ptr_array_add(this->names, g_inet_address_to_string(address));
}

static void read_names(RmCertificate *this)
{
    char text[NAME_MAX_BYTES];
    size_t length = sizeof(text);
    int type = GNUTLS_E_SUCCESS;
    unsigned n;
    for (n = 0;; n++, length = sizeof(text)) {
        type = gnutls_x509_crt_get_subject_alt_name(this->crt, n, text, &length, NULL);
        if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
            break;
        if (type == GNUTLS_SAN_DNSNAME)
            add_name(this, text, length);
        else if (type == GNUTLS_SAN_IPADDRESS)
            add_address(this, text, length);
        else if (type < 0 && type != GNUTLS_E_SHORT_MEMORY_BUFFER && type != GNUTLS_E_X509_UNKNOWN_SAN)
            break; /* unreadable: no more names of it, and none of another place */
    }
    length = sizeof(text);
    if (n == 0 && type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE &&
        gnutls_x509_crt_get_dn_by_oid(this->crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, text, &length) == 0)
        add_name(this, text, length);
}

static gboolean is_address(const char *name)
{
    return g_hostname_is_ip_address(name);
}

/* Without the scope of an address, which no certificate knows, in the one notation of GLib. */
static char *normalise(const char *host)
{
    g_autofree char *bare = g_strndup(host, strcspn(host, "%"));
    g_autoptr(GInetAddress) address = g_inet_address_new_from_string(bare);
    if (address != NULL)
        return g_inet_address_to_string(address);
    gsize length = strlen(host);
    return g_ascii_strdown(host, length > 1 && host[length - 1] == '.' ? (gssize)length - 1 : -1);
}

/* "*.example.com" and a.example.com: what stands for the star is one label, and no star itself. */
static gboolean under(const char *name, const char *pattern)
{
    const char *dot = strchr(name, '.');
    return g_str_has_prefix(pattern, "*.") && dot != NULL && dot != name && !is_address(name) &&
           memchr(name, '*', (gsize)(dot - name)) == NULL && g_ascii_strcasecmp(dot, pattern + 1) == 0;
}

/* ---- the interface ---- */

RmCertificate *rm_certificate_new(GTlsCertificate *certificate, GError **error)
{
    g_autoptr(GByteArray) der = NULL;
    g_autoptr(RmCertificate) this = g_new0(RmCertificate, 1);
    g_object_get(certificate, "certificate", &der, NULL);
    this->names = g_ptr_array_new_with_free_func(g_free);
    int status = der != NULL ? gnutls_x509_crt_init(&this->crt) : GNUTLS_E_INVALID_REQUEST;
    if (status == GNUTLS_E_SUCCESS) {
        const gnutls_datum_t datum = {der->data, der->len};
        status = gnutls_x509_crt_import(this->crt, &datum, GNUTLS_X509_FMT_DER);
    }
    if (status != GNUTLS_E_SUCCESS) {
        rm_fail(error, RM_REASON_TLS, "the certificate can't be read: %s", gnutls_strerror(status));
        return NULL;
    }
    read_names(this);
    g_ptr_array_add(this->names, NULL);
    return g_steal_pointer(&this);
}

void rm_certificate_free(RmCertificate *certificate)
{
    if (certificate == NULL)
        return;
    if (certificate->crt != NULL)
        gnutls_x509_crt_deinit(certificate->crt);
    g_ptr_array_unref(certificate->names);
    g_free(certificate);
}

char *const *rm_certificate_names(const RmCertificate *certificate)
{
    return (char *const *)certificate->names->pdata;
}

char *rm_certificate_describe(const RmCertificate *certificate)
{
    g_autofree char *all = g_strjoinv(", ", (char **)certificate->names->pdata);
    g_autofree char *text =
        *all != '\0' ? g_strconcat("names ", all, NULL) : g_strdup("no DNS name or IP address");
    return rm_printable(text, DESCRIPTION_MAX);
}

static char *format_time(time_t time)
{
    g_autoptr(GDateTime) date = g_date_time_new_from_unix_utc(time);
    return date != NULL ? g_date_time_format(date, "%Y-%m-%d %H:%M:%S UTC") : g_strdup("an unknown date");
}

char *rm_certificate_date_problem(const RmCertificate *certificate)
{
    time_t now = time(NULL);
    time_t from = gnutls_x509_crt_get_activation_time(certificate->crt);
    time_t to = gnutls_x509_crt_get_expiration_time(certificate->crt);
    g_autofree char *date = format_time(now < from ? from : to);
    if (from == (time_t)-1 || to == (time_t)-1)
        return g_strdup("has no dates");
    if (now < from)
        return g_strdup_printf("is valid from %s on only", date);
    return now > to ? g_strdup_printf("has expired on %s", date) : NULL;
}

gboolean rm_certificate_is_for(const RmCertificate *certificate, gboolean server)
{
    const char *wanted = server ? GNUTLS_KP_TLS_WWW_SERVER : GNUTLS_KP_TLS_WWW_CLIENT;
    for (unsigned n = 0;; n++) {
        char oid[128];
        size_t length = sizeof(oid);
        int status = gnutls_x509_crt_get_key_purpose_oid(certificate->crt, n, oid, &length, NULL);
        if (status == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
            return n == 0;
        if (status == GNUTLS_E_SHORT_MEMORY_BUFFER) /* none of those two */
            continue;
        if (status < 0)
            return FALSE;
        if (strcmp(oid, wanted) == 0 || strcmp(oid, GNUTLS_KP_ANY) == 0)
            return TRUE;
    }
}

gboolean rm_certificate_is_of(const RmCertificate *certificate, const char *host)
{
    g_autofree char *wanted = normalise(host);
    for (char *const *name = rm_certificate_names(certificate); *name != NULL; name++) {
        g_autofree char *have = normalise(*name);
        if (strcmp(have, wanted) == 0 || under(wanted, have))
            return TRUE;
    }
    return FALSE;
}

gboolean rm_certificate_is_allowed(const RmCertificate *certificate, char *const *allowed)
{
    for (char *const *name = rm_certificate_names(certificate); *name != NULL; name++) {
        g_autofree char *have = normalise(*name);
        for (char *const *pattern = allowed; *pattern != NULL && strchr(have, '*') == NULL; pattern++) {
            g_autofree char *wanted = normalise(*pattern);
            if (strcmp(have, wanted) == 0 || under(have, wanted))
                return TRUE;
        }
    }
    return FALSE;
}

gboolean rm_certificate_has_key(const RmCertificate *certificate, const char *pem, gsize length,
                                GError **error)
{
    const gnutls_datum_t datum = {(unsigned char *)pem, (unsigned)length};
    unsigned char of_key[64], of_certificate[64];
    size_t key_size = sizeof(of_key), certificate_size = sizeof(of_certificate);
    gnutls_x509_privkey_t key = NULL;
    int status = gnutls_x509_privkey_init(&key);
    if (status == GNUTLS_E_SUCCESS)
        status = gnutls_x509_privkey_import2(key, &datum, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (status == GNUTLS_E_SUCCESS)
        status = gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, of_key, &key_size);
    if (status == GNUTLS_E_SUCCESS)
        status = gnutls_x509_crt_get_key_id(certificate->crt, GNUTLS_KEYID_USE_SHA256, of_certificate,
                                            &certificate_size);
    if (key != NULL)
        gnutls_x509_privkey_deinit(key);
    if (status != GNUTLS_E_SUCCESS)
        return rm_fail(error, RM_REASON_TLS, "it holds no key that can be used without a password: %s",
                       gnutls_strerror(status));
    return (key_size == certificate_size && memcmp(of_key, of_certificate, key_size) == 0) ||
           rm_fail(error, RM_REASON_TLS, "it is the key of another certificate");
}
