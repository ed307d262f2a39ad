/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Certificates of all kinds, made here and now by GnuTLS, in folders as --tls-creds takes them. */
#pragma once

#include <gio/gio.h>
#include <glib/gstdio.h>
#include <gnutls/x509.h>
#include <string.h>
#include <time.h>

#define DAY (24 * 3600)

/* After any GnuTLS handshake, also one without our code, the leak checker of the address sanitizer dies of a
 * fault of its own at exit. Unused without that sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

typedef struct {
    gnutls_x509_crt_t crt;
    gnutls_x509_privkey_t key;
} Issued;

typedef struct {
    const char *names[4]; /* DNS names */
    const char *address;  /* an IP address */
    const char *common_name;
    const char *purpose; /* an OID; NULL: no extended key usage */
    int from, to;        /* seconds from now; both 0: yesterday to tomorrow */
} Wish;

static inline void issued_clear(Issued *issued)
{
    gnutls_x509_crt_deinit(issued->crt);
    gnutls_x509_privkey_deinit(issued->key);
}

static inline void add_names(gnutls_x509_crt_t crt, const Wish *wish)
{
    for (guint i = 0; i < G_N_ELEMENTS(wish->names) && wish->names[i] != NULL; i++)
        g_assert_cmpint(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, wish->names[i],
                                                             (unsigned)strlen(wish->names[i]),
                                                             GNUTLS_FSAN_APPEND),
                        ==, 0);
    if (wish->address == NULL)
        return;
    g_autoptr(GInetAddress) address = g_inet_address_new_from_string(wish->address);
    g_assert_cmpint(gnutls_x509_crt_set_subject_alt_name(
                        crt, GNUTLS_SAN_IPADDRESS, g_inet_address_to_bytes(address),
                        (unsigned)g_inet_address_get_native_size(address), GNUTLS_FSAN_APPEND),
                    ==, 0);
}

/* Signed by `issuer`, or, if that is NULL, a CA. */
static inline Issued issue(const Wish *wish, const Issued *issuer)
{
    static unsigned char serial = 1;
    const char *name = wish->common_name != NULL ? wish->common_name : issuer == NULL ? "CA" : "host";
    Issued issued;
    g_assert_cmpint(gnutls_x509_privkey_init(&issued.key), ==, 0);
    g_assert_cmpint(gnutls_x509_privkey_generate(issued.key, GNUTLS_PK_ECDSA,
                                                 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
                    ==, 0);
    gnutls_x509_crt_init(&issued.crt);
    gnutls_x509_crt_set_version(issued.crt, 3);
    serial++;
    gnutls_x509_crt_set_serial(issued.crt, &serial, 1);
    gnutls_x509_crt_set_dn_by_oid(issued.crt, GNUTLS_OID_X520_COMMON_NAME, 0, name, (unsigned)strlen(name));
    gnutls_x509_crt_set_key(issued.crt, issued.key);
    gboolean dated = wish->from != 0 || wish->to != 0;
    gnutls_x509_crt_set_activation_time(issued.crt, time(NULL) + (dated ? wish->from : -DAY));
    gnutls_x509_crt_set_expiration_time(issued.crt, time(NULL) + (dated ? wish->to : DAY));
    gnutls_x509_crt_set_ca_status(issued.crt, issuer == NULL);
    gnutls_x509_crt_set_key_usage(issued.crt,
                                  issuer == NULL ? GNUTLS_KEY_KEY_CERT_SIGN : GNUTLS_KEY_DIGITAL_SIGNATURE);
    add_names(issued.crt, wish);
    if (wish->purpose != NULL)
        gnutls_x509_crt_set_key_purpose_oid(issued.crt, wish->purpose, 0);
    g_assert_cmpint(gnutls_x509_crt_sign2(issued.crt, issuer != NULL ? issuer->crt : issued.crt,
                                          issuer != NULL ? issuer->key : issued.key, GNUTLS_DIG_SHA256, 0),
                    ==, 0);
    return issued;
}

static inline void write_pem(const char *dir, const char *name, const gnutls_datum_t *pem, int mode)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_unlink(path);
    g_assert_true(
        g_file_set_contents_full(path, (char *)pem->data, pem->size, G_FILE_SET_CONTENTS_NONE, mode, NULL));
}

static inline void write_certificate(const char *dir, const char *name, const Issued *issued)
{
    gnutls_datum_t pem;
    g_assert_cmpint(gnutls_x509_crt_export2(issued->crt, GNUTLS_X509_FMT_PEM, &pem), ==, 0);
    write_pem(dir, name, &pem, 0644);
    gnutls_free(pem.data);
}

static inline void write_key(const char *dir, const char *name, const Issued *issued)
{
    gnutls_datum_t pem;
    g_assert_cmpint(
        gnutls_x509_privkey_export2_pkcs8(issued->key, GNUTLS_X509_FMT_PEM, NULL, GNUTLS_PKCS_PLAIN, &pem),
        ==, 0);
    write_pem(dir, name, &pem, 0600);
    gnutls_free(pem.data);
}

static inline char *folder_new(void)
{
    g_autoptr(GError) error = NULL;
    char *dir = g_dir_make_tmp("rdmamig-tls-XXXXXX", &error);
    g_assert_no_error(error);
    return dir;
}

static inline void folder_free(char *dir)
{
    g_autoptr(GDir) files = g_dir_open(dir, 0, NULL);
    for (const char *name; (name = g_dir_read_name(files)) != NULL;) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        g_unlink(path);
    }
    g_rmdir(dir);
    g_free(dir);
}

/* Writes what `wish` says, signed by `ca`, as one end's credentials into a new folder. */
static inline char *creds_new(const Issued *ca, gboolean server, const Wish *wish)
{
    char *dir = folder_new();
    Issued own = issue(wish, ca);
    write_certificate(dir, "ca-cert.pem", ca);
    write_certificate(dir, server ? "server-cert.pem" : "client-cert.pem", &own);
    write_key(dir, server ? "server-key.pem" : "client-key.pem", &own);
    issued_clear(&own);
    return dir;
}

/* One of no folder; unreferenced by the caller. */
static inline GTlsCertificate *certificate_with_key(const Issued *of, const Wish *wish)
{
    Issued issued = issue(wish, of);
    gnutls_datum_t pem, key;
    gnutls_x509_crt_export2(issued.crt, GNUTLS_X509_FMT_PEM, &pem);
    gnutls_x509_privkey_export2_pkcs8(issued.key, GNUTLS_X509_FMT_PEM, NULL, GNUTLS_PKCS_PLAIN, &key);
    g_autofree char *text = g_strdup_printf("%.*s%.*s", (int)pem.size, pem.data, (int)key.size, key.data);
    GTlsCertificate *certificate = g_tls_certificate_new_from_pem(text, -1, NULL);
    g_assert_nonnull(certificate);
    gnutls_free(pem.data);
    gnutls_free(key.data);
    issued_clear(&issued);
    return certificate;
}
