#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configuration files of both programs, their examples and completion, and what `meson install` puts where."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys

from lib import BUILD, DONE, PATIENCE, RDMAMIG, RDMAMIGD, REFUSED, ROOT, USAGE, Case, Process, Qemu, free_port, listens, run, wait_until

CONTRIB = ROOT / "contrib"
# No keys: rdmamigd.conf(5).
WORDS_ONLY = {"help", "version", "config", "no-config", "check-config"}
OF_ONE_MIGRATION = {"qmp", "to", "tls-hostname", "dry-run", "report"}


def help_options(*command):
    """The long options that --help lists, with what each takes."""
    text = subprocess.run([*map(str, command), "--help"], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^ +(?:-\w, )?--([a-z0-9-]+)=?(\S*)", text.split("Options:")[1], re.M))
    assert len(found) > 10, text
    return found


def meson_option(name):
    options = json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())
    return next(option["value"] for option in options if option["name"] == name)


class ConfigCase(Case):
    def setUp(self):
        super().setUp()
        self.etc = self.folder / "etc"
        self.etc.mkdir()

    def write(self, name, group, **keys):
        lines = [f"{key.replace('_', '-')} = {value}" for key, value in keys.items()]
        path = self.etc / name
        path.write_text("\n".join([f"[{group}]", *lines, ""]))
        path.chmod(0o644)
        return path

    def run_program(self, *command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=self.env, timeout=PATIENCE)

    def assert_usage(self, done, *texts):
        self.assertEqual(done.returncode, USAGE, done)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)


class Files(ConfigCase):
    def test_both_ends_from_files(self):
        """Neither command line has more than what belongs to this migration; and a move is really made with it."""
        source = Qemu(self, "source")
        source.wait_letters()
        sockets = self.folder / "sockets"
        sockets.mkdir()
        target = Qemu(self, "target", incoming=True)
        (sockets / "waiting.sock").symlink_to(target.path)
        port = free_port()
        self.write("rdmamigd.conf", "rdmamigd", listen=f"127.0.0.1:{port}", qmp_dir=sockets, data_address="127.0.0.1; 127.0.0.2",
                   max_chunk_size="16M", verbose=2)
        self.write("rdmamig.conf", "send", transport="tcp", channels=3, suspend="true", keep_source="true", verbose="true")
        daemon = Process(self, "rdmamigd", [RDMAMIGD])
        wait_until(lambda: listens(port) or not daemon.alive(), "rdmamigd listens")
        result = self.send(source, f"127.0.0.1:{port}")
        self.assertEqual(result["outcome"], "done", daemon.output())
        self.assertEqual(source.status(), "postmigrate")  # keep-source
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_command_line_wins(self):
        """Ports, lists and switches; what the file alone says holds on."""
        self.write("rdmamigd.conf", "rdmamigd", listen=":1", qmp_dir=self.folder, insecure="true", data_address="10.0.0.1;10.0.0.2")
        done = self.run_program(RDMAMIGD, "--check-config", "--listen", "127.0.0.1:9", "--data-address", "127.0.0.1", "--no-insecure")
        self.assertEqual(done.returncode, 0, done)
        values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        self.assertEqual(values, {"listen": "127.0.0.1:9", "qmp-dir": str(self.folder), "data-address": "127.0.0.1;"})

    def test_what_is_shown_is_a_file(self):
        self.write("rdmamigd.conf", "rdmamigd", listen="", exec=r"start \\s 'a;b'", verbose=2)
        first = self.run_program(RDMAMIGD, "--check-config", "--qmp", "/a;b", "--qmp", "/c")
        self.assertEqual(first.returncode, 0, first)
        path = self.etc / "again.conf"
        path.write_text(first.stdout)
        second = self.run_program(RDMAMIGD, "--config", path, "--check-config")
        plain = [re.sub(r"^#.*\n", "", done.stdout, flags=re.M) for done in (first, second)]
        self.assertEqual(plain[0], plain[1])
        self.assertIn(r"qmp=/a\;b;/c;", plain[0])

    def test_errors_name_the_line(self):
        for keys, texts in [({"listn": ":1"}, (":2: unknown key `listn`", "`listen`")),
                            ({"listen": "", "tos": "300"}, (":3: --tos: ",)),
                            ({"listen": "", "qmp_dir": "/nowhere"}, (":3: --qmp-dir: ", "/nowhere"))]:
            path = self.write("rdmamigd.conf", "rdmamigd", **keys)
            with self.subTest(keys):
                self.assert_usage(self.run_program(RDMAMIGD, "--check-config"), str(path), *texts)
        path = self.write("rdmamig.conf", "send", qmp="/some.qmp")
        self.assert_usage(self.run_program(RDMAMIG, "send", "--check-config"), f"{path}:2: `qmp` is for the command line only")

    def test_root_takes_no_file_of_others(self):
        path = self.write("rdmamigd.conf", "rdmamigd", listen="", qmp_dir="/tmp")
        for uid, mode in [(0, 0o666), (0, 0o664), (1000, 0o644)]:
            os.chown(path, uid, 0)
            path.chmod(mode)
            with self.subTest(uid=uid, mode=oct(mode)):
                self.assert_usage(self.run_program(RDMAMIGD, "--check-config"), str(path), "chown root")
        os.chown(path, 0, 0)
        path.chmod(0o600)
        self.assertEqual(self.run_program(RDMAMIGD, "--check-config").returncode, 0)

    def test_background_and_file(self):
        """The process that goes on alone is started with the same words and reads the same file."""
        source, target, daemon = self.pair()
        self.write("rdmamig.conf", "send", background="true", suspend="true")
        report = self.folder / "report.json"
        done = self.run_program(RDMAMIG, "send", "--qmp", source.path, "--to", daemon.address, "--report", report)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertRegex(done.stdout, r"^[0-9a-f-]{36}\n$")
        wait_until(report.exists, "the report")
        self.assertEqual(json.loads(report.read_text())["outcome"], "done")
        self.assertEqual(target.status(), "paused")


class Reload(ConfigCase):
    """SIGHUP reads the file again."""

    def setUp(self):
        super().setUp()
        pki = self.folder / "pki"
        for words in (["ca", pki], ["host", pki, "here", "127.0.0.1"]):
            done = self.run_program(CONTRIB / "make-certs.sh", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.creds = pki / "here"
        self.port = free_port()

    def write_daemon(self, **keys):
        return self.write("rdmamigd.conf", "rdmamigd", listen=f"127.0.0.1:{self.port}", qmp=self.target.path, tls_creds=self.creds, **keys)

    def hang_up(self, daemon, text):
        before = len(daemon.output())
        daemon.popen.send_signal(signal.SIGHUP)
        wait_until(lambda: text in daemon.output()[before:] or not daemon.alive(), f"{text}: {daemon.output()[before:]}")
        self.assertTrue(daemon.alive(), daemon.output())

    def test_names(self):
        source = Qemu(self, "source")
        source.wait_letters()
        self.target = Qemu(self, "target", incoming=True)
        self.write_daemon(tls_allow="elsewhere")
        self.write("rdmamig.conf", "send", tls_creds=self.creds, transport="tcp")
        for command in ((RDMAMIGD,), (RDMAMIG, "send")):
            done = self.run_program(*command, "--check-config")
            self.assertEqual(done.returncode, 0, done.stderr)
        daemon = Process(self, "rdmamigd", [RDMAMIGD])
        wait_until(lambda: listens(self.port) or not daemon.alive(), "rdmamigd listens")
        address = f"127.0.0.1:{self.port}"
        self.assertEqual(self.send(source, address, "--dry-run", expect=REFUSED)["reason"], "tls")

        self.write_daemon(tls_allow="elsewhere; here", max_chunk_size="32M", verbose="true")
        self.hang_up(daemon, "only after a restart: max-chunk-size, verbose\n")
        self.send(source, address, "--dry-run")

        # A file that is wrong changes nothing.
        path = self.write_daemon(tls_allow="a b")
        self.hang_up(daemon, f"nothing was reloaded, and what was loaded before still holds: {path}:5: --tls-allow")
        self.send(source, address, "--dry-run")

        self.write_daemon(tls_allow="elsewhere")
        self.hang_up(daemon, "reloaded: ")
        self.assertEqual(self.send(source, address, "--dry-run", expect=REFUSED)["reason"], "tls")
        self.write_daemon()
        self.hang_up(daemon, "every certificate of the CA")
        self.send(source, address, "--dry-run")

    def test_checked(self):
        """--check-config finds credentials that won't do."""
        path = self.write("rdmamigd.conf", "rdmamigd", listen="", qmp="/x", tls_creds=self.folder / "none")
        self.assert_usage(self.run_program(RDMAMIGD, "--check-config"), f"{path}:4: --tls-creds: ", str(self.folder / "none"))
        path = self.write("rdmamig.conf", "send", tls_creds=self.creds)
        (self.creds / "client-key.pem").write_text("nothing")
        self.assert_usage(self.run_program(RDMAMIG, "send", "--check-config"), f"{path}:2: --tls-creds: ", "client-key.pem")


class Examples(ConfigCase):
    def keys(self, name):
        return re.findall(r"^#?([a-z0-9-]+) = \S", (CONTRIB / name).read_text(), re.M)

    def compare(self, name, options):
        keys = self.keys(name)
        self.assertEqual(len(keys), len(set(keys)), f"{name} has a key twice")
        self.assertEqual(set(keys), options, f"contrib/{name} and --help don't have the same")

    def test_destination(self):
        self.compare("rdmamigd.conf", set(help_options(RDMAMIGD)) - WORDS_ONLY)

    def test_source(self):
        self.compare("rdmamig.conf", set(help_options(RDMAMIG, "send")) - WORDS_ONLY - OF_ONE_MIGRATION)

    def test_examples_as_they_are(self):
        for name in ("rdmamigd.conf", "rdmamig.conf"):
            shutil.copy(CONTRIB / name, self.etc / name)
            os.chmod(self.etc / name, 0o644)
        self.assertEqual(self.run_program(RDMAMIG, "send", "--check-config").returncode, 0)
        self.assertEqual(self.run_program(RDMAMIGD, "--check-config", "--listen", "--qmp-dir", "/tmp").returncode, 0)

    def test_values(self):
        """Each value that stands there is one that can be parsed."""
        for name, command in [("rdmamigd.conf", (RDMAMIGD, "--listen=127.0.0.1", "--qmp=/x")), ("rdmamig.conf", (RDMAMIG, "send"))]:
            text = (CONTRIB / name).read_text()
            for key in self.keys(name):
                path = self.etc / name
                path.write_text(re.sub(rf"^#({key} = )", r"\1", text, flags=re.M))
                done = self.run_program(*command, "--check-config")
                # It may need another option, or a folder; but is understood.
                with self.subTest(name=name, key=key):
                    if done.returncode != 0:
                        self.assertRegex(done.stderr, "(needs|there is no|No such file|beyond loopback)")

    def test_manuals(self):
        for page, command in [("rdmamigd.8", (RDMAMIGD,)), ("rdmamig.1", (RDMAMIG, "send"))]:
            text = (ROOT / "docs/man" / f"{page}.scd").read_text()
            missing = [name for name in help_options(*command) if name not in ("verbose", "quiet", "help", "version")
                       and f"*--{name}*" not in text]
            self.assertEqual(missing, [], f"{page} does not have them")


class Completion(ConfigCase):
    script = CONTRIB / "completion/rdmamig"

    def complete(self, *words, script=None):
        """What bash offers for the last of `words`, the first of which is the program."""
        code = ('. "$1"; shift; function=_$(basename "$1"); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=();'
                '"$function" "$1"; printf "%s\\n" "${COMPREPLY[@]}"')
        done = self.run_program("bash", "--norc", "-c", code, "bash", script or self.script, *words)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_options(self):
        self.assertEqual(self.complete(RDMAMIGD, "--"), {f"--{name}" for name in help_options(RDMAMIGD)})
        self.assertEqual(self.complete(RDMAMIG, "send", "--"), {f"--{name}" for name in help_options(RDMAMIG, "send")})
        self.assertEqual(self.complete(RDMAMIG, "send", "--max-r"), {"--max-rounds"})
        self.assertLessEqual({"--force-resume", "--json"}, self.complete(RDMAMIG, "resolve", "--"))
        self.assertNotIn("--max-rounds", self.complete(RDMAMIG, "resolve", "--"))
        self.assertEqual(self.complete(RDMAMIG, "cancel", "--"), set())

    def test_values(self):
        self.assertEqual(self.complete(RDMAMIG, "send", "--transport", ""), {"auto", "rdma", "tcp"})
        self.assertEqual(self.complete(RDMAMIG, "send", "--transport", "=", "r"), {"rdma"})
        self.assertEqual(self.complete(RDMAMIG, "send", "--pin", "="), {"lazy", "all"})
        (self.folder / "dir").mkdir(exist_ok=True)
        (self.folder / "dirt.qmp").write_text("")
        self.assertEqual(self.complete(RDMAMIGD, "--qmp-dir", f"{self.folder}/di"), {f"{self.folder}/dir"})
        self.assertEqual(self.complete(RDMAMIGD, "--qmp", f"{self.folder}/di"), {f"{self.folder}/dir", f"{self.folder}/dirt.qmp"})
        self.assertEqual(self.complete(RDMAMIGD, "--tos", ""), set())

    def test_verbs(self):
        usage = self.run_program(RDMAMIG, "--help").stdout
        verbs = set(re.findall(r"rdmamig ([a-z]+) ", usage.split("\n\n")[0]))
        self.assertLessEqual({"send", "status", "cancel", "resolve"}, verbs)
        self.assertEqual(self.complete(RDMAMIG, ""), verbs | {"--help", "--version"})

    def test_sessions(self):
        source, _, daemon = self.pair()
        self.write("rdmamig.conf", "send", background="true", suspend="true", max_bandwidth="4M")
        done = self.run_program(RDMAMIG, "send", "--qmp", source.path, "--to", daemon.address)
        self.assertEqual(done.returncode, DONE, done.stderr)
        session = done.stdout.strip()
        self.assertLessEqual({session, "guest"}, self.complete(RDMAMIG, "cancel", ""))
        self.assertEqual(self.complete(RDMAMIG, "status", session[:8]), {session})
        self.assertEqual(self.run_program(RDMAMIG, "cancel", session).returncode, 0)
        source.wait_letters()


class Install(ConfigCase):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.prefix = self.root / meson_option("prefix").lstrip("/")
        self.env["DESTDIR"] = str(self.root)
        self.meson("install", "--no-rebuild")

    def meson(self, *words):
        done = subprocess.run(["meson", words[0], "-C", str(BUILD), *words[1:]], capture_output=True, text=True, env=self.env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def path(self, *options):
        """Below the prefix, by a meson option for its folder."""
        return self.prefix / meson_option(options[0]) / "/".join(options[1:])

    def test_files(self):
        share = self.path("datadir")
        expected = [(self.path("bindir", "rdmamig"), 0o755), (self.path("sbindir", "rdmamigd"), 0o755),
                    (share / "bash-completion/completions/rdmamig", 0o644), (share / "pkgconfig/rdmamig.pc", 0o644),
                    (share / "doc/rdmamig/operations.md", 0o644), (share / "doc/rdmamig/troubleshooting.md", 0o644),
                    (share / "doc/rdmamig/examples/rdmamigd.conf", 0o644), (share / "doc/rdmamig/examples/rdmamig.conf", 0o644),
                    (share / "doc/rdmamig/examples/make-certs.sh", 0o755)]
        if shutil.which("scdoc"):
            expected += [(self.path("mandir", page), 0o644) for page in ("man1/rdmamig.1", "man8/rdmamigd.8", "man5/rdmamigd.conf.5")]
        for path, mode in expected:
            with self.subTest(path):
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), mode)
        self.assertEqual(os.readlink(share / "bash-completion/completions/rdmamigd"), "rdmamig")
        tmpfiles = list(self.root.rglob("tmpfiles.d/rdmamig.conf"))
        self.assertEqual(len(tmpfiles), 1)
        self.assertEqual(re.findall(r"^d (\S+) 0700 root root", tmpfiles[0].read_text(), re.M), ["/run/rdmamig", "/var/lib/rdmamig"])
        for path in self.root.rglob("*"):
            if not path.is_symlink():
                self.assertEqual(path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), 0, path)
        self.assertEqual([path for path in self.root.rglob("*.in")], [])

    def test_programs(self):
        for program in (self.path("bindir", "rdmamig"), self.path("sbindir", "rdmamigd")):
            done = self.run_program(program, "--version")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(program.name + " "))

    def test_pkg_config(self):
        self.env["PKG_CONFIG_PATH"] = str(self.path("datadir", "pkgconfig"))

        def variable(name):
            done = self.run_program("pkg-config", f"--variable={name}", "rdmamig")
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.strip()
        self.assertEqual(variable("statedir"), "/var/lib/rdmamig")
        self.assertEqual(variable("rundir"), "/run/rdmamig")
        self.assertEqual(variable("port"), "24780")
        header = (ROOT / "src/control/message.h").read_text()
        for name, macro in [("protocol", "RM_PROTOCOL"), ("protocol_min", "RM_PROTOCOL_MIN")]:
            self.assertEqual(variable(name), re.search(rf"#define {macro} (\d+)", header)[1])
        self.env.pop("RDMAMIG_CONFIG_DIR")
        self.assertIn(f"({variable('confdir')}/rdmamigd.conf)", self.run_program(RDMAMIGD, "--help").stdout)
        self.assertEqual(self.run_program(RDMAMIGD, "--version").stdout.split()[1],
                         self.run_program("pkg-config", "--modversion", "rdmamig").stdout.strip())

    def test_completion(self):
        for name in ("rdmamig", "rdmamigd"):
            done = self.run_program("bash", "--norc", "-c", 'set -eu; . "$1"; complete -p "$2"', "bash",
                                    self.path("datadir", "bash-completion/completions", name), name)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_units(self):
        units = {path.name: path.read_text() for path in self.root.rglob("systemd/system/*.service")}
        self.assertLessEqual({"rdmamigd.service", "rdmamigd@.service"}, set(units))
        for name, text in units.items():
            self.assertNotRegex(text, r"@\w+@", name)
            self.assertIn(f"\nExecStart={self.path('sbindir', 'rdmamigd')} ".replace(str(self.root), ""), text)
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze; the rest of it was looked at")
        # It wants the programs to be where the unit says.
        for name, text in units.items():
            (self.folder / name).write_text(text.replace(f"={meson_option('prefix')}/", f"={self.prefix}/"))
        done = self.run_program("systemd-analyze", "verify", "--man=no", *(self.folder / name for name in units))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_tmpfiles(self):
        if not shutil.which("systemd-tmpfiles"):
            self.skipTest("no systemd-tmpfiles")
        conf = next(self.root.rglob("tmpfiles.d/rdmamig.conf"))
        host = self.folder / "host"
        (host / "etc").mkdir(parents=True)
        (host / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (host / "etc/group").write_text("root:x:0:\n")
        done = self.run_program("systemd-tmpfiles", f"--root={host}", "--create", conf)
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in ("run/rdmamig", "var/lib/rdmamig"):
            self.assertEqual(stat.S_IMODE((host / path).stat().st_mode), 0o700)

    def test_uninstall(self):
        """What is put there later stays, and nothing else."""
        state = self.root / "var/lib/rdmamig/journal"
        state.mkdir(parents=True)
        subprocess.run(["ninja", "-C", str(BUILD), "uninstall"], capture_output=True, check=True, env=self.env)
        left = [path for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir()]
        self.assertEqual(left, [])
        self.assertTrue(state.is_dir())
        self.assertFalse(self.prefix.exists())


if __name__ == "__main__":
    sys.exit(run())
