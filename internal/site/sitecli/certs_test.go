package sitecli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/site/certs"
	"berth/test/testkit"
)

// run is one command line of berth certs or template below a root.
func run(t *testing.T, root string, args ...string) (code int, out, errs string) {
	t.Helper()
	return runWith(t, os.Stdin, root, args...)
}

func runWith(t *testing.T, in *os.File, root string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(t.Context(), append([]string{"--root", root}, args...), Streams{In: in, Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// changing are the parts of the output that differ each time.
var changing = regexp.MustCompile(`[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\d\d`)

// TestCertificatesFromInitToRevoke goes the way of docs/access.md: the signer, a second host and a person are folders here.
func TestCertificatesFromInitToRevoke(t *testing.T) {
	signer, node7, ann, files := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	host, person, list := filepath.Join(files, "node7.tar"), filepath.Join(files, "ann.tar"), filepath.Join(signer, "ca", "revoked.crl")
	for _, c := range []struct {
		root string
		args []string
		code int
		want string // of both outputs
	}{
		{signer, []string{"certs", "issue", "node7"}, 3, "berth: the key of this site's authority is not on this host: there is no SIGNER/ca/ca.key; run this on the host where berth certs init was run, or begin a site with berth certs init\n"},
		{signer, []string{"certs", "init", "--name", "node1", "192.0.2.1"}, 0, "authority: SIGNER/ca\ncertificate of host node1: SIGNER/certs, until TIME\n"},
		{signer, []string{"certs", "init"}, 5, "berth: this host is of a site: SIGNER/certs holds its certificates; remove that folder first to begin another site\n"},
		{signer, []string{"certs", "issue", "-o", host, "node7", "192.0.2.7"}, 0, "FILES/node7.tar: host node7, until TIME; there: berth certs install node7.tar\n"},
		{signer, []string{"certs", "issue", "-o", person, "--role", "operator", "ann"}, 0, "FILES/ann.tar: operator ann, until TIME; there: berth certs install ann.tar\n"},
		{signer, []string{"certs", "issue", "--role", "root", "ann"}, 2, "berth: \"root\" is not a role of a person: admin, operator or viewer\n"},
		{signer, []string{"certs", "issue", "--role", "host", "ann"}, 2, "berth: \"host\" is not a role of a person: admin, operator or viewer\n"},
		{signer, []string{"certs", "issue", "--for", "1h", "node8"}, 2, "berth: --for goes with --role: certificates of hosts last 30 days, and are renewed\n"},
		{signer, []string{"certs", "issue", "--role", "viewer", "--for", "9999h", "ann"}, 2, "berth: 9999h0m0s is not how long a certificate may last: 1m to 2160h\n"},
		{node7, []string{"certs", "install", host}, 0, "NODE7/certs: host node7, until TIME\n"},
		{ann, []string{"certs", "install", person}, 0, "ANN/user: operator ann, until TIME\n"},
		{ann, []string{"certs", "install", list}, 0, "ANN/user: has it, or a newer one\n"},
		{signer, []string{"certs", "renew", "-o", person, "ann"}, 0, "FILES/ann.tar: operator ann, until TIME; there: berth certs install ann.tar\n"},
		{ann, []string{"certs", "install", person}, 0, "ANN/user: operator ann, until TIME\n"},
		{signer, []string{"certs", "ls"}, 0, "NAME   ROLE      UNTIL             STATE  SERIAL\nnode1  host      TIME  valid  SERIAL\nnode7  host      TIME  valid  SERIAL\nann    operator  TIME  valid  SERIAL\nann    operator  TIME  valid  SERIAL\n"},
		{signer, []string{"certs", "revoke", "ann"}, 0, "operator ann: revoked SERIAL\noperator ann: revoked SERIAL\n"},
		{signer, []string{"certs", "revoke", "ann"}, 0, "ann: no certificate that still lasts\n"},
		{signer, []string{"certs", "revoke", "nobody"}, 4, "berth: no certificate was issued to \"nobody\", and none has this serial: see berth certs ls\n"},
		{signer, []string{"certs", "renew", "ann"}, 3, "berth: the certificate of ann was revoked at TIME:SS; berth certs issue makes one all the same\n"},
		{signer, []string{"certs", "ls", "-a"}, 0, "NAME   ROLE      UNTIL             STATE    SERIAL\nnode1  host      TIME  valid    SERIAL\nnode7  host      TIME  valid    SERIAL\nann    operator  TIME  revoked  SERIAL\nann    operator  TIME  revoked  SERIAL\n"},
		{node7, []string{"certs", "install", list}, 0, "NODE7/certs: updated\n"},
		{ann, []string{"certs", "install", host + ".none"}, 4, "berth: there is no file FILES/node7.tar.none\n"},
		{ann, []string{"certs", "install", filepath.Join(signer, "ca", "issued.json")}, 2, "berth: this is not a bundle of berth certs issue: it is no tar\n"},
	} {
		code, out, errs := run(t, c.root, c.args...)
		got := changing.ReplaceAllStringFunc(out+errs, func(s string) string {
			if strings.Contains(s, " ") {
				return "TIME"
			}
			return "SERIAL"
		})
		got = regexp.MustCompile(`TIME:\d\d`).ReplaceAllString(got, "TIME:SS")
		for name, dir := range map[string]string{"SIGNER": signer, "NODE7": node7, "ANN": ann, "FILES": files} {
			got = strings.ReplaceAll(got, dir, name)
		}
		if code != c.code || got != c.want {
			t.Errorf("berth %s: exit code %d, not %d\n%s", strings.Join(c.args, " "), code, c.code, cmp.Diff(c.want, got))
		}
	}
	now, err := os.ReadFile(filepath.Join(signer, "certs", certs.RevokedFile))
	then, err2 := os.ReadFile(list)
	if err != nil || err2 != nil || !bytes.Equal(now, then) {
		t.Errorf("the signer's own host does not have the list: %v, %v", err, err2)
	}
	if info, err := os.Stat(person); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle can be read by others: %v, %v", info, err)
	}
}

// TestBundleOnStandardOutput pipes a bundle from one host to the next.
func TestBundleOnStandardOutput(t *testing.T) {
	signer, node7 := t.TempDir(), t.TempDir()
	if code, _, errs := run(t, signer, "certs", "init", "--name", "node1"); code != 0 {
		t.Fatal(errs)
	}
	code, out, errs := run(t, signer, "certs", "issue", "-o", "-", "node7")
	if code != 0 || errs != "" {
		t.Fatalf("%d %s", code, errs)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() { _, _ = w.WriteString(out); w.Close() }()
	if code, out, errs := runWith(t, r, node7, "certs", "install", "-"); code != 0 || !strings.Contains(out, "host node7") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

func TestTemplates(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "templates")
	if code, out, errs := run(t, root, "template", "ls"); code != 0 || out != "NAME  PARAMETERS  IS\n" {
		t.Errorf("no folder: %d %s %s", code, out, errs)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"job.yaml":   "description: a batch job\nparameters:\n  cpus: {sets: cpu.max, type: number, default: 1}\n  queue: {sets: labels.queue, type: choice, of: [short, long]}\nnode: {image: host, command: [/bin/sleep, \"60\"], cpu: {max: 2}}\n",
		"bad.yaml":   "node: {image: host, command: [/bin/true], cpus: 3}\n",
		"Wrong.yaml": "", "notes.txt": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ls"}, 0, "NAME  PARAMETERS  IS\nbad   0           cannot be used: DIR/bad.yaml:1:43: node.cpus: unknown key; did you mean cpu?\njob   2           a batch job\n"},
		{[]string{"show", "job"}, 0, "job: a batch job\nPARAMETER  SETS          DEFAULT  TAKES\ncpus       cpu.max       1        a number, at most the template's own\nqueue      labels.queue  -        one of short, long\n"},
		{[]string{"show", "jop"}, 4, "berth: there is no template jop; did you mean job?\n"},
		{[]string{"show", "../job"}, 2, "berth: \"../job\" is not the name of a template: lower-case letters, digits and '-' between them, at most 48\n"},
		{[]string{"check", dir + "/job.yaml"}, 0, "DIR/job.yaml: a template with 2 parameters\n"},
		{[]string{"check", dir + "/bad.yaml", dir + "/none.yaml"}, 2, "berth: DIR/bad.yaml:1:43: node.cpus: unknown key; did you mean cpu?\nberth: there is no file DIR/none.yaml\n"},
	} {
		code, out, errs := run(t, root, append([]string{"template"}, c.args...)...)
		if got := strings.ReplaceAll(out+errs, dir, "DIR"); code != c.code || got != c.want {
			t.Errorf("berth template %s: exit code %d, not %d\n%s", strings.Join(c.args, " "), code, c.code, cmp.Diff(c.want, got))
		}
	}
	code, out, errs := run(t, root, "template", "show", "--json", "job")
	var got struct {
		Parameters map[string]struct{ Sets string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || got.Parameters["cpus"].Sets != "cpu.max" {
		t.Errorf("%d %s %s %v", code, out, errs, err)
	}
}

// TestBundleToWhatIsThere: a bundle is written to a device or a FIFO that -o names, and replaces none; for a folder no certificate is issued.
func TestBundleToWhatIsThere(t *testing.T) {
	testkit.NeedsRoot(t)
	signer, dir := t.TempDir(), t.TempDir()
	null, fifo := filepath.Join(dir, "null"), filepath.Join(dir, "fifo")
	if err := errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	read := make(chan []byte, 1)
	go func() { text, _ := os.ReadFile(fifo); read <- text }()
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"init", "--name", "node1", "192.0.2.1"}, 0},
		{[]string{"issue", "-o", null, "node7", "192.0.2.7"}, 0},
		{[]string{"issue", "-o", fifo, "--role", "operator", "ann"}, 0},
		{[]string{"issue", "-o", dir, "node8", "192.0.2.8"}, 2},
		{[]string{"renew", "-o", filepath.Join(dir, "no/f"), "ann"}, 1},
	} {
		if code, out, errs := run(t, signer, append([]string{"certs"}, c.args...)...); code != c.code {
			t.Errorf("%v: exit %d, %s%s", c.args, code, out, errs)
		}
	}
	for path, want := range map[string]os.FileMode{null: os.ModeDevice | os.ModeCharDevice, fifo: os.ModeNamedPipe} {
		if st, err := os.Lstat(path); err != nil || st.Mode().Type() != want {
			t.Fatalf("%s is %v now, %v", path, st.Mode(), err)
		}
	}
	if text := <-read; !bytes.Contains(text, []byte("PRIVATE KEY")) {
		t.Errorf("through the FIFO came %q", text)
	}
	if _, out, _ := run(t, signer, "certs", "ls"); strings.Contains(out, "node8") || strings.Count(out, "ann ") != 1 {
		t.Errorf("a certificate that nobody got was issued:\n%s", out)
	}
}
